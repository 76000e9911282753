#include "copy_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace umbp {
namespace {

template <_mm_hint kHint>
__attribute__((target("avx512f"))) void stream(uint8_t* dst, const uint8_t* src, size_t lines,
                                               const uint8_t* ahead) {
  for (size_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + at), kHint);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  }
}

__attribute__((target("avx512f"))) void stream_bare(uint8_t* dst, const uint8_t* src,
                                                    size_t lines) {
  for (size_t at = 0; at < lines * kLineBytes; at += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  }
}

void fence() { _mm_sfence(); }

}  // namespace

const CopyKernel kAvx512Kernel{"avx512", stream<_MM_HINT_T1>, stream<_MM_HINT_T0>, stream_bare,
                               fence};

}  // namespace umbp

#endif
