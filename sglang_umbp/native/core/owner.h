// The one who inserts, removes and evicts. Batches go through it in three steps: allocate (one pass
// under the mutex), copy (the caller, without it), commit (one pass).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "client_list.h"
#include "counted_mutex.h"
#include "deadline.h"
#include "log2_histogram.h"
#include "object_table.h"
#include "put_item.h"
#include "space.h"

namespace umbp {

struct OwnerConfig {
  uint64_t capacity_bytes = 0;
  uint32_t entry_count = 0;
  MappingOptions memory;
  std::string policy = "lru";
  double high_watermark = 0;  // fraction of capacity; 0 = off
  double low_watermark = 0;
};

struct OwnerStats {
  SpaceTotals space;
  uint64_t objects = 0;
  uint64_t capacity_bytes = 0;
  uint64_t arena_bytes = 0;
  uint64_t locks = 0;
  uint64_t clients = 0;
  uint64_t stored_bytes = 0;
  uint64_t entry_count = 0;
  uint64_t evicted_for_entries = 0;  // because the index was full before the bytes were
  std::array<uint64_t, kStatusCount> puts_by_status{};
  Log2Histogram::Snapshot put_waits;  // for room, or for another put of the key; puts that waited
};

// One client as its owner sees it.
struct ClientReport {
  uint32_t id = 0;
  pid_t pid = 0;
  uint64_t named_bytes = 0;    // what its slots and sessions keep from being reused
  uint64_t session_bytes = 0;  // the part that sessions name
  std::array<uint64_t, kFigures> figures{};  // its own word
};

class Owner {
 public:
  // Throws OutOfMemory, InvalidBatch.
  explicit Owner(const OwnerConfig& config);
  ~Owner() { arena_.stop_populating(); }  // that thread writes to the header

  IndexView view() const { return table_.view(arena_.data()); }
  std::byte* arena() const { return arena_.data(); }
  bool populated() const { return arena_.populated(); }

  // Every item leaves kPending: kNew, kDuplicate, kPresent, kBusy or kDone (with the reason).
  // Evicts what is needed; waits for memory that is still named, until the deadline.
  void allocate(std::span<PutItem> items, const Deadline& deadline);
  // kNew -> stored and visible, or kDone(kCleared). kPresent and kDuplicate get their answer.
  // Returns whether the batch is over; if not, kBusy items remain.
  bool commit(std::span<PutItem> items);
  // Waits for kBusy items: kDone, or kPending again if the other put failed. Returns whether the
  // batch is over. One's own items must be committed first: waiting before that deadlocks two
  // crossing batches.
  bool await_busy(std::span<PutItem> items, const Deadline& deadline);

  // Gives back the entries of a batch that cannot go on. Once a batch.
  void abandon(std::span<PutItem> items);
  // Those who wait look at their deadlines again.
  void wake();

  // removed[i]: an object was there and no new reader finds it.
  void remove(std::span<const Hash128> hashes, bool* removed);
  void clear();
  OwnerStats stats();
  // A number that changes when a put fails, and once when the index is full before the bytes are:
  // whoever logs such things need not look while it stays the same. No lock.
  uint64_t troubles() const { return troubles_.load(std::memory_order_relaxed); }
  std::vector<ClientReport> clients();
  // Live objects of each component, by its number; those never used may be lacking.
  std::vector<ComponentTotals> component_totals();

  // prefault: as the owner's memory is; else pages come when the client first uses them.
  Client& add_client(uint32_t chunk_count, bool prefault);
  void bind_client(uint32_t id, pid_t pid, int pidfd);
  // What it named may be reused from now on.
  void remove_client(uint32_t id);
  // Descriptors of header, buckets, entries and arena (memfd backing only).
  std::array<int, 4> descriptors() const;

 private:
  void prefault();

  // First come, first served among the puts that wait for room.
  class Turn;

  void place_pending(std::span<PutItem> items);
  void place(PutItem& item, bool may_take);
  void place_existing(PutItem& item, uint32_t handle);
  bool try_take(PutItem& item);
  void protect(PutItem& item);
  void unprotect(PutItem& item);
  bool needs_no_room(std::span<const PutItem> items) const;
  void refuse_hopeless(std::span<PutItem> items);
  static void let_others_in(std::unique_lock<CountedMutex>& lock);
  void make_room(std::unique_lock<CountedMutex>& lock, std::span<PutItem> items,
                 const Deadline& deadline);
  Space::Need missing(std::span<const PutItem> items, uint64_t retired_before) const;
  void settle(PutItem& item);
  void settle_duplicate(PutItem& item, const PutItem& first);
  bool end_if_over(std::span<PutItem> items);
  void await_busy_item(std::unique_lock<CountedMutex>& lock, PutItem& item,
                       const Deadline& deadline, WaitClock& clock);
  uint64_t evict(const Space::Need& need);
  uint64_t nbytes_if_used(uint32_t handle) const;
  void count(const PutItem& item);
  void trim_to_watermark();
  static bool any(std::span<const PutItem> items, PutPhase phase);

  OwnerConfig config_;
  CountedMutex mutex_;
  std::condition_variable_any changed_;
  Mapping arena_;
  ObjectTable table_;
  ClientList clients_;
  Space space_;
  uint64_t batches_ = 0;
  std::vector<uint64_t> filled_by_;  // which batch fills a FILLING entry
  uint64_t clears_ = 0;
  std::deque<uint64_t> waiting_;
  uint64_t next_ticket_ = 0;
  uint64_t stored_bytes_ = 0;
  uint64_t evicted_for_entries_ = 0;
  Log2Histogram put_waits_;
  std::atomic<uint64_t> troubles_{0};
  std::array<uint64_t, kStatusCount> puts_by_status_{};
};

}  // namespace umbp
