// What reads did, counted without a lock: a few lines a slot (or session), so that the additions of
// threads that read at once do not meet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "status.h"

namespace umbp {

struct ReadTotals {
  uint64_t calls = 0;
  uint64_t bytes = 0;  // of hits
  uint64_t keys_looked_up = 0;  // by exists
  uint64_t keys_found = 0;
  std::array<uint64_t, kStatusCount> by_status{};  // keys of gets

  void count(Status status, uint64_t nbytes) {
    ++by_status[static_cast<size_t>(status)];
    if (status == Status::kOk) bytes += nbytes;
  }
  void add(const ReadTotals& other) {
    calls += other.calls;
    bytes += other.bytes;
    keys_looked_up += other.keys_looked_up;
    keys_found += other.keys_found;
    for (size_t i = 0; i < kStatusCount; ++i) by_status[i] += other.by_status[i];
  }
};

class alignas(64) ReadLedger {
 public:
  void add(const ReadTotals& delta) {
    bump(calls_, delta.calls);
    bump(bytes_, delta.bytes);
    bump(keys_looked_up_, delta.keys_looked_up);
    bump(keys_found_, delta.keys_found);
    for (size_t i = 0; i < kStatusCount; ++i) bump(by_status_[i], delta.by_status[i]);
  }

  void add_to(ReadTotals& sum) const {
    sum.calls += calls_.load(std::memory_order_relaxed);
    sum.bytes += bytes_.load(std::memory_order_relaxed);
    sum.keys_looked_up += keys_looked_up_.load(std::memory_order_relaxed);
    sum.keys_found += keys_found_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < kStatusCount; ++i)
      sum.by_status[i] += by_status_[i].load(std::memory_order_relaxed);
  }

 private:
  static void bump(std::atomic<uint64_t>& counter, uint64_t delta) {
    if (delta != 0) counter.fetch_add(delta, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> bytes_{0};
  std::array<std::atomic<uint64_t>, kStatusCount> by_status_{};
  std::atomic<uint64_t> keys_looked_up_{0};
  std::atomic<uint64_t> keys_found_{0};
};

}  // namespace umbp
