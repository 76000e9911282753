// Publish, fence, check: how a reader names objects so that their memory cannot be reused under it.
//
// The argument, in the single order of the seq_cst operations: the reader writes handles, exchanges n
// (F), loads the entry's state (S). The owner exchanges the state to RETIRED (R), then loads n and the
// handles (P). If S saw LIVE of the incarnation that R retires, then F < S < R < P, so the pass sees
// the names and frees nothing. If S came after R it did not see LIVE, and the reader lets go.
// An entry that was freed and taken again meanwhile is LIVE with another hash (let go), or with the
// same hash: then it is the object asked for, and it is named.
//
// The template parameter exists for tests, which plant a mistake each and must catch it.
#pragma once

#include <atomic>
#include <cstdint>

#include "shared_layout.h"

namespace umbp {

struct Sound {
  static constexpr bool kFence = true;
  static constexpr bool kRecheck = true;
  static constexpr std::memory_order kStoreHandle = std::memory_order_release;
  static void before_fence() {}
};

// The atomic array (a slot's or a session chunk's) in which one reader names objects.
struct HazardList {
  std::atomic<uint32_t>* n;
  std::atomic<uint32_t>* handles;
};

struct Candidate {
  uint32_t handle;    // kNoHandle: no further word carries the tag
  uint32_t position;  // 0..15 within the key's two buckets
};

// The next word from `position` on, and before `end`, that carries the key's tag.
inline Candidate next_candidate(const IndexView& index, const Hash128& hash, uint32_t position,
                                uint32_t end = 2 * kBucketWords) {
  const uint32_t tag = tag_of(hash);
  while (position < end) {
    const uint64_t number = position < kBucketWords ? first_bucket(hash, index.bucket_count)
                                                    : second_bucket(hash, index.bucket_count);
    const Bucket& bucket = index.buckets[number];
    for (uint32_t word = position % kBucketWords; word < kBucketWords; ++word, ++position) {
      const uint64_t value = bucket.words[word].load(std::memory_order_acquire);
      if (value != 0 && static_cast<uint32_t>(value >> 32) == tag) {
        const uint32_t handle = handle_of(value);
        if (handle < index.entry_count) return {handle, position};
      }
    }
  }
  return {kNoHandle, position};
}

inline bool is_live_as(const Entry& entry, const Hash128& hash) {
  return state_of(entry.state.load(std::memory_order_seq_cst)) == State::kLive &&
         entry.hash == hash;
}

template <class Plant = Sound>
class ReadProtocol {
 public:
  // Names the objects of `count` keys and leaves in found[i] the handle that stays named until
  // withdraw(), or kNoHandle. Never loops on shared state.
  static void publish(const IndexView& index, const HazardList& list, const Hash128* keys,
                      uint32_t count, uint32_t* found) {
    uint8_t positions[kSlotHandles];
    look_up(index, list, keys, count, found, positions);
    fence(list, count);
    for (uint32_t i = 0; i < count; ++i)
      if (found[i] != kNoHandle)
        found[i] = confirm(index, list, keys[i], count, i, {found[i], positions[i]});
  }

  static void withdraw(const HazardList& list) { list.n->store(0, std::memory_order_release); }

 private:
  static constexpr uint32_t kAhead = 16;  // buckets in flight: about as many as a core has fill buffers

  static void look_up(const IndexView& index, const HazardList& list, const Hash128* keys,
                      uint32_t count, uint32_t* found, uint8_t* positions) {
    const auto prefetch = [&](uint32_t i) {
      __builtin_prefetch(&index.buckets[first_bucket(keys[i], index.bucket_count)]);
    };
    const auto keep = [&](uint32_t i, const Candidate& candidate) {
      list.handles[i].store(candidate.handle, Plant::kStoreHandle);
      if (candidate.handle != kNoHandle) __builtin_prefetch(&index.entries[candidate.handle]);
      found[i] = candidate.handle;
      positions[i] = static_cast<uint8_t>(candidate.position);
    };
    uint32_t elsewhere = 0;  // keys that are not in their first bucket
    for (uint32_t i = 0; i < count && i < kAhead; ++i) prefetch(i);
    for (uint32_t i = 0; i < count; ++i) {
      if (i + kAhead < count) prefetch(i + kAhead);
      const Candidate candidate = next_candidate(index, keys[i], 0, kBucketWords);
      keep(i, candidate);
      if (candidate.handle != kNoHandle) continue;
      ++elsewhere;
      __builtin_prefetch(&index.buckets[second_bucket(keys[i], index.bucket_count)]);
    }
    for (uint32_t i = 0; elsewhere != 0; ++i) {
      if (found[i] != kNoHandle) continue;
      --elsewhere;
      keep(i, next_candidate(index, keys[i], kBucketWords));
    }
  }

  static void fence(const HazardList& list, uint32_t count) {
    Plant::before_fence();
    if constexpr (Plant::kFence)
      list.n->exchange(count, std::memory_order_seq_cst);
    else
      list.n->store(count, std::memory_order_release);
  }

  // The check behind the fence; on failure the next word with the tag is tried for this key alone.
  static uint32_t confirm(const IndexView& index, const HazardList& list, const Hash128& key,
                          uint32_t count, uint32_t i, Candidate candidate) {
    while (candidate.handle != kNoHandle) {
      if constexpr (!Plant::kRecheck) return candidate.handle;
      if (is_live_as(index.entries[candidate.handle], key)) return candidate.handle;
      candidate = next_candidate(index, key, candidate.position + 1);
      list.handles[i].store(candidate.handle, Plant::kStoreHandle);
      if (candidate.handle != kNoHandle) fence(list, count);
    }
    return kNoHandle;
  }
};

}  // namespace umbp
