// The memory of one emulated device, which the host cannot touch at its addresses.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>

namespace fake {

constexpr uint64_t kPage = 4096;

inline uint64_t whole_pages(uint64_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

// Its addresses are mapped without any access; the bytes are reached through a second map of the same file.
class DeviceMemory {
 public:
  DeviceMemory() : file_(memfd_create("fake-device", MFD_CLOEXEC)) {
    if (file_ < 0 || ftruncate(file_, kBytes) != 0) abort();
    base_ = map(PROT_NONE);
    bytes_ = reinterpret_cast<std::byte*>(map(PROT_READ | PROT_WRITE));
  }

  uint64_t allocate(uint64_t nbytes) {
    const uint64_t needed = (nbytes + 2 * kAlignment - 1) / kAlignment * kAlignment;  // a gap after each
    uint64_t at = base_;
    for (const auto& [start, size] : allocations_) {
      if (start - at >= needed) break;
      at = (start + size + 2 * kAlignment - 1) / kAlignment * kAlignment;
    }
    if (at + needed > base_ + kBytes) return 0;
    allocations_[at] = nbytes;
    return at;
  }

  bool release(uint64_t address) {
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return false;
    const uint64_t from = whole_pages(address - base_);
    const uint64_t to = (address - base_ + found->second) / kPage * kPage;
    if (to > from) fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from);
    allocations_.erase(found);
    return true;
  }

  // The allocation that holds `address`; false: none does.
  bool find(uint64_t address, uint64_t* base, uint64_t* nbytes) const {
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return false;
    const auto& [start, size] = *std::prev(after);
    if (address - start >= size) return false;
    *base = start;
    *nbytes = size;
    return true;
  }

  std::byte* bytes_at(uint64_t address) const { return bytes_ + (address - base_); }

 private:
  static constexpr uint64_t kBytes = uint64_t{8} << 30;
  static constexpr uint64_t kAlignment = 512;

  uint64_t map(int protection) const {
    void* at = mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (at == MAP_FAILED) abort();
    return reinterpret_cast<uint64_t>(at);
  }

  int file_;
  uint64_t base_ = 0;
  std::byte* bytes_ = nullptr;
  std::map<uint64_t, uint64_t> allocations_;  // address: bytes
};

}  // namespace fake
