#include "remote_batch.h"

#include <algorithm>
#include <array>

#include "errors.h"
#include "pool_call.h"

namespace umbp {
namespace {

constexpr const char* kStepNames[] = {"allocate", "commit", "await_busy", "nothing: it is over"};

size_t total_bytes(std::span<const std::string_view> keys) {
  size_t sum = 0;
  for (const std::string_view key : keys) sum += key.size();
  return sum;
}

void check_counts(std::span<const RemoteBatch::Group> groups, size_t keys) {
  size_t left = keys;
  for (const RemoteBatch::Group& group : groups) {
    if (group.count > left)
      throw InvalidBatch("the groups count more than the " + std::to_string(keys) + " keys");
    left -= group.count;
  }
  if (left != 0)
    throw InvalidBatch("the groups leave out " + std::to_string(left) + " of " +
                       std::to_string(keys) + " keys");
}

std::chrono::nanoseconds left_until(const Deadline& deadline) {
  return std::max(std::chrono::nanoseconds(0),
                  std::chrono::duration_cast<std::chrono::nanoseconds>(
                      deadline.at() - std::chrono::steady_clock::now()));
}

}  // namespace

RemoteBatch::RemoteBatch(Pool& pool, const Component& component, std::span<const Hash128> digests,
                         std::span<const std::string_view> keys, const uint64_t* sizes,
                         std::optional<uint32_t> depth)
    : RemoteBatch(pool, std::array{Group{component, keys.size(), depth}}, digests, keys, sizes) {}

RemoteBatch::RemoteBatch(Pool& pool, std::span<const Group> groups,
                         std::span<const Hash128> digests, std::span<const std::string_view> keys,
                         const uint64_t* sizes)
    : pool_(pool) {
  Pool::Call call(pool_);
  pool_.owner();
  check_counts(groups, keys.size());
  key_bytes_.reserve(total_bytes(keys));  // never moves from here on: items look into it
  std::vector<std::string_view> own;
  for (const std::string_view key : keys) {
    own.emplace_back(key_bytes_.data() + key_bytes_.size(), key.size());
    key_bytes_.append(key);
  }
  items_.reserve(own.size());
  for (const Group& group : groups)
    append_items(items_, group.component.id, group.component.key,
                 digests.subspan(items_.size(), group.count),
                 std::span(own).subspan(items_.size(), group.count), group.depth);
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].nbytes = sizes[i];
    if (sizes[i] == 0) items_[i].finish(Status::kBadRange);
    if (sizes[i] <= pool_.config_.owner.capacity_bytes) asked_ += sizes[i];
  }
}

RemoteBatch::~RemoteBatch() { abandon(); }

void RemoteBatch::begin(Step step) const {
  if (abandoned()) throw InvalidBatch("the batch was abandoned: what it reserved is free");
  if (next_ != step)
    throw InvalidBatch(std::string("not the batch's turn to ") +
                       kStepNames[static_cast<size_t>(step)] + "; next is " +
                       kStepNames[static_cast<size_t>(next_)]);
}

template <class F>
void RemoteBatch::run(const F& f) {
  try {
    f();
  } catch (...) {
    abandoned_.store(true, std::memory_order_release);
    free_reserved();
    throw;
  }
  count();
  pool_.note_troubles();
}

void RemoteBatch::allocate(std::chrono::nanoseconds timeout) {
  Pool::Call call(pool_);
  std::lock_guard lock(mutex_);
  begin(Step::kAllocate);
  run([&] {
    pool_.owner().allocate(items_, Deadline::after(timeout, &abandoned_));
    next_ = Step::kCommit;
    begin(Step::kCommit);  // abandoned meanwhile: nobody is told an offset that is not his any more
  });
}

bool RemoteBatch::commit() {
  Pool::Call call(pool_);
  std::lock_guard lock(mutex_);
  begin(Step::kCommit);
  run([&] { next_ = pool_.owner().commit(items_) ? Step::kOver : Step::kAwaitBusy; });
  return next_ == Step::kOver;
}

bool RemoteBatch::await_busy(std::chrono::nanoseconds timeout) {
  Pool::Call call(pool_);
  std::lock_guard lock(mutex_);
  begin(Step::kAwaitBusy);
  run([&] {
    const bool over = pool_.owner().await_busy(items_, Deadline::after(timeout, &abandoned_));
    next_ = over ? Step::kOver : Step::kAllocate;
  });
  return next_ == Step::kOver;
}

void RemoteBatch::abandon() {
  if (guard_.foreign()) return;  // a forked child has no part in it
  abandoned_.store(true, std::memory_order_release);
  try {
    Pool::Call call(pool_);
    pool_.owner().wake();
    std::lock_guard lock(mutex_);
    free_reserved();
  } catch (const PoolClosed&) {  // its memory went with the pool
  }
}

// With the mutex held.
void RemoteBatch::free_reserved() {
  if (next_ == Step::kOver) return;
  pool_.owner().abandon(items_);
  for (PutItem& item : items_)
    if (item.phase != PutPhase::kDone) item.finish(Status::kCleared);
  next_ = Step::kOver;
  count();
}

std::vector<RemoteBatch::Answer> RemoteBatch::answers() const {
  std::lock_guard lock(mutex_);
  std::vector<Answer> answers;
  for (const PutItem& item : items_) answers.push_back({item.phase, item.status, item.offset});
  return answers;
}

RemoteBatch::Next RemoteBatch::start(std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  allocate(timeout);
  return next(deadline);
}

RemoteBatch::Next RemoteBatch::proceed(std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  return finish(deadline) ? ended() : next(deadline);
}

// Commits before it waits for other puts of the same keys: else two crossing batches wait for each other.
bool RemoteBatch::finish(const Deadline& deadline) {
  if (commit() || await_busy(left_until(deadline))) return true;
  allocate(left_until(deadline));
  return false;
}

RemoteBatch::Next RemoteBatch::next(const Deadline& deadline) {
  while (true) {
    Next copies = to_copy();
    if (!copies.picks.empty()) return copies;
    if (finish(deadline)) return ended();
  }
}

RemoteBatch::Next RemoteBatch::to_copy() const {
  std::lock_guard lock(mutex_);
  Next next;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].phase != PutPhase::kNew) continue;
    next.picks.push_back(static_cast<uint32_t>(i));
    next.offsets.push_back(items_[i].offset);
  }
  return next;
}

RemoteBatch::Next RemoteBatch::ended() const {
  std::lock_guard lock(mutex_);
  Next next;
  next.over = true;
  for (const PutItem& item : items_) next.statuses.push_back(item.status);
  return next;
}

// What others ask while a step may be waiting.
void RemoteBatch::count() {
  uint64_t reserved = 0, held = 0;
  for (const PutItem& item : items_) {
    if (item.phase == PutPhase::kNew) reserved += item.nbytes;
    if (item.is_protected) held += item.nbytes;
  }
  reserved_.store(reserved, std::memory_order_relaxed);
  held_.store(held, std::memory_order_relaxed);
  over_.store(next_ == Step::kOver, std::memory_order_release);
}

}  // namespace umbp
