#include "extent_allocator.h"

#include <iterator>

namespace umbp {

ExtentAllocator::ExtentAllocator(uint64_t arena_bytes, uint64_t granule)
    : granule_(granule), arena_bytes_(arena_bytes / granule * granule) {
  insert(0, arena_bytes_);
}

std::optional<uint64_t> ExtentAllocator::take(uint64_t nbytes) {
  const uint64_t need = rounded(nbytes);
  const auto fit = by_size_.lower_bound({need, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [extent_bytes, offset] = *fit;
  erase(by_offset_.find(offset));
  if (extent_bytes > need) insert(offset + need, extent_bytes - need);
  return offset;
}

void ExtentAllocator::give_back(uint64_t offset, uint64_t nbytes) {
  uint64_t low = offset;
  uint64_t high = offset + rounded(nbytes);
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == low) {
      low = previous->first;
      erase(previous);
    }
  }
  if (next != by_offset_.end() && next->first == high) {
    high += next->second;
    erase(next);
  }
  insert(low, high - low);
}

uint64_t ExtentAllocator::largest_free_bytes() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

void ExtentAllocator::insert(uint64_t offset, uint64_t nbytes) {
  if (nbytes == 0) return;
  by_offset_.emplace(offset, nbytes);
  by_size_.emplace(nbytes, offset);
  free_bytes_ += nbytes;
}

void ExtentAllocator::erase(std::map<uint64_t, uint64_t>::iterator extent) {
  by_size_.erase({extent->second, extent->first});
  free_bytes_ -= extent->second;
  by_offset_.erase(extent);
}

}  // namespace umbp
