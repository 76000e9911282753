// Host memory that devices may address: registered with the runtime in chunks, and counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "device_api.h"

namespace umbp {

// Thread-safe: one pin or unpin at a time, look-ups meanwhile.
//
// Drivers refuse very large registrations, and a page in two of them; so memory is registered in chunks that end at
// multiples of chunk_bytes, and a page that two ranges share is registered once. Copies must not cross a
// chunk's end: the next chunk may be elsewhere for the device.
class PinnedMemory {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{1} << 30;
  static constexpr uint64_t kLargestPage = uint64_t{2} << 20;

  // What of a range lies in one chunk.
  struct Piece {
    uint64_t nbytes = 0;  // 0: not pinned
    uint64_t alias = 0;   // as devices see the first byte
  };

  // chunk_bytes: a multiple of kLargestPage, else InvalidBatch.
  PinnedMemory(std::shared_ptr<DeviceApi> api, int device, uint64_t chunk_bytes = kChunkBytes);
  ~PinnedMemory();  // unpins everything
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Pins every page of [base, base + nbytes); page_bytes: the page size of that map (4 KiB, 2 MiB). What is pinned
  // already is used and counted once more; what somebody else has registered is used and left to them.
  // read_only: the map does not allow writing. Throws DeviceError, and then nothing of this call stays
  // pinned; RegionError: no bytes, an end beyond 2^64, or page_bytes that is no power of two up to 2 MiB.
  void pin(uint64_t base, uint64_t nbytes, bool read_only = false, uint64_t page_bytes = 4096);

  // Undoes one pin of the same range, when no device uses it any more; the last use of a chunk ends its
  // registration. Throws RegionError: this range is not pinned; DeviceError: the runtime refused, and the
  // range is not counted as pinned any more.
  void unpin(uint64_t base, uint64_t nbytes);

  // How much from `address` on a device may address as one piece.
  Piece at(uint64_t address) const;

  uint64_t pinned_bytes() const;  // registered here; not what others have registered

 private:
  struct Chunk {
    uint64_t end;
    uint64_t alias;
    uint64_t uses;
    bool foreign;  // registered by others
  };
  using Chunks = std::map<uint64_t, Chunk>;  // by their first address; none overlap

  uint64_t add_chunk(uint64_t at, uint64_t base, uint64_t end, bool read_only, uint64_t page_bytes);
  void insert(uint64_t at, const Chunk& chunk);
  Chunks::iterator first_touching(uint64_t address);
  void drop_unused(uint64_t base, uint64_t end);

  std::shared_ptr<DeviceApi> api_;
  int device_;
  uint64_t chunk_bytes_;
  std::mutex pinning_;
  mutable std::shared_mutex mutex_;  // for chunks_, which only who holds pinning_ changes
  Chunks chunks_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> pinned_;  // ranges (base, nbytes) and how often
};

}  // namespace umbp
