#include "device_chooser.h"

#include <algorithm>

namespace umbp {
namespace {

// A piece may be this many times as long as the mean run before it is split.
constexpr uint64_t kPieceOverMean = 2;
// Keeps count * parts of the largest launch within kMaxParts.
constexpr uint64_t kMostParts = 65535;

// Runs are alike if the mean one is shorter than the longest by no more than the kAlike-th part.
constexpr uint64_t kAlike = 8;
// Shares that a group of threads gets at least: it asks for the next while it copies one.
constexpr uint64_t kShares = 8;
// The group with most parts has no more than this fraction more than if they were dealt out one by one.
constexpr uint64_t kUnevenness = 64;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

size_t size_class(uint64_t mean) {
  size_t i = 0;
  while (mean >= CopyThresholds::kSteps[i] && i + 1 < CopyThresholds::kClasses) ++i;
  return i;
}

unsigned capped(unsigned grid, unsigned cap) {
  return std::clamp(cap == 0 ? grid : std::min(grid, cap), 1u, kMostBlocks);
}

CopyWay wanted_way(const PlanShape& shape, CopyDirection direction, const CopyThresholds& thresholds,
                   CopyWay asked) {
  if (asked != CopyWay::kAuto) return asked;
  if (direction != CopyDirection::kDeviceToDevice && shape.mean() >= thresholds.dma_from_bytes) {
    return CopyWay::kBatchedDma;
  }
  // A plan that fits into the launch has nothing to read before it begins: only the plain kernel takes it so.
  if (shape.runs <= kSmallPieces) return CopyWay::kKernel;
  return thresholds.bulk[size_class(shape.mean())] ? CopyWay::kBulkKernel : CopyWay::kKernel;
}

CopyWay possible_way(CopyWay way, const PlanShape& shape, CopyDirection direction, const CopyAbilities& abilities) {
  if (way == CopyWay::kBulkKernel && !(abilities.bulk && shape.aligned)) way = CopyWay::kKernel;
  if (way == CopyWay::kKernel && !abilities.kernels) way = CopyWay::kBatchedDma;
  const bool batches = abilities.batched_dma && direction != CopyDirection::kDeviceToDevice;
  if (way == CopyWay::kBatchedDma && !batches) way = CopyWay::kPerFragmentDma;
  return way;
}

const CopyThresholds::Grids& grids_of(const CopyThresholds& thresholds, CopyWay way, CopyDirection direction) {
  const bool outward = direction == CopyDirection::kDeviceToHost;
  if (way == CopyWay::kBulkKernel) return outward ? thresholds.bulk_d2h_grids : thresholds.bulk_h2d_grids;
  return outward ? thresholds.d2h_grids : thresholds.h2d_grids;
}

}  // namespace

PlanShape shape_of(std::span<const Run> runs) {
  PlanShape shape;
  uint64_t bits = 0;
  for (const Run& run : runs) {
    shape.bytes += run.nbytes;
    shape.longest = std::max(shape.longest, run.nbytes);
    bits |= run.src | run.dst | run.nbytes;
  }
  shape.runs = runs.size();
  shape.aligned = bits % kBulkAlignment == 0;
  return shape;
}

size_t window_of(size_t runs, uint64_t mean, uint64_t launch_bytes, size_t most) {
  if (runs == 0) return 0;
  const auto longest = static_cast<size_t>(std::clamp<uint64_t>(launch_bytes / std::max<uint64_t>(1, mean), 1, most));
  const size_t windows = (runs + longest - 1) / longest;
  return (runs + windows - 1) / windows;
}

CopyChoice choose_way(const PlanShape& shape, CopyDirection direction, const CopyThresholds& thresholds,
                      const CopyAbilities& abilities, CopyWay asked) {
  const CopyWay way = possible_way(wanted_way(shape, direction, thresholds, asked), shape, direction, abilities);
  if (way != CopyWay::kKernel && way != CopyWay::kBulkKernel) return {way, 0};
  const unsigned grid = grids_of(thresholds, way, direction)[size_class(shape.mean())];
  return {way, capped(grid, thresholds.grid_cap), capped(2 * grid, thresholds.grid_cap)};
}

PlanCut cut_plan(const PlanShape& shape, uint32_t largest_part) {
  const uint64_t mean = std::max<uint64_t>(shape.mean(), 1);
  const uint64_t tolerated = mean > UINT64_MAX / kPieceOverMean ? UINT64_MAX : mean * kPieceOverMean;
  const uint64_t most = largest_part * kMostParts;
  const uint64_t longest = std::clamp<uint64_t>(std::min(shape.longest, tolerated), 1, most);
  const uint64_t parts = (longest + largest_part - 1) / largest_part;
  const uint64_t part_bytes = std::min<uint64_t>(largest_part, round_up((longest + parts - 1) / parts, kPartUnit));
  return {{0, static_cast<uint32_t>(parts), static_cast<uint32_t>(part_bytes), 1}, parts * part_bytes};
}

PlanCut cut_closely(const PlanShape& shape, uint32_t largest_part) {
  if (shape.longest - shape.longest / kAlike <= shape.mean()) return cut_plan(shape, largest_part);
  const uint64_t longest = std::min<uint64_t>(round_up(shape.longest, kPartUnit), largest_part);
  return {{0, 1, static_cast<uint32_t>(longest), 1}, longest};
}

uint32_t share_of(uint64_t parts, uint64_t groups) {
  const auto divided_up = [](uint64_t value, uint64_t by) { return (value + by - 1) / by; };
  const uint64_t each = divided_up(parts, groups);
  const uint64_t largest = std::clamp<uint64_t>(each / kShares, 1, kMostShare);
  uint64_t best = 1;
  for (uint64_t share = 2; share <= largest; ++share) {
    const uint64_t most = divided_up(divided_up(parts, share), groups) * share;  // parts of the group with most
    if (most <= each + each / kUnevenness) best = share;
  }
  return static_cast<uint32_t>(best);
}

}  // namespace umbp
