#include "range_batch.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "extents.h"

namespace umbp {
namespace {

// Not inlined: the compiler would ask for the address of the thread's vector once a range.
[[gnu::noinline]] std::vector<Extent>& extents_of_this_thread() {
  thread_local std::vector<Extent> extents;
  return extents;
}

}  // namespace

void RangeBatch::check_shape() const {
  if (starts != nullptr) {
    if (starts[0] != 0 || starts[keys] != ranges)
      throw InvalidBatch("starts must run from 0 to the number of ranges (" +
                         std::to_string(ranges) + "); they run from " + std::to_string(starts[0]) +
                         " to " + std::to_string(starts[keys]));
    for (uint64_t key = 0; key < keys; ++key)
      if (starts[key] > starts[key + 1])
        throw InvalidBatch("starts must not descend: starts[" + std::to_string(key) + "] is " +
                           std::to_string(starts[key]) + ", the next " +
                           std::to_string(starts[key + 1]));
  }
  for (uint64_t i = 0; i < ranges; ++i) {
    uint64_t last;
    if (nbytes[i] != 0 && __builtin_add_overflow(addresses[i], nbytes[i] - 1, &last))
      throw InvalidBatch("range at address " + std::to_string(addresses[i]) + " with " +
                         std::to_string(nbytes[i]) + " bytes ends beyond 2^64");
  }
}

void RangeBatch::check_disjoint() const {
  std::vector<Extent>& extents = extents_of_this_thread();
  extents.clear();
  extents.reserve(ranges);
  for (uint64_t i = 0; i < ranges; ++i)
    if (nbytes[i] != 0) extents.push_back({addresses[i], nbytes[i]});
  const auto overlap = find_overlap(extents);
  if (!overlap) return;
  const auto& [low, high] = *overlap;
  throw InvalidBatch("destinations overlap: " + std::to_string(low.nbytes) + " bytes at address " +
                     std::to_string(low.address) + " and " + std::to_string(high.nbytes) +
                     " bytes at address " + std::to_string(high.address));
}

bool RangeBatch::inside(uint64_t key, uint64_t object_bytes) const {
  if (begin(key) == end(key)) return false;
  for (uint64_t i = begin(key); i < end(key); ++i)
    if (nbytes[i] == 0 || nbytes[i] > object_bytes || offset(i) > object_bytes - nbytes[i])
      return false;
  return true;
}

bool RangeBatch::tiles(uint64_t key, uint64_t object_bytes) const {
  thread_local std::vector<std::pair<uint64_t, uint64_t>> sorted;
  sorted.clear();
  for (uint64_t i = begin(key); i < end(key); ++i) sorted.emplace_back(offset(i), nbytes[i]);
  if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
  uint64_t at = 0;
  for (const auto& [start, size] : sorted) {
    if (start != at) return false;
    at += size;
  }
  return at == object_bytes;
}

Status RangeBatch::check_object(uint64_t key, uint64_t object_bytes) const {
  if (!inside(key, object_bytes)) return Status::kBadRange;
  return tiles(key, object_bytes) ? Status::kOk : Status::kNotTiled;
}

uint64_t RangeBatch::bytes_of(uint64_t key) const {
  uint64_t sum = 0;
  for (uint64_t i = begin(key); i < end(key); ++i) sum += nbytes[i];
  return sum;
}

}  // namespace umbp
