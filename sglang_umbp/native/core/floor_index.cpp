#include "floor_index.h"

#include <chrono>
#include <vector>

#include "errors.h"

namespace umbp {
namespace {

constexpr uint64_t kEntriesPerBucket = kBucketWords / 2;  // as in the index: words >= 2 x entries
constexpr size_t kAhead = 16;

MappingOptions hugepages() {
  MappingOptions options;
  options.hugepages = true;
  return options;
}

uint64_t next_random(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ull;
  uint64_t mixed = state;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
  return mixed ^ mixed >> 31;
}

uint32_t checked(uint32_t entry_count) {
  if (entry_count == 0) throw InvalidBatch("an index floor needs at least one entry; got 0");
  return entry_count;
}

// Keeps a value that nobody needs from being optimised away.
void keep(uint64_t value) { asm volatile("" : : "r"(value) : "memory"); }

uint64_t read_all(const Bucket* buckets, const Entry* entries, std::span<const uint64_t> numbers,
                  const Entry** found) {
  for (size_t i = 0; i < numbers.size() && i < kAhead; ++i) __builtin_prefetch(&buckets[numbers[i]]);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i + kAhead < numbers.size()) __builtin_prefetch(&buckets[numbers[i + kAhead]]);
    const uint64_t word = buckets[numbers[i]].words[i % kBucketWords].load(std::memory_order_relaxed);
    found[i] = &entries[handle_of(word)];
    __builtin_prefetch(found[i]);
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < numbers.size(); ++i) sum += found[i]->hash.low;
  return sum;
}

}  // namespace

IndexFloor::IndexFloor(uint32_t entry_count, uint64_t seed)
    : bucket_count_(checked(entry_count) / kEntriesPerBucket + 1),
      bucket_memory_("floor buckets", bucket_count_ * sizeof(Bucket), hugepages()),
      entry_memory_("floor entries", static_cast<size_t>(entry_count) * sizeof(Entry), hugepages()) {
  for (uint64_t bucket = 0; bucket < bucket_count_; ++bucket)
    for (std::atomic<uint64_t>& word : buckets()[bucket].words)
      word.store(next_random(seed) % entry_count + 1, std::memory_order_relaxed);
  for (uint32_t entry = 0; entry < entry_count; ++entry) entries()[entry].hash.low = entry;
}

uint64_t IndexFloor::run_ns(std::span<const uint64_t> numbers) const {
  std::vector<uint64_t> wrapped(numbers.begin(), numbers.end());
  for (uint64_t& number : wrapped) number %= bucket_count_;
  std::vector<const Entry*> found(wrapped.size());
  const auto begin = std::chrono::steady_clock::now();
  keep(read_all(buckets(), entries(), wrapped, found.data()));
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
}

}  // namespace umbp
