// Where the time of a call goes. Switched off, no clock is read.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace umbp {

enum class Phase : uint8_t {
  kResolve,   // index look-up, publish, fence, check
  kClassify,  // registration of the caller's memory
  kBuild,     // keys and shapes
  kAllocate,  // put: entries, extents, eviction, waiting for room
  kPlan,      // coalescing
  kSubmit,    // the copy
  kWait,      // for copies that others make
  kCommit,    // put: visible
  kOther,
};
inline constexpr size_t kPhaseCount = 9;

// Sums over the calls of one direction.
class PhaseTotals {
 public:
  struct Snapshot {
    uint64_t calls = 0;
    uint64_t items = 0;
    uint64_t bytes = 0;
    std::array<uint64_t, kPhaseCount> ns{};
  };

  void add(const Snapshot& call) {
    calls_.fetch_add(call.calls, std::memory_order_relaxed);
    items_.fetch_add(call.items, std::memory_order_relaxed);
    bytes_.fetch_add(call.bytes, std::memory_order_relaxed);
    for (size_t i = 0; i < kPhaseCount; ++i)
      ns_[i].fetch_add(call.ns[i], std::memory_order_relaxed);
  }

  Snapshot read() const {
    Snapshot sum{calls_.load(std::memory_order_relaxed), items_.load(std::memory_order_relaxed),
                 bytes_.load(std::memory_order_relaxed), {}};
    for (size_t i = 0; i < kPhaseCount; ++i) sum.ns[i] = ns_[i].load(std::memory_order_relaxed);
    return sum;
  }

 private:
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> items_{0};
  std::atomic<uint64_t> bytes_{0};
  std::array<std::atomic<uint64_t>, kPhaseCount> ns_{};
};

// One call's phases, added to the totals on every way out. Disjoint by construction: one cursor, and
// each mark gives the time since the last one to one phase.
class PhaseTimer {
 public:
  PhaseTimer(bool enabled, PhaseTotals& totals) : totals_(enabled ? &totals : nullptr) {
    if (totals_ != nullptr) last_ = Clock::now();
  }
  ~PhaseTimer() {
    if (totals_ == nullptr) return;
    mark(Phase::kOther);
    call_.calls = 1;
    totals_->add(call_);
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

  void mark(Phase phase) {
    if (totals_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    call_.ns[static_cast<size_t>(phase)] += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count());
    last_ = now;
  }
  void count(uint64_t items, uint64_t bytes) {
    call_.items += items;
    call_.bytes += bytes;
  }

 private:
  using Clock = std::chrono::steady_clock;
  PhaseTotals* totals_;
  Clock::time_point last_;
  PhaseTotals::Snapshot call_;
};

}  // namespace umbp
