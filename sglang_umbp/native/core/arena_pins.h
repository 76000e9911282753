// Which parts of the arena a device may address, and how it addresses them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device_api.h"
#include "pinned_memory.h"

namespace umbp {

// Pins one map of the arena chunk by chunk from its start, so that copies use what is done while the
// rest goes on. Chunks end at multiples of their size in the address space, and so of 2 MiB: no page, of whatever
// size, lies in two of them. Thread-safe: at() takes no lock, and two that pin take turns.
class ArenaPins {
 public:
  // chunk_bytes: a multiple of 2 MiB.
  ArenaPins(std::shared_ptr<DeviceApi> api, uint64_t arena_bytes, uint64_t chunk_bytes);
  ~ArenaPins() { unpin(); }
  ArenaPins(const ArenaPins&) = delete;
  ArenaPins& operator=(const ArenaPins&) = delete;

  // Pins the map at `base` until all is pinned or `stop` says so, which is asked before each chunk. What is
  // pinned already stays; a chunk that others have registered is used and left to them. Returns the bytes that this
  // call pinned. Throws DeviceError, also where others have registered a part of a chunk: the chunks before that
  // one stay pinned.
  uint64_t pin(int device, std::byte* base, bool read_only, const std::function<bool()>& stop);
  // No device may be using it any more. The map must still be there.
  void unpin() noexcept;

  // The pinned bytes from `offset` on that lie in one chunk: how many, and where the device sees them.
  struct Piece {
    uint64_t nbytes;  // 0: not pinned
    uint64_t alias;   // where the device sees the first of them
    uint64_t rest;    // up to there all is pinned, or nothing
  };
  Piece at(uint64_t offset) const {
    const uint64_t lead = lead_.load(std::memory_order_acquire);
    if (lead == kNoMap) return {0, 0, arena_bytes_ - offset};
    const uint64_t place = offset + lead;
    const uint64_t chunk = place / chunk_bytes_;
    const uint64_t rest = (chunk + 1) * chunk_bytes_ - place;
    const uint64_t alias = aliases_[chunk].load(std::memory_order_acquire);
    if (alias == 0) return {0, 0, rest};
    return {rest, alias + (chunk == 0 ? offset : place - chunk * chunk_bytes_), rest};
  }

  uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
  uint64_t arena_bytes() const { return arena_bytes_; }

 private:
  static constexpr uint64_t kNoMap = UINT64_MAX;

  uint64_t begin_of(size_t chunk) const;  // offsets in the arena
  uint64_t end_of(size_t chunk) const;
  uint64_t pin_chunk(uint64_t base, uint64_t nbytes, bool read_only);

  std::shared_ptr<DeviceApi> api_;
  uint64_t arena_bytes_;
  uint64_t chunk_bytes_;
  std::mutex mutex_;  // for pinning and unpinning
  std::optional<PinnedMemory> memory_;
  std::byte* base_ = nullptr;
  std::atomic<uint64_t> lead_{kNoMap};  // bytes from a multiple of chunk_bytes to the map's start
  std::vector<std::atomic<uint64_t>> aliases_;  // of each chunk's first byte; 0: not pinned
  std::atomic<uint64_t> pinned_bytes_{0};
};

}  // namespace umbp
