#include "host_copy.h"

#include <algorithm>
#include <cstring>

#include "look_ahead.h"

namespace umbp {
namespace {

constexpr size_t kAheadLines = 32;

uint8_t* destination(const Run& run) { return reinterpret_cast<uint8_t*>(run.dst); }
const uint8_t* source(const Run& run) { return reinterpret_cast<const uint8_t*>(run.src); }

void copy_cached(const Run& run, LookAhead& ahead) {
  ahead.start(run.nbytes / kLineBytes + 1);
  std::memcpy(destination(run), source(run), run.nbytes);
}

void stream_lines(const CopyKernel& kernel, uint8_t* dst, const uint8_t* src, size_t lines,
                  LookAhead& ahead) {
  while (lines > 0 && ahead.lines() > 0) {
    const size_t piece = std::min(lines, ahead.lines());
    kernel.stream(dst, src, piece, ahead.at());
    ahead.skip(piece);
    dst += piece * kLineBytes;
    src += piece * kLineBytes;
    lines -= piece;
  }
  kernel.stream_bare(dst, src, lines);
}

// Non-temporal stores fill whole lines of the destination; what lies before and behind them is
// memcpy.
void copy_streaming(const CopyKernel& kernel, const Run& run, LookAhead& ahead) {
  const size_t head = std::min<size_t>(-run.dst % kLineBytes, run.nbytes);
  const size_t lines = (run.nbytes - head) / kLineBytes;
  const size_t tail = run.nbytes - head - lines * kLineBytes;
  uint8_t* dst = destination(run);
  const uint8_t* src = source(run);
  if (head != 0) std::memcpy(dst, src, head);
  stream_lines(kernel, dst + head, src + head, lines, ahead);
  if (tail != 0) std::memcpy(dst + run.nbytes - tail, src + run.nbytes - tail, tail);
}

}  // namespace

void HostCopier::copy(const Run* runs, size_t n) const {
  LookAhead ahead(runs, runs + n);
  ahead.start(kAheadLines);
  bool streamed = false;
  for (const Run* run = runs; run != runs + n; ++run) {
    if (kernel_->stream == nullptr || run->nbytes < nt_min_bytes_) {
      copy_cached(*run, ahead);
    } else {
      copy_streaming(*kernel_, *run, ahead);
      streamed = true;
    }
  }
  if (streamed) kernel_->fence();
}

}  // namespace umbp
