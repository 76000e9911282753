// Sessions: objects that stay named from look-up until their last layer group is read.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "fork_guard.h"
#include "read_ledger.h"
#include "reader.h"

namespace umbp {

struct PinnedObject {
  uint64_t offset = 0;
  uint64_t nbytes = 0;
  uint32_t handle = kNoHandle;  // kNoHandle: not held
};

class SessionList;

// Objects of `pages` pages, `width` of them a page (its components), page after page. A page is held
// whole or not at all.
class Session : public std::enable_shared_from_this<Session> {
  struct Key;

 public:
  Session(Key, std::shared_ptr<SessionList> list, size_t width, bool firm)
      : list_(std::move(list)), width_(width), firm_(firm) {}
  ~Session();

  size_t pages() const { return objects_.size() / width_; }
  size_t width() const { return width_; }
  bool firm() const { return firm_; }
  bool held(size_t page) const { return objects_[page * width_].handle != kNoHandle; }
  size_t place_of(size_t page, size_t part) const { return page * width_ + part; }
  const PinnedObject& object(size_t place) const { return objects_[place]; }
  size_t prefix() const;  // leading run of held pages
  uint64_t nbytes() const { return nbytes_; }

  // Keeps the names published until the matching release(). False: closed or dropped.
  bool acquire();
  void release() { users_.fetch_sub(1, std::memory_order_seq_cst); }
  // Whether the list let go of it to make room for another (droppable sessions only). The keys
  // remain, so that a read can look its objects up anew.
  bool dropped() const { return dropped_.load(std::memory_order_acquire); }
  std::span<const Hash128> keys() const { return keys_; }
  ReadLedger& ledger() { return ledger_; }

  // Whether close() was called; a dropped session may be read until then.
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // Waits for reads in progress, then lets every object go. Twice is a no-op, and so is once in a
  // forked child.
  void close();
  bool closed() const { return users_.load(std::memory_order_acquire) >= kClosed; }

 private:
  friend class SessionList;
  static constexpr uint32_t kClosed = 1u << 31;

  struct Key {};  // only SessionList makes sessions
  bool try_drop();
  void let_go_of_page(Reader& reader, size_t page);

  std::shared_ptr<SessionList> list_;
  size_t width_;
  bool firm_;
  std::vector<PinnedObject> objects_;
  std::vector<Hash128> keys_;  // droppable sessions only
  std::vector<uint32_t> chunks_;
  uint64_t nbytes_ = 0;
  std::atomic<uint32_t> users_{0};
  std::atomic<bool> dropped_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> returned_{false};
  std::list<Session*>::iterator place_;  // in the list, until returned
  ReadLedger ledger_;
  ForkGuard guard_;
};

struct SessionTotals {
  uint64_t open = 0;
  uint64_t pinned_bytes = 0;
  uint64_t dropped = 0;   // droppable sessions let go of at the quota
  uint64_t cut_short = 0;  // pins that got less than was there
  ReadTotals reads;
};

// The sessions of this process. Its mutex is taken by pin and close, never by a read.
class SessionList : public std::enable_shared_from_this<SessionList> {
 public:
  SessionList(Reader& reader, uint64_t quota_bytes) : reader_(reader), quota_bytes_(quota_bytes) {}

  // Names what is there of keys (a multiple of width). At the quota a firm session gets the prefix
  // that fits; a droppable one first takes the room of the oldest droppable ones that nobody reads.
  // `slot` carries the recency.
  std::shared_ptr<Session> pin(std::span<const Hash128> keys, size_t width, bool firm, int slot);

  // A session of pages that were all missing. Touches no shared memory.
  std::shared_ptr<Session> hold_nothing(size_t pages, size_t width, bool firm);

  SessionTotals totals();
  void close_all();  // waits for reads in progress

 private:
  friend class Session;
  size_t claim_chunks(Session& session, size_t objects);
  void name_objects(Session& session, std::span<const Hash128> keys);
  void keep_whole_pages(Session& session);
  void apply_quota(Session& session);
  bool drop_oldest();
  static size_t chunks_in_use(const Session& session);
  void give_back_chunks(Session& session, size_t keep);
  void give_back(Session& session);  // after its last read
  void give_back_locked(Session& session);

  Reader& reader_;
  uint64_t quota_bytes_;
  std::mutex mutex_;
  std::list<Session*> sessions_;  // oldest first
  SessionTotals totals_;
};

}  // namespace umbp
