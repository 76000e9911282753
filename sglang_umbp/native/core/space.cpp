#include "space.h"

#include <algorithm>

namespace umbp {
namespace {

// Above this a pass is dear, and it pays to retire more at a time (PROTOCOL, "Owner").
constexpr std::chrono::microseconds kCheapPass{200};
constexpr uint64_t kQuantumDivisor = 64;

}  // namespace

Space::Space(ObjectTable& table, ClientList& clients, std::unique_ptr<EvictionPolicy> policy,
             uint64_t capacity_bytes, uint64_t arena_bytes)
    : table_(table),
      clients_(clients),
      policy_(std::move(policy)),
      extents_(arena_bytes, kArenaGranule),
      capacity_bytes_(capacity_bytes),
      named_(table.entry_count(), 0),
      protects_(table.entry_count(), 0) {}

void Space::drain_recency() {
  clients_.drain_rings([this](uint32_t handle) {
    if (handle < table_.entry_count()) policy_->touch(handle);
  });
}

uint32_t Space::take(const Hash128& hash, uint32_t component, std::string_view key,
                     uint64_t nbytes) {
  if (totals_.used_bytes + nbytes > capacity_bytes_ || table_.free_entries() == 0 ||
      !table_.has_word_for(hash))
    return kNoHandle;
  const auto offset = extents_.take(nbytes);
  if (!offset) return kNoHandle;
  uint32_t handle;
  try {
    handle = table_.take(hash, component, key, *offset, nbytes);
  } catch (...) {  // no memory for the owner's copy of the key
    extents_.give_back(*offset, nbytes);
    throw;
  }
  totals_.used_bytes += nbytes;
  return handle;
}

void Space::make_live(uint32_t handle) {
  table_.make_live(handle);
  policy_->insert(handle);
  totals_.live_bytes += table_.entry(handle).nbytes;
  ++objects_;
}

void Space::abandon(uint32_t handle) {
  const Entry& entry = table_.entry(handle);
  extents_.give_back(entry.offset, entry.nbytes);
  totals_.used_bytes -= entry.nbytes;
  table_.free(handle);
}

void Space::retire(uint32_t handle) {
  const uint64_t nbytes = table_.entry(handle).nbytes;
  table_.retire(handle);
  policy_->remove(handle);
  retired_.push_back(handle);
  totals_.live_bytes -= nbytes;
  --objects_;
  totals_.retired_bytes += nbytes;
}

uint64_t Space::evict(const Need& need) {
  uint64_t progress = release_unnamed();
  if (progress != 0) return progress;
  const bool dear = last_pass_ > kCheapPass;
  const uint64_t bytes = dear ? std::max(need.bytes, capacity_bytes_ / kQuantumDivisor) : need.bytes;
  if (need.crowded != nullptr) progress += retire_in_buckets(*need.crowded);
  progress += retire_in_order(bytes, need.entries);
  if (progress != 0) progress += release_unnamed();
  return progress;
}

uint64_t Space::release_unnamed() {
  pass();
  uint64_t freed = 0;
  std::erase_if(retired_, [&](uint32_t handle) {
    if (named(handle)) return false;
    totals_.retired_bytes -= table_.entry(handle).nbytes;
    abandon(handle);
    ++freed;
    return true;
  });
  return freed;
}

void Space::pass() {
  const auto start = std::chrono::steady_clock::now();
  ++totals_.passes;
  if (++pass_number_ == 0) {  // wrapped: old marks would read as new ones
    std::fill(named_.begin(), named_.end(), 0);
    pass_number_ = 1;
  }
  clients_.reap_dead();
  clients_.for_each_named([this](uint32_t handle) {
    if (handle < named_.size()) named_[handle] = pass_number_;
  });
  last_pass_ = std::chrono::steady_clock::now() - start;
}

bool Space::may_evict(uint32_t handle) const {
  return table_.state(handle) == State::kLive && !named(handle) && protects_[handle] == 0;
}

uint64_t Space::retire_in_order(uint64_t bytes, uint32_t entries) {
  uint64_t retired_bytes = 0;
  uint64_t retired = 0;
  for (uint32_t handle = policy_->first();
       handle != kNoHandle && (retired_bytes < bytes || retired < entries);) {
    const uint32_t next = policy_->after(handle);
    if (may_evict(handle)) {
      retired_bytes += evict_one(handle);
      ++retired;
    }
    handle = next;
  }
  return retired;
}

uint64_t Space::retire_in_buckets(const Hash128& hash) {
  uint32_t victim = kNoHandle;
  table_.for_each_in_buckets(hash, [&](uint32_t handle) {
    if (victim == kNoHandle && may_evict(handle)) victim = handle;
  });
  if (victim == kNoHandle) return 0;
  evict_one(victim);
  return 1;
}

uint64_t Space::evict_one(uint32_t handle) {
  const uint64_t nbytes = table_.entry(handle).nbytes;
  retire(handle);
  ++totals_.evicted_objects;
  totals_.evicted_bytes += nbytes;
  return nbytes;
}

}  // namespace umbp
