// Where objects lie in the arena: best fit over offsets, neighbours joined when they are freed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shared_layout.h"

namespace umbp {

// Offsets and sizes are multiples of the granule. Each extent that is taken belongs to a handle, and the
// handles are linked in the order of their addresses (8 bytes each), so that eviction can make one
// unbroken extent out of neighbours. Not thread-safe: the owner's mutex guards it.
class ExtentAllocator {
 public:
  ExtentAllocator(uint64_t arena_bytes, uint64_t granule, uint32_t handle_count);

  // The smallest free extent that fits, the lowest of equals; nothing when none fits.
  std::optional<uint64_t> take(uint64_t nbytes, uint32_t handle);
  void give_back(uint64_t offset, uint64_t nbytes, uint32_t handle);

  // The handles of the taken extents next to this one's, whatever is free between; kNoHandle at the ends.
  uint32_t lowest() const { return lowest_; }
  uint32_t below(uint32_t handle) const { return below_[handle]; }
  uint32_t above(uint32_t handle) const { return above_[handle]; }

  uint64_t arena_bytes() const { return arena_bytes_; }
  // What an object of nbytes takes.
  uint64_t rounded(uint64_t nbytes) const { return (nbytes + granule_ - 1) / granule_ * granule_; }
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_free_bytes() const;
  size_t free_extents() const { return by_offset_.size(); }

 private:
  struct Free {
    uint64_t nbytes;
    uint32_t below;  // the taken extent that ends where this one begins
  };
  using FreeExtents = std::map<uint64_t, Free>;

  void insert(uint64_t offset, const Free& extent);
  void erase(FreeExtents::iterator extent);
  void link(uint32_t below, uint32_t handle);
  void unlink(uint32_t handle);

  uint64_t granule_;
  uint64_t arena_bytes_;
  uint64_t free_bytes_ = 0;
  FreeExtents by_offset_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (nbytes, offset)
  std::vector<uint32_t> below_;
  std::vector<uint32_t> above_;
  uint32_t lowest_ = kNoHandle;
};

}  // namespace umbp
