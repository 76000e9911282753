// A put whose bytes another process copies: allocate here, copied there, committed here.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pool.h"
#include "put_item.h"

namespace umbp {

// One put batch of a client, on the owner's side: it owns the keys and is the only one that can commit
// or free what it reserved. Steps, each refused (InvalidBatch) out of turn:
//
//   allocate -> (the client copies what is kNew) -> commit -> over, or await_busy -> over, or allocate
//
// Until commit nothing of it is visible. A batch that is destroyed without being over is abandoned.
//
// Abandoning frees memory that the client may be writing to: only once its process has ended, or by
// its own word that it does not copy any more.
//
// Steps of one batch take turns; abandon() may come from any thread at any time and cuts a step that
// waits short. The pool must outlive the batch; after the pool's close() steps throw PoolClosed.
class RemoteBatch {
 public:
  // The next `count` keys lie in this component; depth: as for put_pages.
  struct Group {
    const Component& component;
    size_t count;
    std::optional<uint32_t> depth;
  };
  // One size a key. Sizes of 0 bytes are answered kBadRange. Throws InvalidBatch (the groups do not
  // count as many keys), Error (attached pool).
  RemoteBatch(Pool& pool, std::span<const Group> groups, std::span<const Hash128> digests,
              std::span<const std::string_view> keys, const uint64_t* sizes);
  RemoteBatch(Pool& pool, const Component& component, std::span<const Hash128> digests,
              std::span<const std::string_view> keys, const uint64_t* sizes,
              std::optional<uint32_t> depth);
  ~RemoteBatch();
  RemoteBatch(const RemoteBatch&) = delete;
  RemoteBatch& operator=(const RemoteBatch&) = delete;

  // Looks all keys up and reserves room for those that are new, evicting what is needed; waits for room
  // no longer than this. The answers then say what to copy where.
  void allocate(std::chrono::nanoseconds timeout);
  // Makes visible what was reserved: the client has copied every byte of it. Returns whether the batch
  // is over; if not, kBusy keys remain.
  bool commit();
  // Waits for the other puts of kBusy keys. Returns whether the batch is over; if not, one of those
  // puts failed and allocate() comes next.
  bool await_busy(std::chrono::nanoseconds timeout);
  // Frees what is reserved and not committed. Twice, or once the batch is over, a no-op.
  void abandon();

  struct Answer {
    PutPhase phase;
    Status status;    // once kDone
    uint64_t offset;  // in the arena, while kNew
  };
  std::vector<Answer> answers() const;

  // The steps up to where the client's part comes, or the end; one timeout for all waits together.
  struct Next {
    bool over = false;
    std::vector<uint32_t> picks;    // not over: items to copy,
    std::vector<uint64_t> offsets;  // and where to; then proceed() comes next
    std::vector<Status> statuses;   // over: one a key
  };
  Next start(std::chrono::nanoseconds timeout);
  // The client copied what was picked.
  Next proceed(std::chrono::nanoseconds timeout);
  size_t size() const { return items_.size(); }
  // These wait for nothing; they tell how the last step left the batch.
  bool over() const { return over_.load(std::memory_order_acquire); }
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  // Bytes of all keys, but for those that are larger than the pool.
  uint64_t nbytes_asked() const { return asked_; }
  uint64_t key_bytes() const { return key_bytes_.size(); }
  // Bytes that are reserved and not committed.
  uint64_t nbytes_reserved() const { return reserved_.load(std::memory_order_relaxed); }
  // Those, and the objects that were found there, which eviction passes over until the batch is over.
  uint64_t nbytes_held() const { return held_.load(std::memory_order_relaxed); }

 private:
  enum class Step : uint8_t { kAllocate, kCommit, kAwaitBusy, kOver };

  void begin(Step step) const;
  // Runs f, a step; if that throws, nothing stays reserved.
  template <class F>
  void run(const F& f);
  void free_reserved();
  void count();
  // Whether the batch is over; if not, allocate() came next and is done.
  bool finish(const Deadline& deadline);
  Next next(const Deadline& deadline);
  Next to_copy() const;
  Next ended() const;

  Pool& pool_;
  ForkGuard guard_;
  std::string key_bytes_;
  uint64_t asked_ = 0;
  std::atomic<bool> abandoned_{false};
  mutable std::mutex mutex_;
  Step next_ = Step::kAllocate;
  std::vector<PutItem> items_;
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> held_{0};
};

}  // namespace umbp
