#include "object_table.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace umbp {
namespace {

constexpr uint64_t kEntriesPerBucket = kBucketWords / 2;  // words >= 2 x entries

// A key goes to its first bucket while so many words of it are empty, else to the emptier of its two:
// readers look there first, and most keys cost them one line. Buckets still fill up evenly: simulated
// with 400,000 keys up to the last entry, 95 % lie in their first bucket and none found both full.
constexpr uint32_t kRoomy = 3;

MappingOptions sealed_for_readers(MappingOptions options) {
  options.read_only_elsewhere = true;
  return options;
}

}  // namespace

ObjectTable::ObjectTable(uint32_t entry_count, uint64_t arena_bytes, const Hash128& secret,
                         const MappingOptions& options)
    : header_("index header", sizeof(Header), sealed_for_readers(options)),
      buckets_("index buckets",
               (entry_count / kEntriesPerBucket + 1) * sizeof(Bucket), sealed_for_readers(options)),
      entries_("index entries", static_cast<size_t>(entry_count) * sizeof(Entry),
               sealed_for_readers(options)),
      keys_(entry_count) {
  new (header_.data()) Header{kHeaderMagic, kLayoutVersion, entry_count,
                              entry_count / kEntriesPerBucket + 1, arena_bytes, secret,
                              Prefaulting::kUnderWay};
  free_.reserve(entry_count);
  for (uint32_t handle = entry_count; handle-- > 0;) free_.push_back(handle);
}

IndexView ObjectTable::view(const std::byte* arena) const {
  return {header(), buckets(), entries(), arena,
          header()->bucket_count, header()->arena_bytes, header()->entry_count};
}

uint32_t ObjectTable::find(const Hash128& hash) const {
  uint32_t found = kNoHandle;
  for_each_in_buckets(hash, [&](uint32_t handle) {
    if (entries()[handle].hash == hash) found = handle;
  });
  return found;
}

bool ObjectTable::same_key(uint32_t handle, uint32_t component, std::string_view key) const {
  const Key& stored = keys_[handle];
  return entries()[handle].component == component &&
         key == std::string_view(stored.bytes.get(), stored.nbytes);
}

std::atomic<uint64_t>* ObjectTable::empty_word(const Hash128& hash) const {
  const uint64_t count = header()->bucket_count;
  std::atomic<uint64_t>* best = nullptr;
  uint32_t most_empty = 0;  // of the buckets so far
  for (const uint64_t number : {first_bucket(hash, count), second_bucket(hash, count)}) {
    std::atomic<uint64_t>* candidate = nullptr;
    uint32_t empty = 0;
    for (std::atomic<uint64_t>& word : buckets()[number].words)
      if (word.load(std::memory_order_relaxed) == 0) {
        ++empty;
        if (candidate == nullptr) candidate = &word;
      }
    if (empty > most_empty) {
      most_empty = empty;
      best = candidate;
    }
    if (most_empty >= kRoomy) break;
  }
  return best;
}

bool ObjectTable::has_word_for(const Hash128& hash) const { return empty_word(hash) != nullptr; }

uint32_t ObjectTable::take(const Hash128& hash, uint32_t component, std::string_view key,
                           uint64_t offset, uint64_t nbytes) {
  auto bytes = std::make_unique_for_overwrite<char[]>(key.size());
  if (!key.empty()) std::memcpy(bytes.get(), key.data(), key.size());
  const uint32_t handle = free_.back();
  free_.pop_back();
  keys_[handle] = {std::move(bytes), key.size()};
  Entry& entry = entries()[handle];
  entry.hash = hash;
  entry.offset = offset;
  entry.nbytes = nbytes;
  entry.component = component;
  entry.state.store(pack_state(State::kFilling, generation(handle) + 1), std::memory_order_release);
  empty_word(hash)->store(pack_word(hash, handle), std::memory_order_release);
  return handle;
}

void ObjectTable::make_live(uint32_t handle) {
  entries()[handle].state.store(pack_state(State::kLive, generation(handle)),
                                std::memory_order_seq_cst);
}

void ObjectTable::retire(uint32_t handle) {
  entries()[handle].state.exchange(pack_state(State::kRetired, generation(handle)),
                                   std::memory_order_seq_cst);
  unlink(handle);
}

void ObjectTable::free(uint32_t handle) {
  if (state(handle) == State::kFilling) unlink(handle);
  entries()[handle].state.store(pack_state(State::kFree, generation(handle)),
                                std::memory_order_release);
  keys_[handle] = {};
  free_.push_back(handle);
}

void ObjectTable::unlink(uint32_t handle) {
  const Hash128& hash = entries()[handle].hash;
  const uint64_t value = pack_word(hash, handle);
  const uint64_t count = header()->bucket_count;
  for (const uint64_t number : {first_bucket(hash, count), second_bucket(hash, count)})
    for (std::atomic<uint64_t>& word : buckets()[number].words)
      if (word.load(std::memory_order_relaxed) == value) word.store(0, std::memory_order_release);
}

}  // namespace umbp
