// Streams, events, pinned and device memory that end with their owner.
#pragma once

#include <cstdint>
#include <utility>

#include "device_api.h"
#include "errors.h"

namespace umbp {

// Ends something of the runtime where an error can be told to nobody: the device is lost, or its process ends.
template <class Call>
void end_quietly(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const DeviceError&) {
  }
}

class DeviceStream {
 public:
  DeviceStream(DeviceApi& api, int device, bool high_priority)
      : api_(api), device_(device), stream_(api.create_stream(device, high_priority)) {}
  ~DeviceStream() {
    end_quietly([this] { api_.destroy_stream(device_, stream_); });
  }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  StreamHandle get() const { return stream_; }

 private:
  DeviceApi& api_;
  int device_;
  StreamHandle stream_;
};

class DeviceEvent {
 public:
  DeviceEvent(DeviceApi& api, int device) : api_(api), device_(device), event_(api.create_event(device)) {}
  ~DeviceEvent() {
    end_quietly([this] { api_.destroy_event(device_, event_); });
  }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  EventHandle get() const { return event_; }

 private:
  DeviceApi& api_;
  int device_;
  EventHandle event_;
};

class PinnedBlock {
 public:
  PinnedBlock(DeviceApi& api, int device, uint64_t nbytes)
      : api_(api), memory_(api.allocate_pinned(device, nbytes, &alias_)) {}
  ~PinnedBlock() {
    end_quietly([this] { api_.free_pinned(memory_); });
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  void* memory() const { return memory_; }
  uint64_t alias() const { return alias_; }  // the address as the device sees it

 private:
  DeviceApi& api_;
  uint64_t alias_ = 0;
  void* memory_;
};

class DeviceBlock {
 public:
  DeviceBlock(DeviceApi& api, int device, uint64_t nbytes)
      : api_(api), device_(device), address_(api.allocate_device(device, nbytes)) {}
  ~DeviceBlock() {
    end_quietly([this] { api_.free_device(device_, address_); });
  }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  uint64_t address() const { return address_; }

 private:
  DeviceApi& api_;
  int device_;
  uint64_t address_;
};

}  // namespace umbp
