#include "host_copy.h"

#include <algorithm>
#include <cstring>

#include "look_ahead.h"

namespace umbp {
namespace {

uint8_t* destination(const Run& run) { return reinterpret_cast<uint8_t*>(run.dst); }
const uint8_t* source(const Run& run) { return reinterpret_cast<const uint8_t*>(run.src); }

void copy_cached(const Run& run, LookAhead& ahead) {
  ahead.start(far_lines(run));
  std::memcpy(destination(run), source(run), run.nbytes);
}

// The whole lines of one run, on their way to a destination that begins at a line.
struct LineCopy {
  const CopyKernel& kernel;
  uint8_t* dst;
  const uint8_t* src;

  void near(size_t lines) {
    kernel.stream_near(dst, src, lines, src + kNearLines * kLineBytes);
    advance(lines);
  }

  void far(size_t lines, LookAhead& ahead) {
    while (lines > 0 && ahead.lines() > 0) {
      const size_t piece = std::min(lines, ahead.lines());
      kernel.stream_far(dst, src, piece, ahead.at());
      ahead.skip(piece);
      advance(piece);
      lines -= piece;
    }
    kernel.stream_bare(dst, src, lines);
  }

  void advance(size_t lines) {
    dst += lines * kLineBytes;
    src += lines * kLineBytes;
  }
};

// Non-temporal stores fill whole lines of the destination; what lies before and behind them is
// memcpy. Every run moves `ahead` by exactly its own far lines, so that the distance stays.
void copy_streaming(const CopyKernel& kernel, const Run& run, LookAhead& ahead) {
  const size_t head = std::min<size_t>(-run.dst % kLineBytes, run.nbytes);
  const size_t lines = (run.nbytes - head) / kLineBytes;
  const size_t tail = run.nbytes - head - lines * kLineBytes;
  const size_t far = std::min(lines, far_lines(run));
  ahead.start(far_lines(run) - far);
  if (head != 0) std::memcpy(destination(run), source(run), head);
  LineCopy copy{kernel, destination(run) + head, source(run) + head};
  if (far < lines) copy.near(lines - far);
  copy.far(far, ahead);
  if (tail != 0) {
    std::memcpy(destination(run) + run.nbytes - tail, source(run) + run.nbytes - tail, tail);
  }
}

}  // namespace

void HostCopier::copy(const Run* runs, size_t n) const {
  LookAhead ahead(runs, runs + n);
  if (n != 0) ahead.start(ahead_lines(runs[0]));
  bool streamed = false;
  for (const Run* run = runs; run != runs + n; ++run) {
    if (kernel_->stream_far == nullptr || run->nbytes < nt_min_bytes_) {
      copy_cached(*run, ahead);
    } else {
      copy_streaming(*kernel_, *run, ahead);
      streamed = true;
    }
  }
  if (streamed) kernel_->fence();
}

}  // namespace umbp
