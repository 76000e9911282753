// Keyed 128-bit hashes: SipHash-2-4 with the 128-bit output of its reference specification
// (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012). Keyed, because readers
// compare nothing but these 128 bits: nobody may choose keys that collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace umbp {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

// For hashed containers: the value is a PRF's already.
struct Hash128Hash {
  size_t operator()(const Hash128& hash) const { return hash.low; }
};

// PRF128(key, bytes).
Hash128 prf128(const Hash128& key, std::string_view bytes);

// PRF128(key, the 16 bytes of d, little-endian).
Hash128 prf128(const Hash128& key, const Hash128& d);

// out[i] = PRF128(key, in[i]), several at a time on CPUs with wide registers.
void prf128_batch(const Hash128& key, std::span<const Hash128> in, Hash128* out);
// Messages of one length go several at a time; page hashes all have one.
void prf128_batch(const Hash128& key, std::span<const std::string_view> in, Hash128* out);

}  // namespace umbp
