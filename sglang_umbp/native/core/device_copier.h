// Copies runs between pinned host memory and the memory of one device: batched DMA, or a kernel that reads
// or writes the pinned memory directly, chosen after coalescing by the size and number of the runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device_api.h"
#include "errors.h"
#include "planner.h"

namespace umbp {

// What must have happened on the device before a copy begins: the work that the caller has put into a
// stream so far, or up to an event. Both null: nothing.
struct CopyOrder {
  StreamHandle stream = nullptr;
  EventHandle event = nullptr;
};

// Throw DeviceError: the handle that none of these devices can wait for, why, and what they can wait for.
[[noreturn]] void refuse_stream(StreamHandle stream, std::span<const int> devices, const DeviceError& cause);
[[noreturn]] void refuse_event(EventHandle event, const DeviceError& cause);

class DeviceLane;

enum class CopyWay : uint8_t { kAuto, kBatchedDma, kKernel, kBulkKernel, kPerFragmentDma };

// Where the chooser changes its way, and the grids; measured once per device (see device_calibration.h).
struct CopyThresholds {
  // Blocks by mean bytes of a run: entry i of a table is for runs below kSteps[i].
  static constexpr size_t kClasses = 4;
  static constexpr uint64_t kSteps[kClasses] = {4096, 16384, 65536, UINT64_MAX};
  using Grids = std::array<unsigned, kClasses>;

  uint64_t dma_from_bytes = 1 << 20;  // mean bytes of a run from which batched DMA is used
  // What an H200 needs for the link's rate, of blocks of 512 threads; measuring only adds to these.
  Grids h2d_grids{6, 6, 6, 6};  // of the plain kernel
  Grids d2h_grids{3, 3, 2, 2};
  Grids bulk_h2d_grids{6, 4, 4, 4};  // of the bulk kernel
  Grids bulk_d2h_grids{8, 4, 3, 3};
  std::array<bool, kClasses> bulk{};  // the bulk kernel instead of the plain one, where it can be
  // Blocks of copies to the host while there are copies to the device: those send their requests the way that these
  // send their bytes, and wait for each other at the link's full rate.
  unsigned d2h_grid_beside_h2d = 1;
  // Bytes of one launch, about: a kernel of the model whose blocks found the multiprocessors taken gets them after
  // that, 1.4 ms on a PCIe 5 link.
  uint64_t launch_bytes = 72 << 20;
  unsigned grid_cap = 0;              // a setting of the user's, for both kernels; 0: none
};

struct DeviceCopyTotals {
  uint64_t fragments = 0;    // descriptors asked for
  uint64_t descriptors = 0;  // descriptors submitted, after coalescing
  uint64_t calls = 0;        // runtime calls (batches and launches)
  uint64_t bytes = 0;
  uint64_t submit_ns = 0;    // host time from the first to the last runtime call
  uint64_t by_way[5] = {};   // copies by CopyWay
};

// Thread-safe: each copy under way has a lane of its own (stream, event, plan buffers); lanes are made as
// they are needed, up to max_lanes, and a call waits for one when all are taken.
class DeviceCopier {
 public:
  // kernels: the compiled image, empty: no kernel, DMA serves everything.
  DeviceCopier(std::shared_ptr<DeviceApi> api, int device, std::span<const std::byte> kernels,
               const CopyThresholds& thresholds, unsigned max_lanes = 8);
  // Every ticket must have ended.
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  // A copy under way. wait() returns when every byte is where it is to be (device memory, or host memory
  // visible to this thread); throws DeviceError. Destruction waits, too: what a copy reads or writes may be
  // let go after it. The runs need not outlive submit().
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&&) noexcept;
    Ticket& operator=(Ticket&&) noexcept;
    ~Ticket();
    void wait();

   private:
    friend class DeviceCopier;
    Ticket(DeviceCopier* copier, DeviceLane* lane) : copier_(copier), lane_(lane) {}
    DeviceCopier* copier_ = nullptr;
    DeviceLane* lane_ = nullptr;
  };

  // Addresses are as the device sees them (the host side: the alias of registered memory) and are trusted.
  // fragments: how many the runs were before coalescing (for the counters). An exception leaves no copy
  // under way.
  Ticket submit(std::span<const Run> runs, size_t fragments, CopyDirection direction, const CopyOrder& after,
                CopyWay way = CopyWay::kAuto);

  int device() const;
  DeviceApi& api();
  DeviceCopyTotals totals() const;
  void set_totals(const DeviceCopyTotals& totals);  // so that measurements leave no trace in them
  CopyThresholds thresholds() const;
  void set_thresholds(const CopyThresholds& thresholds);
  bool has_kernels() const;
  bool has_bulk_kernel() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace umbp
