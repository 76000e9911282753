// What one copy under way needs: a stream, and room for the plans that its kernels read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device_copier.h"
#include "device_handles.h"
#include "device_queue.h"

namespace umbp {

class DeviceLane {
 public:
  // Bytes of the longest plan of one launch.
  static constexpr size_t kBlockBytes = 1 << 20;

  DeviceLane(DeviceApi& api, int device);
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  // Begins a copy in this lane's own stream, or in the queue that it has a place in.
  void begin(QueuePlace place);
  // Whether the stream had nothing to copy then.
  bool is_first() const { return place_.first(); }
  // The stream of the copy that was begun.
  StreamHandle stream() const { return active_; }

  // What is put into the stream from now on waits for `order`.
  void order_after(const CopyOrder& order);

  // Room for a plan in pinned memory, and where the device finds it, until the copy is done. At most kBlockBytes.
  struct PlanRoom {
    void* memory;
    uint64_t alias;
  };
  PlanRoom plan_room(size_t nbytes);
  // The first `nbytes` of the room that was asked for last hold a plan; the rest is given back.
  void keep_plan(size_t nbytes);

  // The copy's last work is in the stream; it should need about `expected`.
  void mark_end(std::chrono::nanoseconds expected);
  // Returns when that work is done. A short copy is asked for, which brings this thread back 30 us earlier than
  // blocking does; asking the stream saves it the recording of an event (1 us of 17).
  void wait();
  // Waits for whatever is in the stream, after a failure.
  void drain();

 private:
  bool is_done();
  void await_end();

  DeviceApi& api_;
  int device_;
  DeviceStream own_;
  StreamHandle active_;
  QueuePlace place_;
  DeviceEvent end_;
  DeviceEvent before_;
  std::vector<std::unique_ptr<PinnedBlock>> blocks_;  // kept for the next copies
  size_t block_ = 0;  // that plans are being placed in
  size_t used_ = 0;   // bytes of it
  std::chrono::steady_clock::time_point asked_until_;
  bool blocks_at_once_ = false;
  bool end_is_marked_ = false;
};

}  // namespace umbp
