// The owner's hand on entries and buckets, with what only the owner knows of an object.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "mapping.h"
#include "shared_layout.h"

namespace umbp {

// A bucket word is written when the entry is taken, while it is FILLING, and not after it went LIVE as
// PROTOCOL has it. Readers lose nothing (they let go of whatever is not LIVE) and the owner finds puts in
// flight through the same index, and knows at allocation that the word is there.
//
// Not thread-safe: the owner's mutex guards it.
class ObjectTable {
 public:
  ObjectTable(uint32_t entry_count, uint64_t arena_bytes, const Hash128& secret,
              const MappingOptions& options);

  IndexView view(const std::byte* arena) const;
  uint32_t entry_count() const { return header()->entry_count; }
  uint32_t free_entries() const { return static_cast<uint32_t>(free_.size()); }
  const Entry& entry(uint32_t handle) const { return entries()[handle]; }
  State state(uint32_t handle) const {
    return state_of(entries()[handle].state.load(std::memory_order_relaxed));
  }
  uint64_t generation(uint32_t handle) const {
    return generation_of(entries()[handle].state.load(std::memory_order_relaxed));
  }

  // The FILLING or LIVE entry of this hash, or kNoHandle.
  uint32_t find(const Hash128& hash) const;
  // Whether the entry holds exactly this key, not only its hash.
  bool same_key(uint32_t handle, uint32_t component, std::string_view key) const;
  bool has_word_for(const Hash128& hash) const;
  // Calls f(handle) for what fills the key's two buckets.
  template <class F>
  void for_each_in_buckets(const Hash128& hash, const F& f) const;

  // The entry that take() will take.
  uint32_t next_handle() const { return free_.back(); }
  // FREE -> FILLING. Needs a free entry and has_word_for().
  uint32_t take(const Hash128& hash, uint32_t component, std::string_view key, uint64_t offset,
                uint64_t nbytes);
  void make_live(uint32_t handle);  // FILLING -> LIVE, readers find it
  void retire(uint32_t handle);     // LIVE -> RETIRED, new readers do not find it
  void free(uint32_t handle);       // FILLING or RETIRED (and unnamed) -> FREE

  // What readers are told of the arena's pages.
  void tell(Prefaulting state) { header()->prefaulting.store(state, std::memory_order_release); }

  const Mapping& header_memory() const { return header_; }
  const Mapping& bucket_memory() const { return buckets_; }
  const Mapping& entry_memory() const { return entries_; }

 private:
  struct Key {
    std::unique_ptr<char[]> bytes;
    uint64_t nbytes = 0;
  };

  Header* header() const { return reinterpret_cast<Header*>(header_.data()); }
  Bucket* buckets() const { return reinterpret_cast<Bucket*>(buckets_.data()); }
  Entry* entries() const { return reinterpret_cast<Entry*>(entries_.data()); }
  std::atomic<uint64_t>* empty_word(const Hash128& hash) const;
  void unlink(uint32_t handle);

  Mapping header_;
  Mapping buckets_;
  Mapping entries_;
  std::vector<Key> keys_;
  std::vector<uint32_t> free_;
};

template <class F>
void ObjectTable::for_each_in_buckets(const Hash128& hash, const F& f) const {
  const uint64_t count = header()->bucket_count;
  for (const uint64_t number : {first_bucket(hash, count), second_bucket(hash, count)})
    for (const std::atomic<uint64_t>& word : buckets()[number].words) {
      const uint64_t value = word.load(std::memory_order_relaxed);
      if (value != 0) f(handle_of(value));
    }
}

}  // namespace umbp
