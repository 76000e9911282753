#include "space.h"

#include <algorithm>
#include <iterator>

namespace umbp {
namespace {

// Above this a pass is dear, and it pays to retire more at a time (PROTOCOL, "Owner").
constexpr std::chrono::microseconds kCheapPass{200};
constexpr uint64_t kQuantumDivisor = 64;
constexpr uint32_t kNeighbourTries = 64;

}  // namespace

Space::Space(ObjectTable& table, ClientList& clients, std::unique_ptr<EvictionPolicy> policy,
             uint64_t capacity_bytes, uint64_t arena_bytes)
    : table_(table),
      clients_(clients),
      policy_(std::move(policy)),
      extents_(arena_bytes, kArenaGranule, table.entry_count()),
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
  const uint32_t handle = table_.next_handle();
  const auto offset = extents_.take(nbytes, handle);
  if (!offset) return kNoHandle;
  try {
    table_.take(hash, component, key, *offset, nbytes);
  } catch (...) {  // no memory for the owner's copy of the key
    extents_.give_back(*offset, nbytes, handle);
    throw;
  }
  totals_.used_bytes += nbytes;
  return handle;
}

void Space::make_live(uint32_t handle, uint32_t depth) {
  table_.make_live(handle);
  policy_->insert(handle, depth);
  const Entry& entry = table_.entry(handle);
  totals_.live_bytes += entry.nbytes;
  ++objects_;
  if (entry.component >= component_totals_.size()) component_totals_.resize(entry.component + 1);
  component_totals_[entry.component].objects += 1;
  component_totals_[entry.component].nbytes += entry.nbytes;
}

void Space::abandon(uint32_t handle) {
  const Entry& entry = table_.entry(handle);
  extents_.give_back(entry.offset, entry.nbytes, handle);
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
  ComponentTotals& of_component = component_totals_[table_.entry(handle).component];
  of_component.objects -= 1;
  of_component.nbytes -= nbytes;
  totals_.retired_bytes += nbytes;
}

uint64_t Space::evict(const Need& need) {
  uint64_t progress = release_unnamed();
  if (progress != 0) return progress;
  // Both of the last two: one alone may have been interrupted.
  const bool dear = std::min(passes_took_[0], passes_took_[1]) > kCheapPass;
  const uint64_t bytes = dear ? std::max(need.bytes, capacity_bytes_ / kQuantumDivisor) : need.bytes;
  if (need.crowded != nullptr) progress += retire_in_buckets(*need.crowded);
  if (need.extent != 0) progress += retire_neighbours(need.extent, need.extents);
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
  passes_took_ = {passes_took_[1], std::chrono::steady_clock::now() - start};
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

// Makes unbroken extents, `count` at most: each round the policy's next victim, whatever may go on either side of it.
// Without this, objects far apart would go one by one until two of them happen to be neighbours.
uint64_t Space::retire_neighbours(uint64_t nbytes, uint32_t count) {
  uint64_t retired = 0;
  uint32_t tries = 0;
  for (uint32_t handle = policy_->first();
       handle != kNoHandle && tries < kNeighbourTries && count != 0;) {
    const auto window = may_evict(handle) ? window_round(handle, nbytes) : std::vector<uint32_t>{};
    if (window.empty()) {
      tries += may_evict(handle) ? 1 : 0;
      handle = policy_->after(handle);
      continue;
    }
    for (const uint32_t victim : window) evict_one(victim);
    retired += window.size();
    --count;
    handle = policy_->first();
  }
  if (retired != 0) return retired;
  const std::vector<uint32_t> window = first_window(nbytes);
  for (const uint32_t victim : window) evict_one(victim);
  return window.size();
}

// Victims whose extents, with the free ones between them, are nbytes in one piece; none if objects
// that must stay are in the way.
std::vector<uint32_t> Space::window_round(uint32_t handle, uint64_t nbytes) const {
  uint32_t below = extents_.below(handle);  // the window lies between these two
  uint32_t above = extents_.above(handle);
  std::vector<uint32_t> victims{handle};
  const auto start = [&] { return below == kNoHandle ? 0 : end_of(below); };
  const auto end = [&] {
    return above == kNoHandle ? extents_.arena_bytes() : table_.entry(above).offset;
  };
  while (end() - start() < nbytes) {
    if (above != kNoHandle && may_evict(above)) {
      victims.push_back(above);
      above = extents_.above(above);
    } else if (below != kNoHandle && may_evict(below)) {
      victims.push_back(below);
      below = extents_.below(below);
    } else {
      return {};
    }
  }
  return victims;
}

// The same wherever there is one: the next victims may all lie in gaps that are too narrow, between
// members of the batch. One walk over the arena.
std::vector<uint32_t> Space::first_window(uint64_t nbytes) const {
  std::vector<uint32_t> victims;
  uint64_t start = 0;  // all of [start, at) is free or may go
  for (uint32_t handle = extents_.lowest(); handle != kNoHandle; handle = extents_.above(handle)) {
    if (table_.entry(handle).offset - start >= nbytes && !victims.empty()) return victims;
    if (may_evict(handle)) {
      victims.push_back(handle);
    } else {
      victims.clear();
      start = end_of(handle);
    }
  }
  if (extents_.arena_bytes() - start < nbytes) victims.clear();
  return victims;
}

uint64_t Space::end_of(uint32_t handle) const {
  const Entry& entry = table_.entry(handle);
  return entry.offset + extents_.rounded(entry.nbytes);
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
