#include "device_memory.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "errors.h"

namespace umbp {
namespace {

constexpr size_t kIdleSlabs = 4;

std::string text_of(uint64_t base, uint64_t nbytes) {
  char text[64];
  std::snprintf(text, sizeof text, "0x%llx + %llu bytes", static_cast<unsigned long long>(base),
                static_cast<unsigned long long>(nbytes));
  return text;
}

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost: return "host memory";
    case MemoryKind::kPinnedHost: return "pinned host memory";
    default: return "device memory";
  }
}

bool holds(const PointerInfo& allocation, uint64_t address, uint64_t nbytes) {
  const uint64_t offset = address - allocation.base;
  return address >= allocation.base && offset < allocation.nbytes &&
         nbytes <= allocation.nbytes - offset;
}

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<DeviceApi> api, DeviceHooks hooks,
                           uint64_t staging_bytes)
    : api_(std::move(api)), hooks_(std::move(hooks)), staging_bytes_(staging_bytes) {}

DeviceMemory::~DeviceMemory() {
  for (const Slab& slab : slabs_) {
    try {
      api_->free_pinned(slab.memory);
    } catch (const Error&) {  // the runtime is gone: so is its memory
    }
  }
}

Region DeviceMemory::describe(uint64_t base, uint64_t nbytes) {
  Region region{base, nbytes};
  if (nbytes == 0 || nbytes - 1 > UINT64_MAX - base) return region;  // the table says what is wrong
  const PointerInfo first = api_->pointer(base);
  const PointerInfo last = api_->pointer(base + (nbytes - 1));
  const bool device_memory = first.kind == MemoryKind::kDevice || last.kind == MemoryKind::kDevice;
  if (device_memory && (first.kind != last.kind || first.device != last.device))
    throw RegionError("cannot register " + text_of(base, nbytes) + ": it begins in " +
                      name_of(first.kind) + " and ends in " + name_of(last.kind) +
                      (first.kind == last.kind ? " of another device" : ""));
  // Pinned only in part is not pinned.
  region.kind = first.kind == last.kind ? first.kind : MemoryKind::kHost;
  region.mode = region.kind == MemoryKind::kHost ? RegionMode::kLocalCopyOnly : RegionMode::kPinned;
  if (region.kind == MemoryKind::kPinnedHost) region.device_alias = first.device_alias;
  if (!device_memory) return region;
  region.device = first.device;
  region.device_alias = first.device_alias != 0 ? first.device_alias : base;
  copier(region.device);
  return region;
}

void DeviceMemory::forget(uint64_t base, uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [&](const PointerInfo& known) {
    return known.base < base + nbytes && base < known.base + known.nbytes;
  });
}

std::optional<int32_t> DeviceMemory::device_of(uint64_t address, uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  auto above = std::upper_bound(
      known_.begin(), known_.end(), address,
      [](uint64_t value, const PointerInfo& known) { return value < known.base; });
  if (above != known_.begin() && holds(above[-1], address, nbytes)) return above[-1].device;
  const PointerInfo info = api_->pointer(address);
  if (info.kind != MemoryKind::kDevice) return kHostMemory;
  if (info.nbytes == 0) return info.device;  // the runtime cannot tell where it ends
  if (!holds(info, address, nbytes)) return std::nullopt;
  std::erase_if(known_, [&](const PointerInfo& known) {
    return known.base < info.base + info.nbytes && info.base < known.base + known.nbytes;
  });
  above = std::upper_bound(
      known_.begin(), known_.end(), info.base,
      [](uint64_t value, const PointerInfo& known) { return value < known.base; });
  known_.insert(above, info);
  return info.device;
}

DeviceCopier& DeviceMemory::copier(int device) {
  const auto find = [&]() -> DeviceCopier* {
    const std::lock_guard lock(mutex_);
    for (const Used& used : copiers_)
      if (used.device == device) return used.copier.get();
    return nullptr;
  };
  if (DeviceCopier* known = find()) return *known;
  const std::lock_guard making(making_);
  if (DeviceCopier* known = find()) return *known;
  std::shared_ptr<DeviceCopier> made = hooks_.make_copier(device);
  if (!made) throw DeviceError("there is no copier for device " + std::to_string(device));
  const std::lock_guard lock(mutex_);
  return *copiers_.emplace_back(Used{device, std::move(made)}).copier;
}

void DeviceMemory::want_arena(int device, bool writing) {
  std::atomic<bool>& wanted = wanted_[writing ? 1 : 0];
  if (wanted.load(std::memory_order_relaxed) || wanted.exchange(true)) return;
  if (hooks_.arena_wanted) hooks_.arena_wanted(device, writing);
}

std::vector<int> DeviceMemory::devices_in_use() {
  std::vector<int> devices;
  const std::lock_guard lock(mutex_);
  for (const Used& used : copiers_) devices.push_back(used.device);
  if (devices.empty()) devices.push_back(0);
  return devices;
}

// A handle does not say of which device it is, and some runtimes want it to be the current one.
void DeviceMemory::await(const CopyOrder& after) {
  const std::vector<int> devices = devices_in_use();
  const auto on_any = [&](const auto& wait, const auto& refuse) {
    for (size_t i = 0; i < devices.size(); ++i) {
      try {
        return wait(devices[i]);
      } catch (const DeviceError& cause) {
        if (i + 1 == devices.size()) refuse(cause);
      }
    }
  };
  if (after.event != nullptr)
    on_any([&](int device) { api_->synchronize_event(device, after.event); },
           [&](const DeviceError& cause) { refuse_event(after.event, cause); });
  if (after.stream != nullptr)
    on_any([&](int device) { api_->synchronize_stream(device, after.stream); },
           [&](const DeviceError& cause) { refuse_stream(after.stream, devices, cause); });
}

Slab DeviceMemory::take_slab(int device) {
  {
    const std::lock_guard lock(mutex_);
    const auto idle = std::find_if(slabs_.begin(), slabs_.end(),
                                   [&](const Slab& slab) { return slab.device == device; });
    if (idle != slabs_.end()) {
      const Slab slab = *idle;
      slabs_.erase(idle);
      return slab;
    }
  }
  Slab slab{device, nullptr, 0, staging_bytes_};
  slab.memory = static_cast<std::byte*>(api_->allocate_pinned(device, staging_bytes_, &slab.alias));
  return slab;
}

void DeviceMemory::give_back(const Slab& slab) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (slabs_.size() < kIdleSlabs) {
        slabs_.push_back(slab);
        return;
      }
    }
    api_->free_pinned(slab.memory);
  } catch (...) {  // at worst the slab is not used again
  }
}

DeviceCopyTotals DeviceMemory::totals() {
  DeviceCopyTotals sum;
  const std::lock_guard lock(mutex_);
  for (const Used& used : copiers_) {
    const DeviceCopyTotals one = used.copier->totals();
    sum.fragments += one.fragments;
    sum.descriptors += one.descriptors;
    sum.calls += one.calls;
    sum.bytes += one.bytes;
    sum.submit_ns += one.submit_ns;
    for (size_t way = 0; way < std::size(sum.by_way); ++way) sum.by_way[way] += one.by_way[way];
  }
  return sum;
}

}  // namespace umbp
