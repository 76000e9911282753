// Every address that an emulated runtime knows: memory of its devices and pinned host memory.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "fake_device_memory.h"
#include "fake_notes.h"
#include "fake_registrations.h"

namespace fake {

constexpr int kMaxDevices = 8;

// What a runtime tells of an address.
struct Place {
  enum Kind { kUnknown = 0, kHost = 1, kDevice = 2 } kind = kUnknown;
  int device = -1;
  uint64_t base = 0;    // of the allocation or registration, as the host sees it
  uint64_t nbytes = 0;
  uint64_t offset = 0;  // of the address in it
  uint64_t alias = 0;   // of the address, as devices see it
};

// Thread-safe. What frees memory asks nobody whether it is in use.
class Addresses {
 public:
  explicit Addresses(Notes& notes) : notes_(notes) {}

  Place look_up(uint64_t address) {
    std::lock_guard lock(mutex_);
    Place place;
    place.device = find_device(address, &place.base, &place.nbytes);
    if (place.device >= 0) {
      place.kind = Place::kDevice;
      place.offset = address - place.base;
      place.alias = address;
    } else if (const Registration* known = registrations_.find(address, true)) {
      const uint64_t offset = known->offset_of(address);
      place = {Place::kHost, -1, known->base, known->nbytes, offset, known->alias + offset};
    }
    return place;
  }

  // Where [address, address + nbytes) really is; null: a device may not go there. Copies may name host memory by
  // its host address, kernels only by its alias.
  std::byte* resolve(uint64_t address, uint64_t nbytes, bool writes, bool by_host_address) {
    std::lock_guard lock(mutex_);
    if (std::byte* at = device_bytes(address, nbytes)) return at;
    const Registration* known = registrations_.find(address, by_host_address);
    if (known == nullptr || (writes && known->read_only)) return nullptr;
    const uint64_t offset = known->offset_of(address);
    if (nbytes > known->nbytes - offset) return nullptr;
    return reinterpret_cast<std::byte*>(known->base + offset);
  }

  // ---- memory of devices

  // 0: there is no room.
  uint64_t allocate(int device, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    auto& memory = memories_[device];
    if (!memory) memory = std::make_unique<DeviceMemory>();
    return memory->allocate(nbytes);
  }
  bool release(uint64_t address) {
    std::lock_guard lock(mutex_);
    for (auto& memory : memories_)
      if (memory && memory->release(address)) return true;
    return false;
  }
  // Copies that wait for nothing: for the test itself, which sees what is there now.
  bool peek(uint64_t address, void* to, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    std::byte* at = device_bytes(address, nbytes);
    if (at != nullptr) std::memcpy(to, at, nbytes);
    return at != nullptr;
  }
  bool poke(uint64_t address, const void* from, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    std::byte* at = device_bytes(address, nbytes);
    if (at != nullptr) std::memcpy(at, from, nbytes);
    return at != nullptr;
  }

  // ---- pinned memory

  int register_host(uint64_t base, uint64_t nbytes, bool read_only) {
    if (base == 0 || nbytes == 0) return notes_.refuse(kInvalidValue, "registration of no memory");
    if (nbytes > static_cast<uint64_t>(notes_.knob("max_register_bytes")))
      return notes_.refuse(kInvalidValue, "registration larger than drivers take in one call");
    if (notes_.knob("hugepages") != 0 && (base % (2 << 20) != 0 || nbytes % (2 << 20) != 0))
      return notes_.refuse(kInvalidValue, "registration of hugepages in part");
    if (notes_.note("registrations") == static_cast<uint64_t>(notes_.knob("fail_register_at")))
      return notes_.refuse(kOutOfMemory, "registration refused as the test asked");
    const int access = map_access(base, nbytes);
    if (access == 0) return notes_.refuse(kInvalidValue, "registration of memory that is not mapped");
    if (access == PROT_READ && !read_only)
      return notes_.refuse(kInvalidValue, "registration of a read-only map for writing");
    std::lock_guard lock(mutex_);
    if (registrations_.overlaps(base, nbytes)) return notes_.refuse(kAlreadyRegistered, "a page registered twice");
    registrations_.add({base, nbytes, 0, read_only, false}, separate());
    return kOk;
  }
  int unregister_host(uint64_t base) {
    std::lock_guard lock(mutex_);
    return registrations_.remove(base, false) ? kOk : kNotRegistered;
  }
  // 0: there is no memory.
  uint64_t allocate_host(uint64_t nbytes) {
    void* at = mmap(nullptr, whole_pages(nbytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 0;
    std::lock_guard lock(mutex_);
    registrations_.add({reinterpret_cast<uint64_t>(at), nbytes, 0, false, true}, separate());
    return reinterpret_cast<uint64_t>(at);
  }
  int free_host(uint64_t base) {
    const Place place = look_up(base);
    {
      std::lock_guard lock(mutex_);
      if (!registrations_.remove(base, true)) return kInvalidValue;
    }
    munmap(reinterpret_cast<void*>(base), whole_pages(place.nbytes));
    return kOk;
  }
  uint64_t registered() {
    std::lock_guard lock(mutex_);
    return registrations_.size();
  }

 private:
  bool separate() { return notes_.knob("separate_aliases") != 0; }

  int find_device(uint64_t address, uint64_t* base, uint64_t* nbytes) const {
    for (int device = 0; device < kMaxDevices; ++device)
      if (memories_[device] && memories_[device]->find(address, base, nbytes)) return device;
    return -1;
  }
  std::byte* device_bytes(uint64_t address, uint64_t nbytes) const {
    uint64_t base, size;
    const int device = find_device(address, &base, &size);
    if (device < 0 || nbytes > size - (address - base)) return nullptr;
    return memories_[device]->bytes_at(address);
  }

  Notes& notes_;
  std::mutex mutex_;
  std::unique_ptr<DeviceMemory> memories_[kMaxDevices];
  Registrations registrations_;
};

}  // namespace fake
