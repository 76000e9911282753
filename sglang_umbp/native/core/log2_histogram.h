// Durations by powers of two, counted without a lock. The bounds are fixed, so histograms can be added.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace umbp {

// Bucket i counts durations of at most 2^i microseconds (and above 2^(i-1)); the last one, longer ones.
inline constexpr size_t kHistogramBuckets = 26;

class Log2Histogram {
 public:
  struct Snapshot {
    std::array<uint64_t, kHistogramBuckets> counts{};
    uint64_t total_ns = 0;
  };

  void add(std::chrono::nanoseconds duration) {
    const auto ns = static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0));
    counts_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  Snapshot read() const {
    Snapshot snapshot;
    for (size_t i = 0; i < kHistogramBuckets; ++i)
      snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
    snapshot.total_ns = total_ns_.load(std::memory_order_relaxed);
    return snapshot;
  }

  static size_t bucket_of(uint64_t ns) {
    const uint64_t us = ns / 1000 + (ns % 1000 != 0);  // rounded up: a bound belongs to its bucket
    return us <= 1 ? 0 : std::min<size_t>(std::bit_width(us - 1), kHistogramBuckets - 1);
  }

 private:
  std::array<std::atomic<uint64_t>, kHistogramBuckets> counts_{};
  std::atomic<uint64_t> total_ns_{0};
};

// Adds one call's duration on every way out. Switched off (nullptr), no clock is read.
class CallLatency {
 public:
  explicit CallLatency(Log2Histogram* histogram) : histogram_(histogram) {
    if (histogram_ != nullptr) start_ = Clock::now();
  }
  ~CallLatency() {
    if (histogram_ != nullptr) histogram_->add(Clock::now() - start_);
  }
  CallLatency(const CallLatency&) = delete;
  CallLatency& operator=(const CallLatency&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  Log2Histogram* histogram_;
  Clock::time_point start_;
};

// The time that one put spends waiting, counted when it is over and only if there was any.
class WaitClock {
 public:
  explicit WaitClock(Log2Histogram& histogram) : histogram_(histogram) {}
  ~WaitClock() {
    if (waited_.count() > 0) histogram_.add(waited_);
  }
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;

  template <class Wait>
  void measure(const Wait& wait) {
    const auto start = std::chrono::steady_clock::now();
    wait();
    waited_ += std::chrono::steady_clock::now() - start;
  }

 private:
  Log2Histogram& histogram_;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace umbp
