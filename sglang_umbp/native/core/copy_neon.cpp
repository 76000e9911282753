#include "copy_kernels.h"

#if defined(__aarch64__)

namespace umbp {
namespace {

// There is no intrinsic for the non-temporal pair store.
inline void stream_line(uint8_t* dst, const uint8_t* src) {
  asm volatile(
      "ldp q0, q1, [%[src]]\n\t"
      "ldp q2, q3, [%[src], #32]\n\t"
      "stnp q0, q1, [%[dst]]\n\t"
      "stnp q2, q3, [%[dst], #32]\n\t"
      :
      : [src] "r"(src), [dst] "r"(dst)
      : "v0", "v1", "v2", "v3", "memory");
}

template <int kLocality>
void stream(uint8_t* dst, const uint8_t* src, size_t lines, const uint8_t* ahead) {
  for (size_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
    __builtin_prefetch(ahead + at, 0, kLocality);
    stream_line(dst + at, src + at);
  }
}

void stream_bare(uint8_t* dst, const uint8_t* src, size_t lines) {
  for (size_t at = 0; at < lines * kLineBytes; at += kLineBytes) stream_line(dst + at, src + at);
}

void fence() { asm volatile("dmb ishst" ::: "memory"); }

}  // namespace

const CopyKernel kNeonKernel{"neon", stream<2>, stream<3>, stream_bare, fence};

}  // namespace umbp

#endif
