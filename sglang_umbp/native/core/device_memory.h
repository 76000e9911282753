// What a pool knows of devices: the runtime, a copier for each device in use, pinned slabs for staging.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device_api.h"
#include "device_copier.h"
#include "mixed_plan.h"
#include "region_table.h"

namespace umbp {

// What the pool's user provides. Each may be called from any thread that is in a call of the pool.
struct DeviceHooks {
  // The copier of a device, asked for once. Throws what the caller of the pool is to see.
  std::function<std::shared_ptr<DeviceCopier>(int device)> make_copier;
  // Called once each: device memory will be read into (writing false) or put from (true): the time to
  // pin the arena. Must not wait for it.
  std::function<void(int device, bool writing)> arena_wanted;
};

// Pinned host memory that a copy goes through.
struct Slab {
  int device = -1;  // that alias is an address of
  std::byte* memory = nullptr;
  uint64_t alias = 0;
  uint64_t nbytes = 0;
};

// Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory(std::shared_ptr<DeviceApi> api, DeviceHooks hooks, uint64_t staging_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  DeviceApi& api() const { return *api_; }
  const std::shared_ptr<DeviceApi>& shared_api() const { return api_; }

  // The region [base, base + nbytes) with kind, device, alias and mode as the runtime says, and a copier if
  // it is in a device. Throws RegionError: not all of one kind and device; DeviceError.
  Region describe(uint64_t base, uint64_t nbytes);
  // An allocation may have gone: what was learnt of addresses from `base` on counts no more.
  void forget(uint64_t base, uint64_t nbytes);

  // The device that memory nobody registered is in, or kHostMemory; empty: the range is not inside one
  // allocation.
  std::optional<int32_t> device_of(uint64_t address, uint64_t nbytes);

  DeviceCopier& copier(int device);
  void want_arena(int device, bool writing);

  // Waits here until what `after` names is done. Throws DeviceError.
  void await(const CopyOrder& after);

  // A slab for one copy at a time; given back by the holder's end.
  class SlabHold {
   public:
    SlabHold(DeviceMemory& memory, int device) : memory_(memory), slab_(memory.take_slab(device)) {}
    ~SlabHold() { memory_.give_back(slab_); }
    SlabHold(const SlabHold&) = delete;
    SlabHold& operator=(const SlabHold&) = delete;
    const Slab& slab() const { return slab_; }

   private:
    DeviceMemory& memory_;
    Slab slab_;
  };

  void count_staged(uint64_t nbytes) { staged_bytes_.fetch_add(nbytes, std::memory_order_relaxed); }
  uint64_t staged_bytes() const { return staged_bytes_.load(std::memory_order_relaxed); }
  DeviceCopyTotals totals();  // of all devices

 private:
  struct Used {
    int device;
    std::shared_ptr<DeviceCopier> copier;
  };
  Slab take_slab(int device);
  void give_back(const Slab& slab) noexcept;
  std::vector<int> devices_in_use();

  std::shared_ptr<DeviceApi> api_;
  DeviceHooks hooks_;
  uint64_t staging_bytes_;
  std::mutex making_;  // one copier is made at a time
  std::mutex mutex_;   // for copiers_, slabs_, known_; never held while a hook runs
  std::vector<Used> copiers_;
  std::vector<Slab> slabs_;
  std::vector<PointerInfo> known_;  // device allocations, ascending bases
  std::atomic<bool> wanted_[2] = {};
  std::atomic<uint64_t> staged_bytes_{0};
};

}  // namespace umbp
