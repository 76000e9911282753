// What reads did, counted without a lock: one line a slot (or session), so that the additions of
// threads that read at once do not meet.
#pragma once

#include <atomic>
#include <cstdint>

namespace umbp {

struct ReadTotals {
  uint64_t calls = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t bytes = 0;
};

class alignas(64) ReadLedger {
 public:
  void add(const ReadTotals& delta) {
    bump(calls_, delta.calls);
    bump(hits_, delta.hits);
    bump(misses_, delta.misses);
    bump(bytes_, delta.bytes);
  }

  void add_to(ReadTotals& sum) const {
    sum.calls += calls_.load(std::memory_order_relaxed);
    sum.hits += hits_.load(std::memory_order_relaxed);
    sum.misses += misses_.load(std::memory_order_relaxed);
    sum.bytes += bytes_.load(std::memory_order_relaxed);
  }

 private:
  static void bump(std::atomic<uint64_t>& counter, uint64_t delta) {
    if (delta != 0) counter.fetch_add(delta, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace umbp
