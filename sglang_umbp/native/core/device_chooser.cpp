#include "device_chooser.h"

#include <algorithm>

namespace umbp {
namespace {

// A piece may be this many times as long as the mean run before it is split.
constexpr uint64_t kPieceOverMean = 2;
// Keeps count * parts of the largest launch within kMaxParts.
constexpr uint64_t kMostParts = 65535;

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

size_t size_class(uint64_t mean) {
  size_t i = 0;
  while (mean >= CopyThresholds::kSteps[i] && i + 1 < CopyThresholds::kClasses) ++i;
  return i;
}

unsigned capped(unsigned grid, unsigned cap) { return std::max(1u, cap == 0 ? grid : std::min(grid, cap)); }

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

CopyChoice choose_way(const PlanShape& shape, CopyDirection direction, const CopyThresholds& thresholds,
                      const CopyAbilities& abilities, CopyWay asked) {
  const CopyWay way = possible_way(wanted_way(shape, direction, thresholds, asked), shape, direction, abilities);
  if (way != CopyWay::kKernel && way != CopyWay::kBulkKernel) return {way, 0};
  return {way, capped(grids_of(thresholds, way, direction)[size_class(shape.mean())], thresholds.grid_cap)};
}

PlanCut cut_plan(const PlanShape& shape, uint32_t largest_part) {
  const uint64_t mean = std::max<uint64_t>(shape.mean(), 1);
  const uint64_t tolerated = mean > UINT64_MAX / kPieceOverMean ? UINT64_MAX : mean * kPieceOverMean;
  const uint64_t most = largest_part * kMostParts;
  const uint64_t longest = std::clamp<uint64_t>(std::min(shape.longest, tolerated), 1, most);
  const uint64_t parts = (longest + largest_part - 1) / largest_part;
  const uint64_t part_bytes = std::min<uint64_t>(largest_part, round_up((longest + parts - 1) / parts, kPartUnit));
  return {{0, static_cast<uint32_t>(parts), static_cast<uint32_t>(part_bytes), 0}, parts * part_bytes};
}

}  // namespace umbp
