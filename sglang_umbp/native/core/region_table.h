// The caller's registered buffers, sorted by base address.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <vector>

namespace umbp {

enum class MemoryKind : uint8_t { kHost = 0, kPinnedHost = 1, kDevice = 2 };
enum class RegionMode : uint8_t { kPinned = 0, kLocalCopyOnly = 1 };

// Addresses [base, base + nbytes). device is -1 for memory of no device; device_alias is the
// address of `base` as the device sees it (on ROCm and WSL2 it differs from the host address), 0
// where there is none.
struct Region {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int32_t device = -1;
  uint64_t device_alias = 0;
  RegionMode mode = RegionMode::kPinned;
  uint32_t id = 0;
};

// A shared lock where a waiting writer goes before new readers: ranks that read without a pause
// would otherwise keep a registration waiting for ever (std::shared_mutex prefers readers on
// glibc).
class WriterFirstLock {
 public:
  WriterFirstLock();
  ~WriterFirstLock() { pthread_rwlock_destroy(&lock_); }
  WriterFirstLock(const WriterFirstLock&) = delete;
  WriterFirstLock& operator=(const WriterFirstLock&) = delete;

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

// Thread-safe. A thread that holds a View must neither take a second one nor call add, remove, list
// or size: a writer waiting between the two would stop it for ever.
class RegionTable {
 public:
  // Adds a region; its id is given by the table, is never 0 and is never used again. The same
  // region twice is a no-op. grow: the allocation at this base is the same one, and now larger; its
  // id stays. Throws RegionError: zero size, end beyond 2^64, overlap, same base with another size
  // (without grow, or smaller) or with other attributes. The table is then unchanged.
  void add(const Region& region, bool grow = false);

  // Returns its size. Throws RegionError if no region has this base. Waits for the views that are held.
  uint64_t remove(uint64_t base);

  size_t size() const;
  std::vector<Region> list() const;  // ascending bases

  // Look-up for one batch: one shared acquisition from construction to destruction, during which no
  // region comes or goes, so that pointers it returns stay valid. One View belongs to one thread.
  class View {
   public:
    // The region that holds every byte of [address, address + nbytes), else nullptr. Ranges of 0
    // bytes are in none.
    const Region* find(uint64_t address, uint64_t nbytes) const {
      return find(address, nbytes, last_);
    }
    // The same, looking first at `guess`: nullptr, or a region that this view returned.
    const Region* find(uint64_t address, uint64_t nbytes, const Region* guess) const {
      if (guess != nullptr && holds(*guess, address, nbytes)) return guess;
      return search(address, nbytes);
    }

   private:
    friend class RegionTable;
    explicit View(const RegionTable& table);

    // No sum can wrap: a region's end is at most 2^64, so offset and nbytes are compared with what
    // it has left.
    static bool holds(const Region& region, uint64_t address, uint64_t nbytes) {
      const uint64_t offset = address - region.base;
      return address >= region.base && offset < region.nbytes &&
             nbytes - 1 < region.nbytes - offset;
    }
    const Region* search(uint64_t address, uint64_t nbytes) const;

    std::shared_lock<WriterFirstLock> lock_;
    const std::vector<Region>& regions_;
    mutable const Region* last_ = nullptr;
  };

  View view() const { return View(*this); }

  // Views taken so far.
  uint64_t shared_acquisitions() const {
    return shared_acquisitions_.load(std::memory_order_relaxed);
  }

 private:
  mutable WriterFirstLock lock_;
  std::vector<Region> regions_;
  uint32_t last_id_ = 0;
  mutable std::atomic<uint64_t> shared_acquisitions_{0};
};

}  // namespace umbp
