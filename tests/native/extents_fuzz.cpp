// Random takes and returns of ExtentAllocator, each compared with a bitmap that is searched naively.
//
//   extents_fuzz STEPS SEED
//
// Exits with 1 at the first difference; prints what it did as pairs of names and integers.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "extent_allocator.h"

namespace {

using namespace umbp;

constexpr uint64_t kGranule = 64;
constexpr uint32_t kHandles = 48;

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("differs: %s\n", what);
  std::exit(1);
}

struct Taken {
  uint64_t offset;
  uint64_t nbytes;
};

class Fuzz {
 public:
  Fuzz(uint64_t granules, uint64_t tail_bytes, uint64_t seed)
      : random_(seed), bitmap_(granules, kNoHandle), extents_(granules * kGranule + tail_bytes, kGranule, kHandles) {}

  void step() {
    // Long stretches that mostly take and long ones that mostly give back, so that both ends are met.
    if (next() % 200 == 0) takes_of_ten_ = 2 + next() % 7;
    const uint32_t handle = next() % kHandles;
    const auto taken = taken_.find(handle);
    if (taken == taken_.end() && next() % 10 < takes_of_ten_) take(handle);
    else if (taken != taken_.end() && next() % 10 >= takes_of_ten_) give_back(handle, taken->second);
    else return;
    check();
  }

  uint64_t takes = 0, refusals = 0, returns = 0;

 private:
  uint64_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }
  static uint64_t granules_of(uint64_t nbytes) { return (nbytes + kGranule - 1) / kGranule; }

  // Of the unbroken free stretches (first, length).
  std::vector<Taken> free_stretches() const {
    std::vector<Taken> stretches;
    for (uint64_t i = 0; i < bitmap_.size(); ++i) {
      if (bitmap_[i] != kNoHandle) continue;
      if (i == 0 || bitmap_[i - 1] != kNoHandle) stretches.push_back({i, 0});
      ++stretches.back().nbytes;
    }
    return stretches;
  }

  std::optional<uint64_t> best_fit(uint64_t granules) const {
    std::optional<Taken> best;
    for (const Taken& stretch : free_stretches())
      if (stretch.nbytes >= granules && (!best || stretch.nbytes < best->nbytes)) best = stretch;
    if (!best) return std::nullopt;
    return best->offset * kGranule;
  }

  void take(uint32_t handle) {
    const uint64_t largest = next() % 8 == 0 ? bitmap_.size() * kGranule : 12 * kGranule;
    const uint64_t nbytes = 1 + next() % largest;
    const auto want = best_fit(granules_of(nbytes));
    const auto got = extents_.take(nbytes, handle);
    expect(got == want, "where an extent is taken");
    if (!got) {
      ++refusals;
      return;
    }
    ++takes;
    fill({*got, nbytes}, handle);
    taken_[handle] = {*got, nbytes};
  }

  void give_back(uint32_t handle, Taken extent) {
    ++returns;
    extents_.give_back(extent.offset, extent.nbytes, handle);
    fill(extent, kNoHandle);
    taken_.erase(handle);
  }

  void fill(const Taken& extent, uint32_t handle) {
    const uint64_t first = extent.offset / kGranule;
    for (uint64_t i = first; i < first + granules_of(extent.nbytes); ++i) {
      expect((bitmap_.at(i) == kNoHandle) != (handle == kNoHandle), "an extent overlaps another");
      bitmap_[i] = handle;
    }
  }

  void check() {
    uint64_t free = 0, largest = 0;
    const std::vector<Taken> stretches = free_stretches();
    for (const Taken& stretch : stretches) {
      free += stretch.nbytes * kGranule;
      largest = std::max(largest, stretch.nbytes * kGranule);
    }
    expect(extents_.free_bytes() == free, "free bytes");
    expect(extents_.largest_free_bytes() == largest, "largest free extent");
    expect(extents_.free_extents() == stretches.size(), "free extents that touch are one");
    uint32_t before = kNoHandle;
    for (uint64_t i = 0; i < bitmap_.size(); ++i) {
      const uint32_t handle = bitmap_[i];
      if (handle == kNoHandle || handle == before) continue;
      expect(extents_.below(handle) == before, "the neighbour below");
      if (before != kNoHandle) expect(extents_.above(before) == handle, "the neighbour above");
      before = handle;
    }
    if (before != kNoHandle) expect(extents_.above(before) == kNoHandle, "nothing above the last");
  }

  uint64_t random_;
  uint64_t takes_of_ten_ = 7;
  std::vector<uint32_t> bitmap_;
  ExtentAllocator extents_;
  std::map<uint32_t, Taken> taken_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const uint64_t steps = std::strtoull(argv[1], nullptr, 10);
  uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  uint64_t takes = 0, refusals = 0, returns = 0;
  constexpr uint64_t kRounds = 20;
  for (uint64_t round = 0; round < kRounds; ++round) {
    Fuzz fuzz(1 + round * 17, round % kGranule, seed++ * 2 + 1);
    for (uint64_t i = 0; i < steps / kRounds; ++i) fuzz.step();
    takes += fuzz.takes;
    refusals += fuzz.refusals;
    returns += fuzz.returns;
  }
  std::printf("takes %lu refusals %lu returns %lu\n", takes, refusals, returns);
  return 0;
}
