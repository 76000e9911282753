// Every function that takes a wide vector is inlined into one that fixes the target: no ABI is met.
#pragma GCC diagnostic ignored "-Wpsabi"

#include "hash128.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "siphash.h"

namespace umbp {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes are specified little-endian");

uint64_t load_word(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// The last, partial word of a message; its top byte is the length.
uint64_t last_word(const char* tail, size_t tail_bytes, size_t message_bytes) {
  uint64_t word = static_cast<uint64_t>(message_bytes) << 56;
  for (size_t i = 0; i < tail_bytes; ++i)
    word |= static_cast<uint64_t>(static_cast<unsigned char>(tail[i])) << (8 * i);
  return word;
}

template <class Word, int lanes>
[[gnu::always_inline]] inline void hash_digests(const Hash128& key, const Hash128* in,
                                                Hash128* out) {
  uint64_t lows[lanes], highs[lanes];
  for (int k = 0; k < lanes; ++k) {
    lows[k] = in[k].low;
    highs[k] = in[k].high;
  }
  Word low, high;
  std::memcpy(&low, lows, sizeof low);
  std::memcpy(&high, highs, sizeof high);
  SipState<Word> state(key.low, key.high);
  state.absorb(low);
  state.absorb(high);
  state.absorb(Word{} + (16ull << 56));
  state.finish(low, high);
  for (int k = 0; k < lanes; ++k) out[k] = {low[k], high[k]};
}

template <class Word, int lanes>
[[gnu::always_inline]] inline void hash_messages(const Hash128& key, const std::string_view* in,
                                                 Hash128* out) {
  const size_t nbytes = in[0].size();
  const size_t whole = nbytes / 8 * 8;
  SipState<Word> state(key.low, key.high);
  uint64_t words[lanes];
  Word word;
  for (size_t at = 0; at < whole; at += 8) {
    for (int k = 0; k < lanes; ++k) words[k] = load_word(in[k].data() + at);
    std::memcpy(&word, words, sizeof word);
    state.absorb(word);
  }
  for (int k = 0; k < lanes; ++k)
    words[k] = last_word(in[k].data() + whole, nbytes - whole, nbytes);
  std::memcpy(&word, words, sizeof word);
  state.absorb(word);
  Word low, high;
  state.finish(low, high);
  for (int k = 0; k < lanes; ++k) out[k] = {low[k], high[k]};
}

bool same_length(const std::string_view* in, size_t lanes) {
  bool same = true;
  for (size_t k = 1; k < lanes; ++k) same = same && in[k].size() == in[0].size();
  return same;
}

#ifdef __x86_64__

// A round is a chain of dependent steps: two registers of messages at once keep the CPU busy (AVX-512:
// 0.66 x the time of one).
constexpr int kLanes512 = 16;
constexpr int kLanes256 = 8;
using Words512 = uint64_t __attribute__((vector_size(8 * kLanes512)));
using Words256 = uint64_t __attribute__((vector_size(8 * kLanes256)));

[[gnu::target("avx512f,avx512vl,avx512dq")]] void digests_avx512(const Hash128& key, const Hash128* in,
                                                               Hash128* out) {
  hash_digests<Words512, kLanes512>(key, in, out);
}
[[gnu::target("avx512f,avx512vl,avx512dq")]] void messages_avx512(const Hash128& key,
                                                                const std::string_view* in,
                                                                Hash128* out) {
  hash_messages<Words512, kLanes512>(key, in, out);
}
[[gnu::target("avx2")]] void digests_avx2(const Hash128& key, const Hash128* in, Hash128* out) {
  hash_digests<Words256, kLanes256>(key, in, out);
}
[[gnu::target("avx2")]] void messages_avx2(const Hash128& key, const std::string_view* in,
                                           Hash128* out) {
  hash_messages<Words256, kLanes256>(key, in, out);
}

#endif

// Functions that hash `lanes` messages at once.
struct WideHash {
  size_t lanes;
  void (*digests)(const Hash128&, const Hash128*, Hash128*);
  void (*messages)(const Hash128&, const std::string_view*, Hash128*);
};

// Those of this CPU, widest first.
std::vector<WideHash> wide_hashes() {
  std::vector<WideHash> hashes;
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    hashes.push_back({kLanes512, digests_avx512, messages_avx512});
  if (__builtin_cpu_supports("avx2"))
    hashes.push_back({kLanes256, digests_avx2, messages_avx2});
#endif
  return hashes;
}

const std::vector<WideHash> all_wide = wide_hashes();

}  // namespace

Hash128 prf128(const Hash128& key, std::string_view bytes) {
  SipState<uint64_t> state(key.low, key.high);
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) state.absorb(load_word(bytes.data() + at));
  state.absorb(last_word(bytes.data() + whole, bytes.size() - whole, bytes.size()));
  Hash128 out;
  state.finish(out.low, out.high);
  return out;
}

Hash128 prf128(const Hash128& key, const Hash128& d) {
  SipState<uint64_t> state(key.low, key.high);
  state.absorb(d.low);
  state.absorb(d.high);
  state.absorb(16ull << 56);
  Hash128 out;
  state.finish(out.low, out.high);
  return out;
}

void prf128_batch(const Hash128& key, std::span<const Hash128> in, Hash128* out) {
  size_t i = 0;
  for (const WideHash& wide : all_wide)
    for (; i + wide.lanes <= in.size(); i += wide.lanes) wide.digests(key, &in[i], out + i);
  for (; i < in.size(); ++i) out[i] = prf128(key, in[i]);
}

void prf128_batch(const Hash128& key, std::span<const std::string_view> in, Hash128* out) {
  size_t i = 0;
  while (i < in.size()) {
    const auto fits = [&](const WideHash& wide) {
      return i + wide.lanes <= in.size() && same_length(&in[i], wide.lanes);
    };
    const auto wide = std::find_if(all_wide.begin(), all_wide.end(), fits);
    if (wide != all_wide.end()) {
      wide->messages(key, &in[i], out + i);
      i += wide->lanes;
    } else {
      out[i] = prf128(key, in[i]);
      ++i;
    }
  }
}

}  // namespace umbp
