// Which slots of this process's client area are in use. A slot belongs to a call, not to a thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "deadline.h"
#include "read_ledger.h"
#include "shared_layout.h"

namespace umbp {

class SlotClaims {
 public:
  // The number of a slot that nobody else uses until release(), or -1 once the deadline has passed.
  int claim(std::chrono::nanoseconds timeout);
  void release(int slot) {
    taken_.fetch_and(~(uint64_t{1} << slot), std::memory_order_seq_cst);
  }

  bool idle() const { return taken_.load(std::memory_order_seq_cst) == 0; }
  ReadLedger& ledger(int slot) { return ledgers_[slot]; }
  // For what calls without a slot count.
  ReadLedger& spare_ledger() { return ledgers_[kSlots]; }
  ReadTotals totals() const;

 private:
  int try_claim();

  alignas(64) std::atomic<uint64_t> taken_{0};
  std::array<ReadLedger, kSlots + 1> ledgers_;
};

}  // namespace umbp
