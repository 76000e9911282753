// The bare loop that look-ups in the index are measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mapping.h"
#include "shared_layout.h"

namespace umbp {

// Buckets and entries as large as those of an index with `entry_count` entries, in the same kind of
// pages. Each bucket names entries anywhere, so that an entry's line is known only once its bucket's
// line is there. One thread at a time.
class IndexFloor {
 public:
  // Throws InvalidBatch for no entries, OutOfMemory.
  explicit IndexFloor(uint32_t entry_count, uint64_t seed = 1);

  // Nanoseconds of one pass: each of `buckets` (taken modulo their number) is read, then one entry
  // that it names. Loads are started 16 buckets ahead and all entries ahead, as a look-up does.
  // Nothing else: no hash, no comparison of keys, no fence.
  uint64_t run_ns(std::span<const uint64_t> buckets) const;

  uint64_t bucket_count() const { return bucket_count_; }

 private:
  Bucket* buckets() const { return reinterpret_cast<Bucket*>(bucket_memory_.data()); }
  Entry* entries() const { return reinterpret_cast<Entry*>(entry_memory_.data()); }

  uint64_t bucket_count_;
  Mapping bucket_memory_;
  Mapping entry_memory_;
};

}  // namespace umbp
