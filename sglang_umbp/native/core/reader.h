// The reading side of one process: its client area, the slots of its calls, the chunks of its sessions.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "chunk_claims.h"
#include "read_protocol.h"
#include "shared_layout.h"
#include "slot_claims.h"

namespace umbp {

class Reader;

// The objects of one batch (at most kSlotHandles), named from construction to destruction. Their
// memory is neither reused nor changed meanwhile.
class NamedBatch {
 public:
  NamedBatch(Reader& reader, int slot, std::span<const Hash128> keys);
  ~NamedBatch();
  NamedBatch(const NamedBatch&) = delete;
  NamedBatch& operator=(const NamedBatch&) = delete;

  bool found(size_t i) const { return handles_[i] != kNoHandle; }
  // Only where found(i).
  const Entry& entry(size_t i) const;
  void record_recency();
  ReadTotals& totals() { return totals_; }  // added to the ledger at the end

 private:
  Reader& reader_;
  int slot_;
  uint32_t count_;
  ReadTotals totals_;
  uint32_t handles_[kSlotHandles];
};

class Reader {
 public:
  Reader(const IndexView& index, const ClientArea& area)
      : index_(index), area_(area), chunks_(area.head->chunk_count) {}

  const IndexView& index() const { return index_; }
  const ClientArea& area() const { return area_; }
  SlotClaims& slots() { return slots_; }
  ChunkClaims& chunks() { return chunks_; }

  // A slot for one call, or -1 at the deadline. Give it back with release_slot.
  int claim_slot(std::chrono::nanoseconds timeout);
  void release_slot(int slot) { slots_.release(slot); }

  // out[i]: the component's key of digests[i]. Each key's first bucket is on its way meanwhile, so that
  // what is computed here hides what is loaded there.
  void derive_keys(const Hash128& component_key, std::span<const Hash128> digests,
                   Hash128* out) const;

  HazardList slot_list(int slot) { return {&area_.slots[slot].n, area_.slots[slot].handles}; }
  HazardList chunk_list(uint32_t chunk) {
    return {&area_.chunks[chunk].n, area_.chunks[chunk].handles};
  }
  // Leaves the handle of each item in the slot's ring for the owner's eviction policy; kNoHandle is skipped.
  template <class Items, class HandleOf>
  void record_recency(int slot, const Items& items, HandleOf handle_of_item);

 private:
  IndexView index_;
  ClientArea area_;
  SlotClaims slots_;
  ChunkClaims chunks_;
};

template <class Items, class HandleOf>
void Reader::record_recency(int slot, const Items& items, HandleOf handle_of_item) {
  Slot& mine = area_.slots[slot];
  uint32_t head = mine.ring_head.load(std::memory_order_relaxed);
  for (const auto& item : items) {
    const uint32_t handle = handle_of_item(item);
    if (handle == kNoHandle) continue;
    mine.ring[head % kRingHandles].store(handle, std::memory_order_relaxed);
    ++head;
  }
  mine.ring_head.store(head, std::memory_order_release);
}

// Gives the slot back on every way out.
class SlotGuard {
 public:
  SlotGuard(Reader& reader, int slot) : reader_(reader), slot_(slot) {}
  ~SlotGuard() {
    if (slot_ >= 0) reader_.release_slot(slot_);
  }
  SlotGuard(const SlotGuard&) = delete;
  SlotGuard& operator=(const SlotGuard&) = delete;

 private:
  Reader& reader_;
  int slot_;
};

// Whether the entry's bytes lie in the arena: what a reader in another process must not take on trust.
inline bool within_arena(const IndexView& index, const Entry& entry) {
  return entry.nbytes <= index.arena_bytes && entry.offset <= index.arena_bytes - entry.nbytes;
}

// Raises a high-water mark, visible before anything that is named afterwards.
void raise_mark(std::atomic<uint32_t>& mark, uint32_t at_least);

}  // namespace umbp
