#include "device_even.h"

#include <algorithm>
#include <bit>

namespace umbp {
namespace {

// The addresses of one side of some runs.
class Side {
 public:
  explicit Side(uint64_t first) : first_(first), low_(first), high_(first) {}
  void add(uint64_t address) {
    low_ = std::min(low_, address);
    high_ = std::max(high_, address);
    differing_ |= address ^ first_;
  }
  // The smallest unit, as a power of two, in which they are at most 2^bits - 1 apart.
  uint32_t shift(int bits) const {
    return static_cast<uint32_t>(std::max(0, static_cast<int>(std::bit_width(high_ - low_)) - bits));
  }
  bool has_unit(uint32_t shift) const {
    return differing_ == 0 || static_cast<uint32_t>(std::countr_zero(differing_)) >= shift;
  }
  // Half the distance from either end, rounded up: pieces reach one unit further down than up.
  uint64_t middle(uint32_t shift) const { return low_ + (((((high_ - low_) >> shift) + 1) / 2) << shift); }

 private:
  uint64_t first_;
  uint64_t low_;
  uint64_t high_;
  uint64_t differing_ = 0;
};

}  // namespace

std::optional<EvenCopy> even_of(std::span<const Run> runs, Reach reach) {
  if (runs.empty() || runs.front().nbytes > UINT32_MAX) return {};
  Side src(runs.front().src), dst(runs.front().dst);
  for (const Run& run : runs) {
    if (run.nbytes != runs.front().nbytes) return {};
    src.add(run.src);
    dst.add(run.dst);
  }
  const int bits = reach == Reach::kWhole ? 32 : 31;
  const uint32_t src_shift = src.shift(bits), dst_shift = dst.shift(bits);
  if (!src.has_unit(src_shift) || !dst.has_unit(dst_shift)) return {};
  return EvenCopy{src.middle(src_shift), dst.middle(dst_shift), static_cast<uint32_t>(runs.front().nbytes), src_shift,
                  dst_shift, 0};
}

bool fill_even(std::span<const Run> runs, const EvenCopy& even, EvenCopyPiece* out) {
  uint64_t odd = 0;
  const auto units = [&odd](uint64_t distance, uint32_t shift) {
    const auto unit = static_cast<int32_t>(distance >> shift);
    odd |= distance ^ (static_cast<uint64_t>(int64_t{unit}) << shift);
    return unit;
  };
  for (const Run& run : runs) {
    *out++ = {units(run.src - even.src, even.src_shift), units(run.dst - even.dst, even.dst_shift)};
    odd |= run.nbytes ^ even.nbytes;
  }
  return odd == 0;
}

}  // namespace umbp
