// The memory that an owner shares with its readers: header, buckets, entries, and one client area a
// client. Offsets and handles only, no pointers. Everything that two processes touch is an atomic.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "hash128.h"

namespace umbp {

inline constexpr uint64_t kHeaderMagic = 0x3130504d42554cull;  // "LUBMP01" as bytes
inline constexpr uint32_t kLayoutVersion = 3;
inline constexpr uint32_t kNoHandle = 0xffffffffu;
inline constexpr uint32_t kBucketWords = 8;
inline constexpr uint32_t kSlots = 64;
inline constexpr uint32_t kSlotHandles = 2048;
inline constexpr uint32_t kRingHandles = 4096;
inline constexpr uint32_t kChunkBytes = 4096;
inline constexpr uint64_t kArenaGranule = 64;

// How far the owner is in giving the arena its pages. Who touches a page first pays for it: the others wait.
enum class Prefaulting : uint32_t { kUnderWay = 0, kDone = 1, kNotWanted = 2 };

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t entry_count;
  uint64_t bucket_count;
  uint64_t arena_bytes;
  Hash128 secret;
  std::atomic<Prefaulting> prefaulting;
};

enum class State : uint64_t { kFree = 0, kFilling = 1, kLive = 2, kRetired = 3 };

// The state lies in the two low bits, the generation (one more each time the entry is taken) above.
constexpr uint64_t pack_state(State state, uint64_t generation) {
  return generation << 2 | static_cast<uint64_t>(state);
}
constexpr State state_of(uint64_t word) { return static_cast<State>(word & 3); }
constexpr uint64_t generation_of(uint64_t word) { return word >> 2; }

// One object. The plain fields may be read only after `state` was seen LIVE while the reader names it.
struct alignas(64) Entry {
  std::atomic<uint64_t> state;
  Hash128 hash;
  uint64_t offset;
  uint64_t nbytes;
  uint32_t component;
  uint32_t reserved[5];
};
static_assert(sizeof(Entry) == 64);

// Words of `tag:32 | handle+1:32`, 0 = empty.
struct alignas(64) Bucket {
  std::atomic<uint64_t> words[kBucketWords];
};
static_assert(sizeof(Bucket) == 64);

constexpr uint32_t tag_of(const Hash128& hash) { return static_cast<uint32_t>(hash.low >> 32); }
constexpr uint64_t pack_word(const Hash128& hash, uint32_t handle) {
  return static_cast<uint64_t>(tag_of(hash)) << 32 | (handle + 1);
}
constexpr uint32_t handle_of(uint64_t word) { return static_cast<uint32_t>(word) - 1; }

// Two buckets from two 32-bit parts of the hash that the tag does not use.
constexpr uint64_t first_bucket(const Hash128& hash, uint64_t bucket_count) {
  return (hash.low & 0xffffffffu) * bucket_count >> 32;
}
constexpr uint64_t second_bucket(const Hash128& hash, uint64_t bucket_count) {
  const uint64_t second = (hash.high & 0xffffffffu) * bucket_count >> 32;
  if (second != first_bucket(hash, bucket_count)) return second;
  return second + 1 == bucket_count ? 0 : second + 1;  // in a small index they may meet
}

// The hazard list of one call, and the ring in which it leaves what it read for the owner's LRU.
struct Slot {
  alignas(64) std::atomic<uint32_t> n;
  alignas(64) std::atomic<uint32_t> handles[kSlotHandles];
  alignas(64) std::atomic<uint32_t> ring_head;
  alignas(64) std::atomic<uint32_t> ring[kRingHandles];
};

inline constexpr uint32_t kChunkHandles = (kChunkBytes - 64) / sizeof(uint32_t);

// Part of a session's hazard list; stays published until the session ends.
struct SessionChunk {
  alignas(64) std::atomic<uint32_t> n;
  alignas(64) std::atomic<uint32_t> handles[kChunkHandles];
};
static_assert(sizeof(SessionChunk) == kChunkBytes);

// What a client has read so far, as of its last report; for people only.
enum class Figure : uint32_t { kGetCalls, kGets, kHits, kBytesRead, kExistsKeys, kExistsFound };
inline constexpr size_t kFigures = 6;

// Head of a client area; kSlots slots and then chunk_count chunks follow.
struct alignas(4096) ClientHead {
  uint64_t magic;
  uint32_t chunk_count;
  alignas(64) std::atomic<uint32_t> slots_used;   // high-water marks: a pass looks no further
  alignas(64) std::atomic<uint32_t> chunks_used;
  alignas(64) std::atomic<uint64_t> figures[kFigures];  // what the client says of itself; see Figure
};

struct ClientArea {
  ClientHead* head = nullptr;
  Slot* slots = nullptr;
  SessionChunk* chunks = nullptr;

  static size_t nbytes(uint32_t chunk_count) {
    return sizeof(ClientHead) + align_chunk(sizeof(Slot) * kSlots) +
           static_cast<size_t>(chunk_count) * kChunkBytes;
  }
  static ClientArea at(std::byte* base) {
    return {reinterpret_cast<ClientHead*>(base),
            reinterpret_cast<Slot*>(base + sizeof(ClientHead)),
            reinterpret_cast<SessionChunk*>(base + sizeof(ClientHead) +
                                            align_chunk(sizeof(Slot) * kSlots))};
  }

 private:
  static constexpr size_t align_chunk(size_t n) {
    return (n + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  }
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// What a reader needs of the owner's memory.
struct IndexView {
  const Header* header = nullptr;
  const Bucket* buckets = nullptr;
  const Entry* entries = nullptr;
  const std::byte* arena = nullptr;
  uint64_t bucket_count = 0;
  uint64_t arena_bytes = 0;
  uint32_t entry_count = 0;
};

}  // namespace umbp
