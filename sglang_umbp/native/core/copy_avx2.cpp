#include "copy_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace umbp {
namespace {

__attribute__((target("avx2"), always_inline)) inline void stream_line(uint8_t* dst,
                                                                       const uint8_t* src) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), high);
}

template <_mm_hint kHint>
__attribute__((target("avx2"))) void stream(uint8_t* dst, const uint8_t* src, size_t lines,
                                            const uint8_t* ahead) {
  for (size_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + at), kHint);
    stream_line(dst + at, src + at);
  }
}

__attribute__((target("avx2"))) void stream_bare(uint8_t* dst, const uint8_t* src, size_t lines) {
  for (size_t at = 0; at < lines * kLineBytes; at += kLineBytes) stream_line(dst + at, src + at);
}

void fence() { _mm_sfence(); }

}  // namespace

const CopyKernel kAvx2Kernel{"avx2", stream<_MM_HINT_T1>, stream<_MM_HINT_T0>, stream_bare, fence};

}  // namespace umbp

#endif
