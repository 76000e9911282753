#include "extent_allocator.h"

#include <iterator>

namespace umbp {

ExtentAllocator::ExtentAllocator(uint64_t arena_bytes, uint64_t granule, uint32_t handle_count)
    : granule_(granule),
      arena_bytes_(arena_bytes / granule * granule),
      below_(handle_count, kNoHandle),
      above_(handle_count, kNoHandle) {
  insert(0, {arena_bytes_, kNoHandle});
}

std::optional<uint64_t> ExtentAllocator::take(uint64_t nbytes, uint32_t handle) {
  const uint64_t need = rounded(nbytes);
  const auto fit = by_size_.lower_bound({need, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const uint64_t offset = fit->second;
  const auto extent = by_offset_.find(offset);
  const Free whole = extent->second;
  erase(extent);
  link(whole.below, handle);
  insert(offset + need, {whole.nbytes - need, handle});
  return offset;
}

void ExtentAllocator::give_back(uint64_t offset, uint64_t nbytes, uint32_t handle) {
  uint64_t low = offset;
  uint64_t high = offset + rounded(nbytes);
  uint32_t below = below_[handle];
  unlink(handle);
  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.nbytes == low) {
      low = previous->first;
      below = previous->second.below;
      erase(previous);
    }
  }
  if (next != by_offset_.end() && next->first == high) {
    high += next->second.nbytes;
    erase(next);
  }
  insert(low, {high - low, below});
}

uint64_t ExtentAllocator::largest_free_bytes() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

void ExtentAllocator::insert(uint64_t offset, const Free& extent) {
  if (extent.nbytes == 0) return;
  by_offset_.emplace(offset, extent);
  by_size_.emplace(extent.nbytes, offset);
  free_bytes_ += extent.nbytes;
}

void ExtentAllocator::erase(FreeExtents::iterator extent) {
  by_size_.erase({extent->second.nbytes, extent->first});
  free_bytes_ -= extent->second.nbytes;
  by_offset_.erase(extent);
}

void ExtentAllocator::link(uint32_t below, uint32_t handle) {
  uint32_t& after_below = below == kNoHandle ? lowest_ : above_[below];
  below_[handle] = below;
  above_[handle] = after_below;
  if (after_below != kNoHandle) below_[after_below] = handle;
  after_below = handle;
}

void ExtentAllocator::unlink(uint32_t handle) {
  const uint32_t below = below_[handle];
  const uint32_t above = above_[handle];
  (below == kNoHandle ? lowest_ : above_[below]) = above;
  if (above != kNoHandle) below_[above] = below;
  below_[handle] = above_[handle] = kNoHandle;
}

}  // namespace umbp
