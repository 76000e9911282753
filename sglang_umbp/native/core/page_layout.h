// Where the fragments of a component's pages lie in the caller's buffers, for every row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace umbp {

// Fragment of page row r: nbytes at address base + r * stride, and at object_offset in the object.
struct LayoutFragment {
  uint64_t base;
  uint64_t stride;
  uint64_t nbytes;
  uint64_t object_offset;
};

// Whether rows of a and b can never share a byte although their extents overlap: both repeat with
// the same stride, at places within it that do not meet. a begins no later than b.
bool interleave(const LayoutFragment& a, const LayoutFragment& b);

// Immutable. Sizes and object offsets do not depend on the row, so a call need only name rows.
class PageLayout {
 public:
  // Throws InvalidBatch unless the fragments tile the object, no address wraps, and no two fragments
  // of any rows overlap.
  PageLayout(uint64_t rows, std::vector<LayoutFragment> fragments);

  uint64_t rows() const { return rows_; }
  uint64_t object_bytes() const { return object_bytes_; }
  std::span<const LayoutFragment> fragments() const { return fragments_; }
  // Bytes from a fragment's base to the end of its last row.
  uint64_t extent(const LayoutFragment& fragment) const {
    return (rows_ - 1) * fragment.stride + fragment.nbytes;
  }

 private:
  void check_addresses() const;
  void check_tiling() const;
  void check_disjoint() const;

  uint64_t rows_;
  std::vector<LayoutFragment> fragments_;
  uint64_t object_bytes_ = 0;
};

}  // namespace umbp
