#include "extents.h"

#include <algorithm>
#include <array>
#include <bit>

namespace umbp {
namespace {

constexpr unsigned kDigitBits = 11;
constexpr uint64_t kDigits = uint64_t{1} << kDigitBits;
constexpr size_t kFewExtents = 256;  // below this, clearing the counters costs more than comparing

bool below(const Extent& a, const Extent& b) { return a.address < b.address; }

// What the extents have in common.
struct Outline {
  uint64_t low = UINT64_MAX;
  uint64_t high = 0;
  uint64_t smallest = UINT64_MAX;
  bool ascending = true;
};

Outline outline_of(const std::vector<Extent>& extents) {
  Outline outline;
  uint64_t before = 0;
  for (const Extent& extent : extents) {
    outline.ascending &= extent.address >= before;
    before = extent.address;
    outline.low = std::min(outline.low, extent.address);
    outline.high = std::max(outline.high, extent.address);
    outline.smallest = std::min(outline.smallest, extent.nbytes);
  }
  return outline;
}

// One stable pass of a radix sort by the digit at `shift`. Returns false, leaving `to` alone, if all
// have the same digit.
bool sort_by_digit(const std::vector<Extent>& from, std::vector<Extent>& to, uint64_t low,
                   unsigned shift) {
  const auto digit = [=](const Extent& extent) {
    return (extent.address - low) >> shift & (kDigits - 1);
  };
  std::array<uint32_t, kDigits> ends{};
  for (const Extent& extent : from) ++ends[digit(extent)];
  if (ends[digit(from.front())] == from.size()) return false;
  uint32_t end = 0;
  for (uint32_t& each : ends) {
    const uint32_t count = each;
    each = end;
    end += count;
  }
  Extent* const out = to.data();
  for (const Extent& extent : from) out[ends[digit(extent)]++] = extent;
  return true;
}

// Sorts by address, except that extents which begin in the same cell of 2^cell_bits bytes keep their
// order.
void sort_by_cell(std::vector<Extent>& extents, const Outline& outline, unsigned cell_bits) {
  thread_local std::vector<Extent> buffer;
  std::vector<Extent>& other = buffer;
  other.resize(extents.size());
  const auto bits = static_cast<unsigned>(std::bit_width(outline.high - outline.low));
  for (unsigned shift = cell_bits; shift < bits; shift += kDigitBits)
    if (sort_by_digit(extents, other, outline.low, shift)) extents.swap(other);
}

void sort(std::vector<Extent>& extents, const Outline& outline) {
  if (outline.ascending) return;
  if (extents.size() < kFewExtents || extents.size() > UINT32_MAX)
    return std::sort(extents.begin(), extents.end(), below);
  // Two extents that begin in one cell no larger than either of them overlap, so that their order
  // does not matter and the bits below a cell need not be sorted by.
  sort_by_cell(extents, outline, static_cast<unsigned>(std::bit_width(outline.smallest)) - 1);
}

}  // namespace

std::optional<std::pair<Extent, Extent>> find_overlap(std::vector<Extent>& extents) {
  sort(extents, outline_of(extents));
  for (size_t i = 1; i < extents.size(); ++i) {
    const auto [low, high] = std::minmax(extents[i - 1], extents[i], below);
    if (high.address - low.address < low.nbytes) return std::pair<Extent, Extent>(low, high);
  }
  return std::nullopt;
}

}  // namespace umbp
