#include "device_calibration.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <vector>

#include "device_handles.h"
#include "device_kernels.h"

namespace umbp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBufferBytes = 64 << 20;
constexpr uint64_t kCopyBytes = kBufferBytes / 2;
constexpr int kRepeats = 2;
// Time that fewer blocks may need more than the best number: what is measured is short, and noisy by half as much.
constexpr double kTolerated = 1.08;
// What the bulk kernel must gain: beside a matrix product both leave it the same (measured on an H200).
constexpr double kBulkGain = 0.97;

constexpr std::array<uint64_t, CopyThresholds::kClasses> kRunBytes = {1728, 8448, 32768, 131072};
constexpr unsigned kPlainGrids[] = {2, 3, 4, 6, 8, 12, 16};
constexpr unsigned kBulkGrids[] = {3, 4, 6, 8, 12};
// Shorter runs are not tried: DMA of them is slower by little, which 8 MiB do not show reliably, and a CPU needs long
// to submit it (0.5 us a run).
constexpr uint64_t kDmaRunBytes[] = {524288, 1048576, 2097152, 8388608};

// Without what keeps copies from being as fast as they can be.
CopyThresholds unbound(CopyThresholds thresholds) {
  thresholds.grid_cap = 0;
  thresholds.d2h_grid_beside_h2d = kMostBlocks;
  return thresholds;
}

class Bench {
 public:
  explicit Bench(DeviceCopier& copier)
      : copier_(copier),
        before_(copier.thresholds()),
        totals_(copier.totals()),
        pinned_(copier.api(), copier.device(), kBufferBytes),
        device_(copier.api(), copier.device(), kBufferBytes) {}
  ~Bench() {
    copier_.set_thresholds(before_);
    copier_.set_totals(totals_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const CopyThresholds& before() const { return before_; }

  double time_ns(uint64_t run_bytes, CopyDirection direction, CopyWay way) {
    const std::vector<Run> runs = scattered(run_bytes, direction);
    copy(runs, direction, way);
    double best = 0;
    for (int i = 0; i < kRepeats; ++i) {
      const auto begin = Clock::now();
      copy(runs, direction, way);
      const double ns = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
      best = i == 0 ? ns : std::min(best, ns);
    }
    return best;
  }

  // Of those that are no smaller than `least`.
  GridTime best_grid(uint64_t run_bytes, CopyDirection direction, CopyWay way, std::span<const unsigned> grids,
                     unsigned least) {
    std::vector<GridTime> times;
    for (const unsigned grid : grids) {
      if (grid < least) continue;
      CopyThresholds tried = unbound(before_);
      for (auto* table : {&tried.h2d_grids, &tried.d2h_grids, &tried.bulk_h2d_grids, &tried.bulk_d2h_grids}) {
        table->fill(grid);
      }
      copier_.set_thresholds(tried);
      times.push_back({grid, time_ns(run_bytes, direction, way)});
    }
    return fewest_blocks(times);
  }

 private:
  void copy(const std::vector<Run>& runs, CopyDirection direction, CopyWay way) {
    copier_.submit(runs, runs.size(), direction, {}, way).wait();
  }

  // Every second place of one buffer, to places in another order of the other one: no two runs are neighbours.
  std::vector<Run> scattered(uint64_t run_bytes, CopyDirection direction) const {
    const uint64_t places = kBufferBytes / run_bytes;
    const uint64_t count = std::max<uint64_t>(1, kCopyBytes / run_bytes);
    const uint64_t step = places / 2 * 2 > 2 ? (places / 3) | 1 : 1;
    std::vector<Run> runs;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t host = pinned_.alias() + i * 2 % places * run_bytes;
      const uint64_t device = device_.address() + i * step % places * run_bytes;
      const bool inward = direction == CopyDirection::kHostToDevice;
      runs.push_back(inward ? Run{host, device, run_bytes} : Run{device, host, run_bytes});
    }
    return runs;
  }

  DeviceCopier& copier_;
  CopyThresholds before_;
  DeviceCopyTotals totals_;
  PinnedBlock pinned_;
  DeviceBlock device_;
};

struct ClassGrids {
  unsigned plain;
  unsigned bulk;
};

struct ClassTimes {
  GridTime plain;
  GridTime bulk;
};

// least: the smallest grids to try.
ClassTimes measure_class(Bench& bench, bool with_bulk, uint64_t run_bytes, CopyDirection direction,
                         const ClassGrids& least) {
  ClassTimes times{bench.best_grid(run_bytes, direction, CopyWay::kKernel, kPlainGrids, least.plain), {least.bulk, 0}};
  if (with_bulk) times.bulk = bench.best_grid(run_bytes, direction, CopyWay::kBulkKernel, kBulkGrids, least.bulk);
  return times;
}

// The shortest runs from which DMA is at least as fast as the kernels, for these and all longer ones.
uint64_t measure_dma(Bench& bench, DeviceCopier& copier, const CopyThresholds& made) {
  copier.set_thresholds(unbound(made));
  uint64_t from = UINT64_MAX;
  for (auto bytes = std::rbegin(kDmaRunBytes); bytes != std::rend(kDmaRunBytes); ++bytes) {
    const CopyWay kernel = made.bulk[CopyThresholds::kClasses - 1] ? CopyWay::kBulkKernel : CopyWay::kKernel;
    const CopyDirection in = CopyDirection::kHostToDevice, out = CopyDirection::kDeviceToHost;
    const double by_dma =
        bench.time_ns(*bytes, in, CopyWay::kBatchedDma) + bench.time_ns(*bytes, out, CopyWay::kBatchedDma);
    const double by_kernel = bench.time_ns(*bytes, in, kernel) + bench.time_ns(*bytes, out, kernel);
    if (by_dma > by_kernel) break;
    from = *bytes;
  }
  return from;
}

}  // namespace

GridTime fewest_blocks(std::span<const GridTime> times) {
  double best = times[0].ns;
  for (const GridTime& time : times) best = std::min(best, time.ns);
  GridTime fewest{0, 0};
  for (const GridTime& time : times) {
    if (time.ns <= best * kTolerated && (fewest.grid == 0 || time.grid < fewest.grid)) fewest = time;
  }
  return fewest;
}

CopyThresholds calibrate(DeviceCopier& copier) {
  if (!copier.has_kernels()) return copier.thresholds();
  Bench bench(copier);
  const CopyThresholds usual;
  CopyThresholds made = bench.before();
  const bool with_bulk = copier.has_bulk_kernel();
  for (size_t i = 0; i < CopyThresholds::kClasses; ++i) {
    const ClassTimes in = measure_class(bench, with_bulk, kRunBytes[i], CopyDirection::kHostToDevice,
                                        {usual.h2d_grids[i], usual.bulk_h2d_grids[i]});
    const ClassTimes out = measure_class(bench, with_bulk, kRunBytes[i], CopyDirection::kDeviceToHost,
                                         {usual.d2h_grids[i], usual.bulk_d2h_grids[i]});
    made.h2d_grids[i] = in.plain.grid, made.bulk_h2d_grids[i] = in.bulk.grid;
    made.d2h_grids[i] = out.plain.grid, made.bulk_d2h_grids[i] = out.bulk.grid;
    made.bulk[i] = with_bulk && in.bulk.ns < in.plain.ns * kBulkGain && out.bulk.ns < out.plain.ns * kBulkGain;
  }
  made.dma_from_bytes = measure_dma(bench, copier, made);
  return made;
}

}  // namespace umbp
