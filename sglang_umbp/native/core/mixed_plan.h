// The runs of a batch whose memory lies in devices, or partly in devices and partly in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "add_fragment.h"
#include "run_room.h"

namespace umbp {

inline constexpr int32_t kHostMemory = -1;  // where others have the number of a device

// What goes between the arena and the memory of one device. Addresses of the arena are the host's.
struct DevicePlan {
  explicit DevicePlan(int32_t number) : device(number), builder(room.runs()) {}
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  const std::vector<Run>& runs() const { return room.runs(); }

  int32_t device;
  size_t fragments = 0;
  RunRoom room;
  RunBuilder builder;
};

// One stream of fragments as the runs of each place; the order within a place is that of the stream.
class MixedPlan {
 public:
  // device: kHostMemory, or the device that `memory` is in.
  template <Direction direction>
  void add(int32_t device, uint64_t object, uint64_t memory, uint64_t nbytes, uint32_t region) {
    DevicePlan& plan = plan_of(device);
    ++plan.fragments;
    add_fragment<direction>(plan.builder, object, memory, nbytes, region);
  }

  // Emits the open runs; nothing is added after it.
  void finish() {
    host_.builder.finish();
    for (DevicePlan& plan : devices_) plan.builder.finish();
  }

  const std::vector<Run>& host_runs() const { return host_.runs(); }
  const std::deque<DevicePlan>& devices() const { return devices_; }

 private:
  DevicePlan& plan_of(int32_t device) {
    if (device == kHostMemory) return host_;
    if (last_ != nullptr && last_->device == device) return *last_;
    for (DevicePlan& plan : devices_)
      if (plan.device == device) return *(last_ = &plan);
    return *(last_ = &devices_.emplace_back(device));
  }

  DevicePlan host_{kHostMemory};
  std::deque<DevicePlan> devices_;
  DevicePlan* last_ = nullptr;
};

}  // namespace umbp
