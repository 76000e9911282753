// The rounds of SipHash-2-4-128 over any word type: uint64_t, or a vector of them that hashes as many
// messages at once.
#pragma once

#include <cstdint>

namespace umbp {

// Word needs +, ^, <<, >> and |, lane by lane. Always inlined into a function that fixes the target.
template <class Word>
struct SipState {
  Word v0, v1, v2, v3;

  [[gnu::always_inline]] inline SipState(uint64_t key_low, uint64_t key_high)
      : v0(Word{} + (0x736f6d6570736575ull ^ key_low)),
        v1(Word{} + (0x646f72616e646f6dull ^ key_high ^ 0xee)),
        v2(Word{} + (0x6c7967656e657261ull ^ key_low)),
        v3(Word{} + (0x7465646279746573ull ^ key_high)) {}

  template <int bits>
  [[gnu::always_inline]] static inline Word rotate(Word word) {
    return (word << bits) | (word >> (64 - bits));
  }

  [[gnu::always_inline]] inline void round() {
    v0 += v1;
    v1 = rotate<13>(v1) ^ v0;
    v0 = rotate<32>(v0);
    v2 += v3;
    v3 = rotate<16>(v3) ^ v2;
    v0 += v3;
    v3 = rotate<21>(v3) ^ v0;
    v2 += v1;
    v1 = rotate<17>(v1) ^ v2;
    v2 = rotate<32>(v2);
  }

  [[gnu::always_inline]] inline void absorb(Word word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }

  [[gnu::always_inline]] inline void finish(Word& low, Word& high) {
    v2 ^= Word{} + 0xee;
    for (int i = 0; i < 4; ++i) round();
    low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= Word{} + 0xdd;
    for (int i = 0; i < 4; ++i) round();
    high = v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace umbp
