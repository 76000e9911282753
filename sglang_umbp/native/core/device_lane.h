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
  // Runs of one launch, the i-th of a copy: the device begins with the first ones while the others are planned. More in
  // one launch, because between two of them it has nothing to do for some 30 us, and beside other kernels waits for
  // room.
  static constexpr size_t window_runs(size_t i) { return i == 0 ? 16384 : 131072; }
  // Pieces of one launch at most. Runs are split where they are longer than twice their mean, which makes at most half
  // as many pieces more: one launch is enough for a window.
  static constexpr size_t block_pieces(size_t i) { return window_runs(i) / 2 * 3; }

  DeviceLane(DeviceApi& api, int device);
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  StreamHandle stream() const { return stream_.get(); }

  // What is put into the stream from now on waits for `order`.
  void order_after(const CopyOrder& order);

  // Room for block_pieces(i) pieces: block number `i` of this copy. Kept for the next ones.
  CopyPiece* plan_block(size_t i);
  // Puts the first n pieces of that block into device memory, in the stream's order; where the device finds them. A
  // kernel that reads its plan from host memory needs three times the blocks to write at the same rate.
  uint64_t send_plan(size_t i, size_t n);

  // The copy's last work is in the stream; it should need about `expected`.
  void mark_end(std::chrono::nanoseconds expected);
  // Returns when that work is done. A short copy is asked for, which brings this thread back 30 us earlier than
  // blocking does; asking the stream saves it the recording of an event (1 us of 17).
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
    PlanBlock(DeviceApi& api, int device, uint64_t nbytes) : pinned(api, device, nbytes), sent(api, device, nbytes) {}
    PinnedBlock pinned;
    DeviceBlock sent;
  };
  std::vector<std::unique_ptr<PlanBlock>> blocks_;
  std::chrono::steady_clock::time_point asked_until_;
  bool end_is_marked_ = false;
};

}  // namespace umbp
