// What one copy under way needs: a stream, its end as an event, and the plans its kernels read.
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

  // Room for kBlockPieces pieces that devices can read: block number `i` of this copy. Kept for the next ones.
  struct PlanBlock {
    CopyPiece* pieces;
    uint64_t alias;
  };
  PlanBlock plan_block(size_t i);

  // The copy's last work is in the stream; it should need about `expected`.
  void mark_end(std::chrono::nanoseconds expected);
  // Returns when that work is done: sleeps while it is far from due, then asks for a while, then blocks.
  void wait();
  // Waits for whatever is in the stream, after a failure.
  void drain();

 private:
  DeviceApi& api_;
  int device_;
  DeviceStream stream_;
  DeviceEvent end_;
  DeviceEvent before_;
  std::vector<std::unique_ptr<PinnedBlock>> blocks_;
  std::chrono::steady_clock::time_point due_;
};

}  // namespace umbp
