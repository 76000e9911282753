// The runs of a plan as pieces of bounded length, some at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device_kernels.h"

namespace umbp {

class PieceSource {
 public:
  // longest_piece: runs longer than that are split. The runs must outlive the source.
  PieceSource(std::span<const Run> runs, uint64_t longest_run, uint64_t longest_piece)
      : runs_(runs), longest_piece_(longest_piece), whole_(longest_run <= longest_piece) {}

  bool finished() const { return next_ == runs_.size(); }

  // No more than so many pieces are left.
  size_t at_most() const { return whole_ ? runs_.size() - next_ : SIZE_MAX; }

  // Writes up to `room` pieces; returns how many.
  size_t fill(CopyPiece* out, size_t room) {
    if (!whole_) return fill_split(out, room);
    const size_t n = std::min(room, runs_.size() - next_);
    std::copy_n(runs_.data() + next_, n, out);
    next_ += n;
    return n;
  }

 private:
  size_t fill_split(CopyPiece* out, size_t room) {
    size_t n = 0;
    for (; n < room && next_ < runs_.size(); ++n) {
      const Run& run = runs_[next_];
      const uint64_t nbytes = std::min(run.nbytes - done_, longest_piece_);
      out[n] = {run.src + done_, run.dst + done_, nbytes};
      done_ += nbytes;
      if (done_ == run.nbytes) {
        ++next_;
        done_ = 0;
      }
    }
    return n;
  }

  std::span<const Run> runs_;
  uint64_t longest_piece_;
  bool whole_;
  size_t next_ = 0;
  uint64_t done_ = 0;  // bytes of the next run that are in pieces already
};

}  // namespace umbp
