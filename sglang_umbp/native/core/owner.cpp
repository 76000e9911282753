#include "owner.h"

#include <sys/random.h>

#include <algorithm>
#include <unordered_set>

#include "errors.h"

namespace umbp {
namespace {

Hash128 random_secret() {
  Hash128 secret;
  if (getrandom(&secret, sizeof secret, 0) != sizeof secret)
    throw Error("cannot read random bytes for the key secret");
  return secret;
}

// Capacity counts payload. The arena is larger by what rounding to granules can cost, and by 1/32 so
// that objects of several sizes find an unbroken extent while the pool is full to the last byte.
uint64_t arena_bytes_for(const OwnerConfig& config) {
  return config.capacity_bytes + config.capacity_bytes / 32 +
         static_cast<uint64_t>(config.entry_count) * kArenaGranule;
}

constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{16};

}  // namespace

class Owner::Turn {
 public:
  explicit Turn(Owner& owner) : owner_(owner), ticket_(owner.next_ticket_++) {
    owner_.waiting_.push_back(ticket_);
  }
  ~Turn() {
    std::erase(owner_.waiting_, ticket_);
    owner_.changed_.notify_all();
  }
  bool has_come() const { return owner_.waiting_.front() == ticket_; }

 private:
  Owner& owner_;
  uint64_t ticket_;
};

Owner::Owner(const OwnerConfig& config)
    : config_(config),
      arena_("arena", arena_bytes_for(config), config.memory),
      table_(config.entry_count, arena_.nbytes(), random_secret(), config.memory),
      space_(table_, clients_, make_policy(config.policy, config.entry_count),
             config.capacity_bytes, arena_.nbytes()) {}

bool Owner::any(std::span<const PutItem> items, PutPhase phase) {
  return std::any_of(items.begin(), items.end(),
                     [phase](const PutItem& item) { return item.phase == phase; });
}

void Owner::allocate(std::span<PutItem> items, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  space_.drain_recency();
  // Those who wait for room come first; a batch of objects that are there, or too large, needs none.
  // (One that has only some must not protect them while it queues: they may be what the first one
  // waits for.)
  if (waiting_.empty() || needs_no_room(items)) place_pending(items);
  if (any(items, PutPhase::kPending)) make_room(lock, items, deadline);
}

bool Owner::needs_no_room(std::span<const PutItem> items) const {
  return std::all_of(items.begin(), items.end(), [this](const PutItem& item) {
    if (item.phase != PutPhase::kPending || item.nbytes > config_.capacity_bytes) return true;
    const uint32_t handle = table_.find(item.hash);
    return handle != kNoHandle && table_.state(handle) == State::kLive;
  });
}

// Who will not fit is decided before anything is taken: by the order of the batch, not by what is
// free at this moment.
void Owner::place_pending(std::span<PutItem> items) {
  for (size_t i = 0; i < items.size(); ++i) place(items, i, false);
  refuse_hopeless(items);
  std::unordered_set<Hash128, Hash128Hash> waiting;  // keys whose first put has no room yet
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].phase != PutPhase::kPending || waiting.contains(items[i].hash)) continue;
    place(items, i, true);
    if (items[i].phase == PutPhase::kPending) waiting.insert(items[i].hash);
  }
}

void Owner::place(std::span<PutItem> items, size_t index, bool may_take) {
  PutItem& item = items[index];
  if (item.phase != PutPhase::kPending) return;
  if (item.nbytes > config_.capacity_bytes) return item.finish(Status::kTooLarge);
  const uint32_t handle = table_.find(item.hash);
  if (handle != kNoHandle)
    place_existing(items, index, handle);
  else if (may_take)
    try_take(item);
}

void Owner::place_existing(std::span<PutItem> items, size_t index, uint32_t handle) {
  PutItem& item = items[index];
  item.handle = handle;
  if (!table_.same_key(handle, item.component, item.key)) return item.finish(Status::kCollision);
  if (table_.state(handle) == State::kLive) {
    if (table_.entry(handle).nbytes != item.nbytes) return item.finish(Status::kSizeMismatch);
    item.phase = PutPhase::kPresent;
    item.generation = table_.generation(handle);
    protect(item);
    return space_.policy().touch(handle);
  }
  const bool ours = std::any_of(items.begin(), items.end(), [&](const PutItem& other) {
    return other.phase == PutPhase::kNew && other.handle == handle;
  });
  item.phase = ours ? PutPhase::kDuplicate : PutPhase::kBusy;
}

void Owner::protect(PutItem& item) {
  if (item.is_protected) return;
  space_.protect(item.handle);
  item.is_protected = true;
}

void Owner::unprotect(PutItem& item) {
  if (item.is_protected) space_.unprotect(item.handle);
  item.is_protected = false;
}

bool Owner::try_take(PutItem& item) {
  item.handle = space_.take(item.hash, item.component, item.key, item.nbytes);
  if (item.handle == kNoHandle) return false;
  item.phase = PutPhase::kNew;
  item.generation = table_.generation(item.handle);
  item.offset = table_.entry(item.handle).offset;
  item.clears_before = clears_;
  protect(item);
  return true;
}

// A batch never evicts its own members: what cannot fit beside those before it is refused at once.
void Owner::refuse_hopeless(std::span<PutItem> items) {
  uint64_t bytes = 0;
  uint64_t entries = 0;
  for (const PutItem& item : items)
    if (item.is_member() || item.phase == PutPhase::kPending) {
      bytes += item.nbytes;
      ++entries;
    }
  if (bytes <= config_.capacity_bytes && entries <= config_.entry_count) return;
  std::unordered_set<Hash128, Hash128Hash> counted;  // a repeated key takes room once
  bytes = 0;
  for (const PutItem& item : items)
    if (item.is_member() && counted.insert(item.hash).second) bytes += item.nbytes;
  for (PutItem& item : items) {
    if (item.phase != PutPhase::kPending || counted.contains(item.hash)) continue;
    if (bytes + item.nbytes > config_.capacity_bytes || counted.size() >= config_.entry_count) {
      item.finish(Status::kNoSpace);
      continue;
    }
    counted.insert(item.hash);
    bytes += item.nbytes;
  }
}

void Owner::make_room(std::unique_lock<CountedMutex>& lock, std::span<PutItem> items,
                      const Deadline& deadline) {
  Turn turn(*this);
  auto pause = kFirstPause;
  uint64_t retired_before = space_.totals().retired_bytes;
  while (true) {
    if (turn.has_come()) {
      place_pending(items);
      if (!any(items, PutPhase::kPending)) return;
      // Room that was made goes to those it was made for, however late it is.
      if (space_.evict(missing(items, retired_before)) != 0) continue;
    }
    if (deadline.passed()) break;
    // What was on its way has not come: who names it may be stopped. Other victims must do.
    if (pause == kLongestPause) retired_before = space_.totals().retired_bytes;
    changed_.wait_until(lock, deadline.within(pause));
    pause = std::min(pause * 2, kLongestPause);
  }
  for (size_t i = 0; i < items.size(); ++i) place(items, i, false);
  for (PutItem& item : items)
    if (item.phase == PutPhase::kPending) item.finish(Status::kNoSpace);
}

// What the pending items lack. Bytes that this batch already retired and that are only still named
// count as on their way: they are not made up for by evicting more.
Space::Need Owner::missing(std::span<const PutItem> items, uint64_t retired_before) const {
  Space::Need need;
  uint64_t wanted_bytes = 0;
  uint32_t wanted_entries = 0;
  uint64_t smallest = UINT64_MAX;
  const PutItem* first = nullptr;
  std::unordered_set<Hash128, Hash128Hash> counted;
  for (const PutItem& item : items) {
    if (item.phase != PutPhase::kPending || !counted.insert(item.hash).second) continue;
    if (first == nullptr) first = &item;
    wanted_bytes += item.nbytes;
    wanted_entries += 1;
    smallest = std::min(smallest, item.nbytes);
  }
  const SpaceTotals& totals = space_.totals();
  const uint64_t free_bytes = config_.capacity_bytes - totals.used_bytes;
  const uint64_t coming =
      totals.retired_bytes > retired_before ? totals.retired_bytes - retired_before : 0;
  if (wanted_bytes > free_bytes + coming) need.bytes = wanted_bytes - free_bytes - coming;
  if (wanted_entries > table_.free_entries())
    need.entries = wanted_entries - table_.free_entries();
  if (!table_.has_word_for(first->hash)) need.crowded = &first->hash;
  // Enough bytes, yet no unbroken extent.
  if (need.bytes == 0 && need.entries == 0 && need.crowded == nullptr && coming == 0)
    need.extent = smallest;
  return need;
}

bool Owner::commit(std::span<PutItem> items) {
  std::lock_guard lock(mutex_);
  for (PutItem& item : items) settle(items, item);
  const bool over = end_if_over(items);
  changed_.notify_all();
  return over;
}

bool Owner::end_if_over(std::span<PutItem> items) {
  if (any(items, PutPhase::kBusy) || any(items, PutPhase::kPending)) return false;
  trim_to_watermark();  // before the members lose their protection: every True can be read back
  for (PutItem& item : items) {
    unprotect(item);
    ++puts_by_status_[static_cast<size_t>(item.status)];
  }
  return true;
}

void Owner::settle(std::span<PutItem> items, PutItem& item) {
  switch (item.phase) {
    case PutPhase::kNew:
      if (item.clears_before != clears_) {
        unprotect(item);
        space_.abandon(item.handle);
        return item.finish(Status::kCleared);
      }
      space_.make_live(item.handle, item.depth);
      stored_bytes_ += item.nbytes;
      return item.finish(Status::kOk);
    case PutPhase::kPresent:
      space_.policy().touch(item.handle);  // again: the order of use is the order of the batch
      return item.finish(Status::kExists);
    case PutPhase::kDuplicate:
      for (const PutItem& first : items) {
        if (&first == &item) break;
        if (first.handle != item.handle || first.hash != item.hash) continue;
        const bool same = succeeded(first.status) && first.nbytes == item.nbytes;
        if (same) space_.policy().touch(item.handle);
        return item.finish(same ? Status::kExists
                                : succeeded(first.status) ? Status::kSizeMismatch : first.status);
      }
      return item.finish(Status::kBusy);
    default:
      return;
  }
}

bool Owner::await_busy(std::span<PutItem> items, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  for (PutItem& item : items)
    if (item.phase == PutPhase::kBusy) await_busy_item(lock, item, deadline);
  return end_if_over(items);
}

void Owner::await_busy_item(std::unique_lock<CountedMutex>& lock, PutItem& item,
                            const Deadline& deadline) {
  uint32_t handle = table_.find(item.hash);
  while (handle != kNoHandle && table_.state(handle) == State::kFilling) {
    if (deadline.passed()) return item.finish(Status::kBusy);
    changed_.wait_until(lock, deadline.at());
    handle = table_.find(item.hash);
  }
  if (handle == kNoHandle) {
    item.phase = PutPhase::kPending;
  } else if (table_.entry(handle).nbytes != item.nbytes) {
    item.finish(Status::kSizeMismatch);
  } else {
    item.handle = handle;
    protect(item);  // this batch may still make room for others
    item.finish(Status::kExists);
  }
}

void Owner::abandon(std::span<PutItem> items) {
  std::lock_guard lock(mutex_);
  for (PutItem& item : items) {
    unprotect(item);
    if (item.phase == PutPhase::kNew) space_.abandon(item.handle);
  }
  changed_.notify_all();
}

void Owner::trim_to_watermark() {
  const auto capacity = static_cast<double>(config_.capacity_bytes);
  const auto used = [&] { return static_cast<double>(space_.totals().used_bytes); };
  if (config_.high_watermark <= 0 || used() <= config_.high_watermark * capacity) return;
  const double target = config_.low_watermark * capacity;
  while (used() > target &&
         space_.evict({static_cast<uint64_t>(used() - target), 0, nullptr}) != 0) {
  }
}

void Owner::remove(std::span<const Hash128> hashes, bool* removed) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < hashes.size(); ++i) {
    const uint32_t handle = table_.find(hashes[i]);
    removed[i] = handle != kNoHandle && table_.state(handle) == State::kLive;
    if (removed[i]) space_.retire(handle);
  }
  space_.release_unnamed();
  changed_.notify_all();
}

void Owner::clear() {
  std::lock_guard lock(mutex_);
  ++clears_;
  for (uint32_t handle = space_.policy().first(); handle != kNoHandle;
       handle = space_.policy().first())
    space_.retire(handle);
  space_.release_unnamed();
  changed_.notify_all();
}

OwnerStats Owner::stats() {
  std::lock_guard lock(mutex_);
  OwnerStats stats;
  stats.space = space_.totals();
  stats.objects = space_.objects();
  stats.capacity_bytes = config_.capacity_bytes;
  stats.arena_bytes = arena_.nbytes();
  stats.locks = mutex_.acquisitions();
  stats.clients = clients_.size();
  stats.stored_bytes = stored_bytes_;
  stats.puts_by_status = puts_by_status_;
  return stats;
}

Client& Owner::add_client(uint32_t chunk_count) {
  std::lock_guard lock(mutex_);
  return clients_.add(chunk_count, config_.memory);
}

void Owner::bind_client(uint32_t id, pid_t pid) {
  std::lock_guard lock(mutex_);
  clients_.bind_process(id, pid);
}

void Owner::remove_client(uint32_t id) {
  std::lock_guard lock(mutex_);
  clients_.remove(id);
}

std::array<int, 4> Owner::descriptors() const {
  return {table_.header_memory().fd(), table_.bucket_memory().fd(), table_.entry_memory().fd(),
          arena_.fd()};
}

}  // namespace umbp
