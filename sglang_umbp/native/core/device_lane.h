// What one copy under way needs: a stream, and room for the plans that its kernels read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device_copier.h"
#include "device_handles.h"
#include "device_kernels.h"

namespace umbp {

class DeviceLane {
 public:
  // Pieces of one launch. The first launch of a copy gets fewer, so that the device begins while the
  // others are planned.
  static constexpr size_t kBlockPieces = 16384;
  static constexpr size_t kFirstPieces = 4096;

  DeviceLane(DeviceApi& api, int device);
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  StreamHandle stream() const { return stream_.get(); }

  // What is put into the stream from now on waits for `order`.
  void order_after(const CopyOrder& order);

  // Room for kBlockPieces pieces: block number `i` of this copy. Kept for the next ones.
  CopyPiece* plan_block(size_t i);
  // Puts the first n pieces of that block into device memory, in the stream's order; where the device finds them. A
  // kernel that reads its plan from host memory needs three times the blocks to write at the same rate.
  uint64_t send_plan(size_t i, size_t n);

  // The copy's last work is in the stream; it should need about `expected`.
  void mark_end(std::chrono::nanoseconds expected) { due_ = std::chrono::steady_clock::now() + expected; }
  // Returns when that work is done: sleeps while it is far from due, then asks for a while, then blocks. Asking the
  // stream saves a short copy the recording of an event (1 us of 17).
  void wait();
  // Waits for whatever is in the stream, after a failure.
  void drain();

 private:
  DeviceApi& api_;
  int device_;
  DeviceStream stream_;
  DeviceEvent end_;
  DeviceEvent before_;
  struct PlanBlock {
    PlanBlock(DeviceApi& api, int device)
        : pinned(api, device, kBlockPieces * sizeof(CopyPiece)), sent(api, device, kBlockPieces * sizeof(CopyPiece)) {}
    PinnedBlock pinned;
    DeviceBlock sent;
  };
  std::vector<std::unique_ptr<PlanBlock>> blocks_;
  std::chrono::steady_clock::time_point due_;
};

}  // namespace umbp
