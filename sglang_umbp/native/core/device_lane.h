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
  // Runs of one launch: the device copies them (0.6 ms, if they are of 2 KB) while the next ones are planned.
  static constexpr size_t kWindowRuns = 16384;
  // Pieces of one launch at most. Runs are split where they are longer than twice their mean, which makes at most half
  // as many pieces more: one launch is enough for a window.
  static constexpr size_t kBlockPieces = kWindowRuns / 2 * 3;

  DeviceLane(DeviceApi& api, int device);
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  // Begins a copy in this lane's own stream, or (not null) in one that lanes share.
  void begin(StreamHandle shared);
  // The stream of the copy that was begun.
  StreamHandle stream() const { return active_; }

  // What is put into the stream from now on waits for `order`.
  void order_after(const CopyOrder& order);

  // Room for kBlockPieces pieces: block number `i` of this copy. Kept for the next ones.
  CopyPiece* plan_block(size_t i);
  // Where the device finds the pieces of that block in host memory. Reading them there takes time that a kernel which
  // reads host memory anyhow hides.
  uint64_t plan_alias(size_t i) const { return blocks_[i]->pinned.alias(); }
  // The same in device memory, where they are put first, in the stream's order: a kernel that writes to host memory
  // would need three times the blocks otherwise.
  uint64_t send_plan(size_t i, size_t n);

  // The copy's last work is in the stream; it should need about `expected`.
  void mark_end(std::chrono::nanoseconds expected);
  // Returns when that work is done. A short copy is asked for, which brings this thread back 30 us earlier than
  // blocking does; asking the stream saves it the recording of an event (1 us of 17).
  void wait();
  // Waits for whatever is in the stream, after a failure.
  void drain();

 private:
  bool is_done();

  DeviceApi& api_;
  int device_;
  DeviceStream own_;
  StreamHandle active_;
  bool shared_ = false;
  DeviceEvent end_;
  DeviceEvent before_;
  struct PlanBlock {
    PlanBlock(DeviceApi& api, int device, uint64_t nbytes) : pinned(api, device, nbytes), sent(api, device, nbytes) {}
    PinnedBlock pinned;
    DeviceBlock sent;
  };
  std::vector<std::unique_ptr<PlanBlock>> blocks_;
  std::chrono::steady_clock::time_point asked_until_;
  bool blocks_at_once_ = false;
  bool end_is_marked_ = false;
};

}  // namespace umbp
