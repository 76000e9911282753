#include "owner.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <unordered_map>
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

// Only the arena is large enough to be populated beside the work.
MappingOptions at_once(MappingOptions options) {
  options.prefault_in_background = false;
  return options;
}

constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{16};
// So many rounds of eviction go on past the deadline at most, or without others having the mutex.
constexpr uint32_t kRoundsAtATime = 16;

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
      table_(config.entry_count, arena_.nbytes(), random_secret(), at_once(config.memory)),
      space_(table_, clients_, make_policy(config.policy, config.entry_count),
             config.capacity_bytes, arena_.nbytes()),
      filled_by_(config.entry_count, 0) {
  prefault();
}

void Owner::prefault() {
  const MappingOptions& memory = config_.memory;
  if (memory.prefault_in_background)
    arena_.populate_in_background(Access::kWrite,
                                  {{}, [this] { table_.tell(Prefaulting::kDone); }});
  else
    table_.tell(memory.prefault ? Prefaulting::kDone : Prefaulting::kNotWanted);
}

bool Owner::any(std::span<const PutItem> items, PutPhase phase) {
  return std::any_of(items.begin(), items.end(),
                     [phase](const PutItem& item) { return item.phase == phase; });
}

void Owner::allocate(std::span<PutItem> items, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  ++batches_;
  for (PutItem& item : items) item.batch = batches_;
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
  for (PutItem& item : items) place(item, false);
  refuse_hopeless(items);
  std::unordered_set<Hash128, Hash128Hash> waiting;  // keys whose first put has no room yet
  for (PutItem& item : items) {
    if (item.phase != PutPhase::kPending || waiting.contains(item.hash)) continue;
    place(item, true);
    if (item.phase == PutPhase::kPending) waiting.insert(item.hash);
  }
}

void Owner::place(PutItem& item, bool may_take) {
  if (item.phase != PutPhase::kPending) return;
  if (item.nbytes > config_.capacity_bytes) return item.finish(Status::kTooLarge);
  const uint32_t handle = table_.find(item.hash);
  if (handle != kNoHandle)
    place_existing(item, handle);
  else if (may_take)
    try_take(item);
}

void Owner::place_existing(PutItem& item, uint32_t handle) {
  item.handle = handle;
  if (!table_.same_key(handle, item.component, item.key)) return item.finish(Status::kCollision);
  if (table_.state(handle) == State::kLive) {
    if (table_.entry(handle).nbytes != item.nbytes) return item.finish(Status::kSizeMismatch);
    item.phase = PutPhase::kPresent;
    protect(item);
    return space_.policy().touch(handle);
  }
  item.phase = filled_by_[handle] == item.batch ? PutPhase::kDuplicate : PutPhase::kBusy;
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
  item.offset = table_.entry(item.handle).offset;
  item.clears_before = clears_;
  filled_by_[item.handle] = item.batch;
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

// Reads need no mutex, but puts of what is there and commits do: a large batch must not keep them out.
void Owner::let_others_in(std::unique_lock<CountedMutex>& lock) {
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

void Owner::make_room(std::unique_lock<CountedMutex>& lock, std::span<PutItem> items,
                      const Deadline& deadline) {
  Turn turn(*this);
  WaitClock clock(put_waits_);
  auto pause = kFirstPause;
  uint64_t retired_before = space_.totals().retired_bytes;
  uint32_t rounds = 0;
  while (true) {
    if (turn.has_come()) {
      place_pending(items);
      if (!any(items, PutPhase::kPending)) return;
      const bool late = rounds >= kRoundsAtATime && deadline.passed();
      // Room that was made goes to those it was made for, however late it is.
      if (!late && evict(missing(items, retired_before)) != 0) {
        if (++rounds % kRoundsAtATime == 0) let_others_in(lock);
        continue;
      }
    }
    if (deadline.passed()) break;
    // What was on its way has not come: who names it may be stopped. Other victims must do.
    if (pause == kLongestPause) retired_before = space_.totals().retired_bytes;
    clock.measure([&] { changed_.wait_until(lock, deadline.within(pause)); });
    pause = std::min(pause * 2, kLongestPause);
  }
  for (PutItem& item : items) place(item, false);
  for (PutItem& item : items)
    if (item.phase == PutPhase::kPending) item.finish(Status::kNoSpace);
}

uint64_t Owner::evict(const Space::Need& need) {
  const uint64_t evicted_before = space_.totals().evicted_objects;
  const uint64_t progress = space_.evict(need);
  if (need.bytes != 0 || need.entries == 0) return progress;
  const uint64_t evicted = space_.totals().evicted_objects - evicted_before;
  if (evicted_for_entries_ == 0 && evicted != 0) troubles_.fetch_add(1, std::memory_order_relaxed);
  evicted_for_entries_ += evicted;
  return progress;
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
  // Enough bytes, yet no unbroken extent. A part of the pieces at once: two of them may become one, but
  // one at a time costs a look at the whole batch each, under the mutex.
  if (need.bytes == 0 && need.entries == 0 && need.crowded == nullptr && coming == 0) {
    need.extent = smallest;
    need.extents = 1 + wanted_entries / 8;
  }
  return need;
}

bool Owner::commit(std::span<PutItem> items) {
  std::lock_guard lock(mutex_);
  std::unordered_map<uint32_t, const PutItem*> firsts;  // of keys that stand twice
  const bool repeated = any(items, PutPhase::kDuplicate);
  for (PutItem& item : items) {  // in order: the order of use is the order of the batch
    if (item.phase == PutPhase::kDuplicate) {
      settle_duplicate(item, *firsts.at(item.handle));
    } else {
      if (repeated && item.phase == PutPhase::kNew) firsts.emplace(item.handle, &item);
      settle(item);
    }
  }
  const bool over = end_if_over(items);
  changed_.notify_all();
  return over;
}

bool Owner::end_if_over(std::span<PutItem> items) {
  if (any(items, PutPhase::kBusy) || any(items, PutPhase::kPending)) return false;
  trim_to_watermark();  // before the members lose their protection: every True can be read back
  for (PutItem& item : items) {
    unprotect(item);
    count(item);
  }
  return true;
}

void Owner::count(const PutItem& item) {
  ++puts_by_status_[static_cast<size_t>(item.status)];
  if (!succeeded(item.status)) troubles_.fetch_add(1, std::memory_order_relaxed);
}

void Owner::settle(PutItem& item) {
  if (item.phase == PutPhase::kPresent) {
    space_.policy().touch(item.handle);
    item.finish(Status::kExists);
  } else if (item.phase == PutPhase::kNew && item.clears_before == clears_) {
    space_.make_live(item.handle, item.depth);
    stored_bytes_ += item.nbytes;
    item.finish(Status::kOk);
  } else if (item.phase == PutPhase::kNew) {
    unprotect(item);
    space_.abandon(item.handle);
    item.finish(Status::kCleared);
  }
}

// The first of a batch wins; what follows finds the object there, or shares its fate.
void Owner::settle_duplicate(PutItem& item, const PutItem& first) {
  if (!succeeded(first.status)) return item.finish(first.status);
  if (first.nbytes != item.nbytes) return item.finish(Status::kSizeMismatch);
  space_.policy().touch(item.handle);
  item.finish(Status::kExists);
}

bool Owner::await_busy(std::span<PutItem> items, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  WaitClock clock(put_waits_);
  for (PutItem& item : items)
    if (item.phase == PutPhase::kBusy) await_busy_item(lock, item, deadline, clock);
  return end_if_over(items);
}

void Owner::await_busy_item(std::unique_lock<CountedMutex>& lock, PutItem& item,
                            const Deadline& deadline, WaitClock& clock) {
  uint32_t handle = table_.find(item.hash);
  while (handle != kNoHandle && table_.state(handle) == State::kFilling) {
    if (deadline.passed()) return item.finish(Status::kBusy);
    clock.measure([&] { changed_.wait_until(lock, deadline.at()); });
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

void Owner::wake() {
  { std::lock_guard lock(mutex_); }  // whoever has looked at its deadline and not slept yet, sleeps now
  changed_.notify_all();
}

void Owner::trim_to_watermark() {
  const auto capacity = static_cast<double>(config_.capacity_bytes);
  // What is retired and still named is on its way out: it is not made up for by evicting more.
  const auto used = [&] {
    return static_cast<double>(space_.totals().used_bytes - space_.totals().retired_bytes);
  };
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
  stats.entry_count = config_.entry_count;
  stats.evicted_for_entries = evicted_for_entries_;
  stats.put_waits = put_waits_.read();
  stats.puts_by_status = puts_by_status_;
  return stats;
}

uint64_t Owner::nbytes_if_used(uint32_t handle) const {
  return table_.state(handle) == State::kFree ? 0 : table_.entry(handle).nbytes;
}

std::vector<ClientReport> Owner::clients() {
  std::lock_guard lock(mutex_);
  std::vector<ClientReport> reports;
  std::vector<bool> counted(config_.entry_count);
  clients_.for_each([&](const Client& client) {
    ClientReport& report = reports.emplace_back();
    report.id = client.id;
    report.pid = client.pid != 0 ? client.pid : getpid();
    for (size_t i = 0; i < kFigures; ++i)
      report.figures[i] = client.area.head->figures[i].load(std::memory_order_relaxed);
    std::fill(counted.begin(), counted.end(), false);
    const auto add = [&](uint32_t handle) {
      if (handle >= counted.size() || counted[handle]) return;
      counted[handle] = true;
      report.named_bytes += nbytes_if_used(handle);
    };
    for_each_in_sessions(client, add);
    report.session_bytes = report.named_bytes;
    for_each_in_slots(client, add);
  });
  return reports;
}

std::vector<ComponentTotals> Owner::component_totals() {
  std::lock_guard lock(mutex_);
  return space_.component_totals();
}

Client& Owner::add_client(uint32_t chunk_count, bool prefault) {
  MappingOptions options = at_once(config_.memory);
  options.prefault = options.prefault && prefault;
  std::lock_guard lock(mutex_);
  return clients_.add(chunk_count, options);
}

void Owner::bind_client(uint32_t id, pid_t pid, int pidfd) {
  std::lock_guard lock(mutex_);
  clients_.bind_process(id, pid, pidfd);
}

void Owner::remove_client(uint32_t id) {
  std::lock_guard lock(mutex_);
  clients_.remove(id);
  space_.release_unnamed();
  changed_.notify_all();
}

std::array<int, 4> Owner::descriptors() const {
  return {table_.header_memory().fd(), table_.bucket_memory().fd(), table_.entry_memory().fd(),
          arena_.fd()};
}

}  // namespace umbp
