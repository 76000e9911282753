#include "slot_claims.h"

#include <bit>
#include <thread>

namespace umbp {
namespace {

thread_local int preferred_slot = 0;  // the slot this thread had last: its lines are in this core's cache

}  // namespace

int SlotClaims::try_claim() {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  while (taken != ~uint64_t{0}) {
    const int slot = taken >> preferred_slot & 1 ? std::countr_one(taken) : preferred_slot;
    if (taken_.compare_exchange_weak(taken, taken | uint64_t{1} << slot,
                                     std::memory_order_seq_cst)) {
      preferred_slot = slot;
      return slot;
    }
  }
  return -1;
}

int SlotClaims::claim(std::chrono::nanoseconds timeout) {
  const int slot = try_claim();
  if (slot >= 0) return slot;
  const Deadline deadline = Deadline::after(timeout);
  while (!deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    const int later = try_claim();
    if (later >= 0) return later;
  }
  return -1;
}

ReadTotals SlotClaims::totals() const {
  ReadTotals sum;
  for (const ReadLedger& ledger : ledgers_) ledger.add_to(sum);
  return sum;
}

}  // namespace umbp
