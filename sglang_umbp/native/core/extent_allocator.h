// Where objects lie in the arena: best fit over offsets, neighbours joined when they are freed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace umbp {

// Offsets and sizes are multiples of the granule. Not thread-safe: the owner's mutex guards it.
class ExtentAllocator {
 public:
  ExtentAllocator(uint64_t arena_bytes, uint64_t granule);

  // The smallest free extent that fits, the lowest of equals; nothing when none fits.
  std::optional<uint64_t> take(uint64_t nbytes);
  void give_back(uint64_t offset, uint64_t nbytes);

  uint64_t arena_bytes() const { return arena_bytes_; }
  // What an object of nbytes takes.
  uint64_t rounded(uint64_t nbytes) const { return (nbytes + granule_ - 1) / granule_ * granule_; }
  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest_free_bytes() const;
  size_t free_extents() const { return by_offset_.size(); }

 private:
  void insert(uint64_t offset, uint64_t nbytes);
  void erase(std::map<uint64_t, uint64_t>::iterator extent);

  uint64_t granule_;
  uint64_t arena_bytes_;
  uint64_t free_bytes_ = 0;
  std::map<uint64_t, uint64_t> by_offset_;              // offset -> nbytes
  std::set<std::pair<uint64_t, uint64_t>> by_size_;     // (nbytes, offset)
};

}  // namespace umbp
