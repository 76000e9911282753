#include "page_layout.h"

#include <algorithm>
#include <string>

#include "errors.h"

namespace umbp {
namespace {

std::string describe(const LayoutFragment& fragment) {
  return "base " + std::to_string(fragment.base) + ", stride " + std::to_string(fragment.stride) +
         ", " + std::to_string(fragment.nbytes) + " bytes";
}

}  // namespace

bool interleave(const LayoutFragment& a, const LayoutFragment& b) {
  if (a.stride != b.stride || a.stride == 0) return false;
  const uint64_t distance = (b.base - a.base) % a.stride;
  return distance >= a.nbytes && distance + b.nbytes <= a.stride;
}

PageLayout::PageLayout(uint64_t rows, std::vector<LayoutFragment> fragments)
    : rows_(rows), fragments_(std::move(fragments)) {
  if (rows_ == 0) throw InvalidBatch("a page layout needs at least one row; got 0");
  if (fragments_.empty()) throw InvalidBatch("a page layout needs at least one fragment; got none");
  check_addresses();
  for (const LayoutFragment& fragment : fragments_) object_bytes_ += fragment.nbytes;
  check_tiling();
  check_disjoint();
}

void PageLayout::check_addresses() const {
  for (const LayoutFragment& fragment : fragments_) {
    if (fragment.nbytes == 0)
      throw InvalidBatch("a fragment of 0 bytes (" + describe(fragment) + ") is not allowed");
    uint64_t extent;
    uint64_t end;
    if (__builtin_mul_overflow(rows_ - 1, fragment.stride, &extent) ||
        __builtin_add_overflow(extent, fragment.nbytes, &extent) ||
        __builtin_add_overflow(fragment.base, extent - 1, &end))
      throw InvalidBatch("fragment (" + describe(fragment) + ") with " + std::to_string(rows_) +
                         " rows ends beyond 2^64");
  }
}

void PageLayout::check_tiling() const {
  std::vector<LayoutFragment> sorted = fragments_;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.object_offset < b.object_offset; });
  uint64_t at = 0;
  for (const LayoutFragment& fragment : sorted) {
    if (fragment.object_offset != at)
      throw InvalidBatch("fragments must tile the object: expected one at object offset " +
                         std::to_string(at) + ", the next is at " +
                         std::to_string(fragment.object_offset));
    if (__builtin_add_overflow(at, fragment.nbytes, &at))
      throw InvalidBatch("an object of 2^64 bytes is not allowed");
  }
}

void PageLayout::check_disjoint() const {
  std::vector<LayoutFragment> sorted = fragments_;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.base < b.base; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const LayoutFragment& a = sorted[i];
    if (rows_ > 1 && a.stride < a.nbytes)
      throw InvalidBatch("rows of a fragment overlap (" + describe(a) +
                         "): the stride must be at least its size");
    for (size_t j = i + 1; j < sorted.size() && sorted[j].base - a.base < extent(a); ++j)
      if (!interleave(a, sorted[j]))
        throw InvalidBatch("fragments overlap: (" + describe(a) + ") and (" +
                           describe(sorted[j]) + ")");
  }
}

}  // namespace umbp
