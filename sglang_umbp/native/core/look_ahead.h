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
// next one lies. So each line copied starts the load of the line that comes kAheadLines later, into
// the second-level cache, which has room for many more loads under way than the first (1,728 B on
// Zen 4: 0.58-0.8 x a bare loop of non-temporal stores, into the first level only 0.91-0.97 x).
constexpr size_t kAheadLines = 96;
// Runs of a few KiB let the hardware prefetcher help, and want half of that (8,448 B: 1.04 x a bare loop
// call and all, 1.07 x with 96 lines; 1,728 B: 0.94 x with 48, 0.88 x with 96).
constexpr size_t kAheadLinesOfMiddling = 48;
constexpr uint64_t kMiddlingRunBytes = 4 << 10;

// In a long run the hardware prefetcher does that by itself, and a far software prefetch disturbs
// it (37,440 B: 1.11-1.15 x). Of such a run only the head is started from afar; from there on the
// copy looks kNearLines ahead, into the first level (0.94-0.96 x).
constexpr uint64_t kLongRunBytes = 12 << 10;
constexpr size_t kNearLines = 24;

inline bool is_long(const Run& run) { return run.nbytes >= kLongRunBytes; }

// How many lines of a run are started from afar.
inline size_t far_lines(const Run& run) {
  if (is_long(run)) return kNearLines;
  if (run.nbytes == 0) return 0;
  return (run.src + run.nbytes - 1) / kLineBytes - run.src / kLineBytes + 1;
}

// How far ahead of the copy of `first` and what follows it loads are started.
inline size_t ahead_lines(const Run& first) {
  return first.nbytes < kMiddlingRunBytes ? kAheadLines : kAheadLinesOfMiddling;
}

// A position in the far lines of all runs, one after the other.
class LookAhead {
 public:
  LookAhead(const Run* first, const Run* end) : next_(first), end_(end) { enter_run(); }

  // The next line to be started, and how many follow in one piece (0: none is left to start).
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
      for (size_t i = 0; i < piece; ++i) {
        __builtin_prefetch(at_ + i * kLineBytes, 0, kSecondLevel);
      }
      skip(piece);
      lines -= piece;
    }
  }

 private:
  static constexpr int kSecondLevel = 2;

  void enter_run() {
    while (next_ != end_ && next_->nbytes == 0) ++next_;
    if (next_ == end_) return;
    at_ = reinterpret_cast<const uint8_t*>(next_->src & ~uint64_t{kLineBytes - 1});
    lines_ = far_lines(*next_);
    ++next_;
  }

  const Run* next_;
  const Run* end_;
  const uint8_t* at_ = nullptr;
  size_t lines_ = 0;
};

}  // namespace umbp
