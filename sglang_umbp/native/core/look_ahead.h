// Where the copier's loads are started: a fixed distance before the copy, across the borders of
// runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "copy_kernels.h"
#include "planner.h"

namespace umbp {

// Small cold fragments cost latency, not bandwidth, and a hardware prefetcher cannot know where the
// next one lies. So every line copied starts the load of the line that is copied kAheadLines later.
class LookAhead {
 public:
  LookAhead(const Run* first, const Run* end) : next_(first), end_(end) { enter_run(); }

  // The next line to be started, and how many lines lie from there in one piece (0: nothing is left
  // to start).
  const uint8_t* at() const { return at_; }
  size_t lines() const { return lines_; }

  void skip(size_t lines) {
    at_ += lines * kLineBytes;
    lines_ -= lines;
    if (lines_ == 0) enter_run();
  }

  // Starts the loads of the next `lines` lines.
  void start(size_t lines) {
    while (lines > 0 && lines_ > 0) {
      const size_t piece = std::min(lines, lines_);
      for (size_t i = 0; i < piece; ++i) __builtin_prefetch(at_ + i * kLineBytes);
      skip(piece);
      lines -= piece;
    }
  }

 private:
  void enter_run() {
    while (next_ != end_ && next_->nbytes == 0) ++next_;
    if (next_ == end_) return;
    const uint64_t first_line = next_->src & ~uint64_t{kLineBytes - 1};
    const uint64_t last_line = (next_->src + next_->nbytes - 1) & ~uint64_t{kLineBytes - 1};
    at_ = reinterpret_cast<const uint8_t*>(first_line);
    lines_ = (last_line - first_line) / kLineBytes + 1;
    ++next_;
  }

  const Run* next_;
  const Run* end_;
  const uint8_t* at_ = nullptr;
  size_t lines_ = 0;
};

}  // namespace umbp
