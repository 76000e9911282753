// Room in the arena: capacity, extents, victims, and the passes that prove memory unnamed.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client_list.h"
#include "eviction_policy.h"
#include "extent_allocator.h"
#include "object_table.h"

namespace umbp {

struct SpaceTotals {
  uint64_t live_bytes = 0;
  uint64_t used_bytes = 0;  // live, being filled, and retired but still named
  uint64_t retired_bytes = 0;
  uint64_t evicted_objects = 0;
  uint64_t evicted_bytes = 0;
  uint64_t passes = 0;
};

// Live objects of one component.
struct ComponentTotals {
  uint64_t objects = 0;
  uint64_t nbytes = 0;
};

// Not thread-safe: the owner's mutex guards it.
class Space {
 public:
  Space(ObjectTable& table, ClientList& clients, std::unique_ptr<EvictionPolicy> policy,
        uint64_t capacity_bytes, uint64_t arena_bytes);

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  const SpaceTotals& totals() const { return totals_; }
  uint64_t objects() const { return objects_; }
  const std::vector<ComponentTotals>& component_totals() const { return component_totals_; }
  EvictionPolicy& policy() { return *policy_; }
  void drain_recency();

  // Entry and extent are one resource: both or nothing (kNoHandle).
  uint32_t take(const Hash128& hash, uint32_t component, std::string_view key, uint64_t nbytes);
  void make_live(uint32_t handle, uint32_t depth);
  void abandon(uint32_t handle);  // a FILLING entry whose put failed
  void retire(uint32_t handle);   // LIVE, by remove or clear

  // An object that a put in flight found present must not be its victim.
  void protect(uint32_t handle) { ++protects_[handle]; }
  void unprotect(uint32_t handle) { --protects_[handle]; }

  struct Need {
    uint64_t bytes = 0;
    uint32_t entries = 0;
    const Hash128* crowded = nullptr;  // a key whose two buckets are full
    uint64_t extent = 0;  // bytes there are, but not this many in one piece
    uint32_t extents = 1;  // how many such pieces at once
  };
  // Retires the policy's next unnamed victims, at least as much as is needed, and frees what a pass
  // after that shows unnamed. Returns the number of objects retired or freed: 0 means wait.
  uint64_t evict(const Need& need);
  // A pass, and frees what is retired and unnamed. Returns the number freed.
  uint64_t release_unnamed();

 private:
  void pass();
  bool named(uint32_t handle) const { return named_[handle] == pass_number_; }
  bool may_evict(uint32_t handle) const;
  uint64_t retire_in_order(uint64_t bytes, uint32_t entries);
  uint64_t retire_in_buckets(const Hash128& hash);
  uint64_t retire_neighbours(uint64_t nbytes, uint32_t count);
  std::vector<uint32_t> window_round(uint32_t handle, uint64_t nbytes) const;
  std::vector<uint32_t> first_window(uint64_t nbytes) const;
  uint64_t end_of(uint32_t handle) const;
  uint64_t evict_one(uint32_t handle);

  ObjectTable& table_;
  ClientList& clients_;
  std::unique_ptr<EvictionPolicy> policy_;
  ExtentAllocator extents_;
  uint64_t capacity_bytes_;
  SpaceTotals totals_;
  uint64_t objects_ = 0;  // LIVE
  std::vector<ComponentTotals> component_totals_;  // by component number
  std::vector<uint32_t> retired_;
  std::vector<uint32_t> named_;     // pass number in which the handle was last seen named
  std::vector<uint32_t> protects_;
  uint32_t pass_number_ = 0;
  std::array<std::chrono::nanoseconds, 2> passes_took_{};  // the one before the last, and the last
};

}  // namespace umbp
