#include "hash128.h"

#include <bit>
#include <cstring>

namespace umbp {
namespace {

struct SipState {
  uint64_t v0, v1, v2, v3;

  explicit SipState(const Hash128& key)
      : v0(0x736f6d6570736575ull ^ key.low),
        v1(0x646f72616e646f6dull ^ key.high ^ 0xee),
        v2(0x6c7967656e657261ull ^ key.low),
        v3(0x7465646279746573ull ^ key.high) {}

  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }

  void absorb(uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }

  Hash128 finish() {
    Hash128 out;
    v2 ^= 0xee;
    for (int i = 0; i < 4; ++i) round();
    out.low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 4; ++i) round();
    out.high = v0 ^ v1 ^ v2 ^ v3;
    return out;
  }
};

uint64_t load_le64(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

uint64_t last_word(std::string_view tail, size_t total_nbytes) {
  uint64_t word = static_cast<uint64_t>(total_nbytes) << 56;
  for (size_t i = 0; i < tail.size(); ++i)
    word |= static_cast<uint64_t>(static_cast<unsigned char>(tail[i])) << (8 * i);
  return word;
}

}  // namespace

Hash128 prf128(const Hash128& key, std::string_view bytes) {
  SipState state(key);
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t i = 0; i < whole; i += 8) state.absorb(load_le64(bytes.data() + i));
  state.absorb(last_word(bytes.substr(whole), bytes.size()));
  return state.finish();
}

Hash128 prf128(const Hash128& key, const Hash128& d) {
  SipState state(key);
  state.absorb(d.low);
  state.absorb(d.high);
  state.absorb(16ull << 56);
  return state.finish();
}

}  // namespace umbp
