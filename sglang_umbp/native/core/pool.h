// The pool: batch calls over the dram backend. An embedded pool owns its memory; an attached one only
// reads the memory of an owner in another process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arena_pins.h"
#include "copy_pool.h"
#include "device_copier.h"
#include "device_memory.h"
#include "device_moves.h"
#include "fork_guard.h"
#include "log2_histogram.h"
#include "owner.h"
#include "page_layout.h"
#include "phases.h"
#include "range_batch.h"
#include "reader.h"
#include "region_table.h"
#include "session.h"
#include "status.h"
#include "writable_arena.h"

namespace umbp {

struct PoolConfig {
  OwnerConfig owner;
  uint64_t nt_copy_min_bytes = 512;
  unsigned copy_threads = 2;
  std::string copy_isa = "auto";
  uint64_t session_quota_bytes = 0;
  std::chrono::nanoseconds deadline{std::chrono::seconds(1)};
  bool strict_registration = true;
  bool exists_refreshes = false;
  bool call_debug = false;
  bool latency_histograms = false;
  uint64_t staging_bytes = 16u << 20;     // a slab through which a call reaches what is not pinned
  uint64_t pin_chunk_bytes = 1u << 30;    // a multiple of 2 MiB
};

// One component of a namespace: pages of the same hash are different objects in each component.
struct Component {
  uint32_t id = 0;
  Hash128 key;
};

struct PoolStats {
  bool owner_attached = false;
  OwnerStats owner;
  SessionTotals sessions;
  ReadTotals reads;
  uint64_t region_locks = 0;
  uint64_t regions = 0;
  std::string copy_isa;
  PhaseTotals::Snapshot gets;
  PhaseTotals::Snapshot puts;
  Log2Histogram::Snapshot get_latency;
  Log2Histogram::Snapshot put_latency;
  Log2Histogram::Snapshot exists_latency;
  Log2Histogram::Snapshot pin_latency;
  struct {
    DeviceCopyTotals copies;
    uint64_t staged_bytes = 0;  // of them, through a slab
    uint64_t pinned_bytes = 0;  // of the arena; each map of it counts
  } devices;
};

// The descriptors by which another process maps an owner's memory, and its own client area.
struct Share {
  std::array<int, 4> memory;  // header, buckets, entries, arena
  int client = -1;
  uint32_t client_id = 0;
};

// Pages of one component for a get: the objects of `digests`, into the layout's rows.
struct PageGet {
  const Component& component;
  const PageLayout& layout;
  std::span<const Hash128> digests;
  std::span<const int64_t> rows;
  size_t first;  // fragments [first, last) of the layout
  size_t last;
};

// The same of a session, whose page first_page + i goes to rows[i].
struct SessionGet {
  size_t part;
  const PageLayout& layout;
  std::span<const int64_t> rows;
  size_t first;
  size_t last;
};

// Pages of one component: the objects of `keys`, whose digests are `digests`, from the layout's rows.
struct PagePut {
  const Component& component;
  const PageLayout& layout;
  std::span<const Hash128> digests;
  std::span<const std::string_view> keys;
  std::span<const int64_t> rows;
};

// Objects of one component and their sizes, one a digest.
struct SizedObjects {
  const Component& component;
  std::span<const Hash128> digests;
  std::span<const uint64_t> sizes;
};

// Where a put into another process's pool copies: item picks[i] of the batch to offsets[i] in the arena.
struct FillTargets {
  std::span<const uint64_t> picks;
  std::span<const uint64_t> offsets;
};

// Thread-safe. Every call raises PoolClosed after close() and ForkedPool in a forked child.
class Pool {
 public:
  explicit Pool(const PoolConfig& config);
  // Maps another process's memory; takes no ownership of the descriptors.
  Pool(const PoolConfig& config, const Share& share);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Refuses new calls, waits for those that run, ends the sessions, gives the memory back.
  void close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // For attached pools whose owner is gone. From lose() on nothing is found any more: gets are
  // kMissing, exists is false, pin holds nothing, reads of sessions are kNotPinned, fill_* copy nothing.
  // Calls that run finish, with right bytes: nobody changes the memory any more. unmap() waits for them
  // and gives the memory back; calls go on answering as before. close() may follow at any time.
  void lose();
  void unmap();
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // While hidden nothing is found that is not held already: look-ups, gets and pins are answered as those of
  // a lost pool, sessions are read as ever.
  void hide(bool hidden);
  bool hidden() const { return hidden_.load(std::memory_order_seq_cst); }
  // Becomes true when no call of this pool reads a component's key any more: after close() or unmap().
  std::shared_ptr<const std::atomic<bool>> ended() const { return ended_; }

  // Whether the threads that give maps their pages (prefault_in_background) are through.
  bool populated();

  // Batches may name memory of devices from now on. Throws Error if it has a runtime already.
  void use_devices(std::shared_ptr<DeviceApi> api, DeviceHooks hooks);
  bool has_devices() const { return devices() != nullptr; }
  // Pins the map of the arena that devices read (writing: the one that they write to), until it is done or
  // the pool closes or is lost. Throws DeviceError: what is not pinned is reached through slabs. Returns the
  // bytes that this call pinned: 0 where one map serves both and is pinned already.
  uint64_t pin_arena(int device, bool writing);

  // Memory that batches may name; kind, device, alias and mode are asked of the runtime. Throws
  // RegionError, DeviceError.
  void add_region(uint64_t base, uint64_t nbytes, bool grow);
  void remove_region(uint64_t base);
  std::vector<Region> regions();
  // The component with this identity; the same identity gives the same component.
  Component component(std::string_view identity);
  // out[i]: the 128-bit digest of keys[i], from which each component derives its own.
  void digest(std::span<const std::string_view> keys, Hash128* out) const {
    prf128_batch(secret_, keys, out);
  }

  // after: what must have happened on the device before a byte of the caller's memory is read or written;
  // a call that names a stream or an event waits for it without a deadline. Throws DeviceError.
  // `out` has one status a key. Gets: kOk, kMissing, kSizeMismatch, kBadRange, kNoSlot.
  void get_pages(const Component& component, const PageLayout& layout,
                 std::span<const Hash128> digests, std::span<const int64_t> rows, size_t first,
                 size_t last, Status* out, const CopyOrder& after = {});
  void get_session_pages(Session& session, size_t part, size_t first_page,
                         const PageLayout& layout, std::span<const int64_t> rows, size_t first,
                         size_t last, Status* out, const CopyOrder& after = {});
  // The same of several components as one batch: `out` has the statuses of all, one after the other.
  void get_components(std::span<const PageGet> gets, Status* out, const CopyOrder& after = {});
  void get_session_components(Session& session, std::span<const SessionGet> gets,
                              size_t first_page, Status* out, const CopyOrder& after = {});
  void get_ranges(const Component& component, std::span<const Hash128> digests,
                  const RangeBatch& ranges, Status* out, const CopyOrder& after = {});
  void get_session_ranges(Session& session, size_t part, size_t first_page,
                          const RangeBatch& ranges, Status* out, const CopyOrder& after = {});

  // `keys` are the full keys of `digests`, valid during the call. depth: pages that come before the
  // first of these in their prefix, of which they are consecutive pages.
  void put_pages(const Component& component, const PageLayout& layout,
                 std::span<const Hash128> digests, std::span<const std::string_view> keys,
                 std::span<const int64_t> rows, std::optional<uint32_t> depth, Status* out,
                 const CopyOrder& after = {});
  // The same of several components as one batch: `out` has the statuses of all, one after the other.
  void put_components(std::span<const PagePut> puts, std::optional<uint32_t> depth, Status* out,
                      const CopyOrder& after = {});
  // object_bytes: one a key; nullptr for whole objects of one range.
  void put_ranges(const Component& component, std::span<const Hash128> digests,
                  std::span<const std::string_view> keys, const uint64_t* object_bytes,
                  const RangeBatch& ranges, Status* out, const CopyOrder& after = {});

  // Attached pools put in three steps: the owner reserves (RemoteBatch), these copy, the owner commits.
  // check_*: before anything is reserved, what put_* would refuse: throws, or a status a key (kOk,
  // kBadRange, kNotTiled). fill_*: on return the bytes are in the arena, ordered before anything this
  // thread does next. The same checks again, and every target lies in the arena; nothing is copied
  // otherwise (InvalidBatch).
  void check_put_pages(const PageLayout& layout, std::span<const int64_t> rows);
  void check_put_ranges(const uint64_t* object_bytes, const RangeBatch& ranges, Status* out);
  // False: the pool is lost, and nothing was copied.
  bool fill_pages(const PageLayout& layout, std::span<const int64_t> rows,
                  const FillTargets& targets, const CopyOrder& after = {});
  bool fill_ranges(const uint64_t* object_bytes, const RangeBatch& ranges,
                   const FillTargets& targets, const CopyOrder& after = {});

  // found[i]: every component has key i. The prefix form stops at the first that has not.
  void exists(std::span<const Component> components, std::span<const Hash128> digests, bool* found);
  size_t exists_prefix(std::span<const Component> components, std::span<const Hash128> digests);
  // Whether all of these are there with these sizes; they were used now, as eviction sees it. Waits for
  // nothing: false where no reader slot is free, or the pool is lost.
  bool holds(std::span<const SizedObjects> objects);
  std::shared_ptr<Session> pin(std::span<const Component> components,
                               std::span<const Hash128> digests, bool firm);
  void remove(std::span<const Component> components, std::span<const Hash128> digests,
              bool* removed);
  void clear();
  // Waits until every stored object is where it will stay; in memory it is when put returns.
  void flush();
  PoolStats stats();
  // As of the last put that ended: see Owner. Never throws.
  uint64_t troubles() const { return troubles_.load(std::memory_order_relaxed); }
  // Of the owner; empty in an attached pool. The pool itself is a client, too.
  std::vector<ClientReport> clients();
  struct ComponentReport {
    std::string identity;
    ComponentTotals live;
  };
  std::vector<ComponentReport> component_reports();
  // Leaves what this process has read so far where the owner's clients() finds it.
  void report_reads();

  // Doors for tests and benchmarks. Address 0: not there.
  std::pair<uint64_t, uint64_t> locate(const Component& component, const Hash128& digest);
  Share share();
  void bind_client(uint32_t id, pid_t pid, int pidfd = -1);
  void remove_client(uint32_t id);

 private:
  friend class RemoteBatch;
  class Call;  // one native call in progress: counted, refused after close() and in a forked child

  void start_reading(const IndexView& index, const ClientArea& area);
  Owner& owner();  // throws Error in an attached pool
  WritableArena& writable();  // throws Error in a pool that is not attached
  void note_troubles() { troubles_.store(owner().troubles(), std::memory_order_relaxed); }
  Log2Histogram* latency_of(Log2Histogram& histogram) {
    return config_.latency_histograms ? &histogram : nullptr;
  }
  void refuse_own_client(uint32_t id);
  static void wait_for(const std::atomic<uint32_t>& calls);
  void leave_unread(Status answer, std::span<Status> out, bool counts_as_call);
  // For gets of a lost pool.
  void answer_all(Status answer, std::span<Status> out, PhaseTimer& timer);
  bool holds(const SizedObjects& objects, int slot);
  size_t look_up(std::span<const Component> components, std::span<const Hash128> digests,
                 bool stop_at_missing, bool* found);
  // Batch: a LayoutBatch, a JoinedBatch or a ListedBatch.
  template <class Batch>
  void read_named(std::span<const Hash128> keys, const Batch& batch, Status* out,
                  PhaseTimer& timer);
  template <class Batch>
  void read_slice(std::span<const Hash128> keys, const Batch& batch, size_t first_item, Status* out,
                  PhaseTimer& timer);
  // object_of(i): which of the session's objects item i is, of `count`.
  template <class Batch, class ObjectOf>
  void read_session(Session& session, size_t count, const ObjectOf& object_of, const Batch& batch,
                    Status* out, PhaseTimer& timer);
  template <class Batch, class ObjectOf>
  void read_pinned(Session& session, size_t count, const ObjectOf& object_of, const Batch& batch,
                   Status* out, PhaseTimer& timer);
  // Whose memory the batch names, and the wait for what the caller said.
  template <class Batch>
  void classify(Batch& batch, PhaseTimer& timer);
  DeviceMemory* devices() const { return devices_.load(std::memory_order_acquire); }
  template <Direction direction, class Batch, class EachObject>
  void copy(const Batch& batch, PhaseTimer& timer, const EachObject& each_object);
  template <Direction direction, class Batch, class EachObject>
  void copy_mixed(const Batch& batch, PhaseTimer& timer, const EachObject& each_object);
  void unpin() noexcept;
  void let_go_of_devices() noexcept;
  void abandon_devices() noexcept;  // in a forked child, where the runtime does not work
  [[gnu::noinline]] void await(const CopyOrder& after);
  ArenaMap readable_map() const;
  ArenaMap writable_map();
  template <class Batch, class SizeOf>
  void fill(const Batch& batch, const FillTargets& targets, const SizeOf& size_of,
            PhaseTimer& timer);
  template <class Batch>
  void store(std::vector<PutItem>& items, const Batch& batch, PhaseTimer& timer, Status* out);

  PoolConfig config_;
  ForkGuard guard_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> lost_{false};
  std::atomic<bool> hidden_{false};
  std::atomic<uint32_t> calls_{0};
  std::atomic<uint32_t> lost_calls_{0};
  std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex ending_mutex_;
  RegionTable regions_;
  CopyPool copies_;
  Hash128 secret_;
  std::unique_ptr<Owner> owner_;
  uint32_t own_client_ = 0;
  std::vector<Mapping> attached_;
  std::unique_ptr<WritableArena> writable_;
  // Null: no device runtime. Once it is not, the pins are there, too.
  std::atomic<DeviceMemory*> devices_{nullptr};
  std::unique_ptr<DeviceMemory> own_devices_;
  std::shared_ptr<ArenaPins> read_pins_;   // of the map that gets read; one object with the other
  std::shared_ptr<ArenaPins> write_pins_;  // where both are one map
  std::unique_ptr<Reader> reader_;
  std::shared_ptr<SessionList> sessions_;
  std::mutex components_mutex_;
  std::vector<std::string> components_;
  std::atomic<uint64_t> troubles_{0};
  PhaseTotals get_phases_;
  PhaseTotals put_phases_;
  struct {
    Log2Histogram get, put, exists, pin;
  } latencies_;
};

}  // namespace umbp
