#include "reader.h"

#include <algorithm>

namespace umbp {

void raise_mark(std::atomic<uint32_t>& mark, uint32_t at_least) {
  // Acquire: a mark that another thread raised comes before what this one names from here on.
  uint32_t seen = mark.load(std::memory_order_acquire);
  while (seen < at_least &&
         !mark.compare_exchange_weak(seen, at_least, std::memory_order_seq_cst)) {
  }
}

int Reader::claim_slot(std::chrono::nanoseconds timeout) {
  const int slot = slots_.claim(timeout);
  if (slot >= 0) raise_mark(area_.head->slots_used, static_cast<uint32_t>(slot) + 1);
  return slot;
}

void Reader::derive_keys(const Hash128& component_key, std::span<const Hash128> digests,
                         Hash128* out) const {
  constexpr size_t kAtOnce = 16;  // as many as are hashed in one go
  for (size_t start = 0; start < digests.size(); start += kAtOnce) {
    const auto part = digests.subspan(start, std::min(kAtOnce, digests.size() - start));
    prf128_batch(component_key, part, out + start);
    for (size_t i = start; i < start + part.size(); ++i)
      __builtin_prefetch(&index_.buckets[first_bucket(out[i], index_.bucket_count)]);
  }
}

NamedBatch::NamedBatch(Reader& reader, int slot, std::span<const Hash128> keys)
    : reader_(reader), slot_(slot), count_(static_cast<uint32_t>(keys.size())) {
  ReadProtocol<>::publish(reader_.index(), reader_.slot_list(slot_), keys.data(), count_, handles_);
}

NamedBatch::~NamedBatch() {
  ReadProtocol<>::withdraw(reader_.slot_list(slot_));
  reader_.slots().ledger(slot_).add(totals_);
}

const Entry& NamedBatch::entry(size_t i) const { return reader_.index().entries[handles_[i]]; }

void NamedBatch::record_recency() {
  reader_.record_recency(slot_, std::span(handles_, count_), [](uint32_t handle) { return handle; });
}

}  // namespace umbp
