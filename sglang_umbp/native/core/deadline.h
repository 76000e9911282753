// A point in time after which a call gives up.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace umbp {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  // called_off: passes as well once this is true; whoever sets it wakes those who wait.
  static Deadline after(std::chrono::nanoseconds timeout,
                        const std::atomic<bool>* called_off = nullptr) {
    return Deadline(Clock::now() + timeout, called_off);
  }

  bool passed() const {
    return Clock::now() >= at_ ||
           (called_off_ != nullptr && called_off_->load(std::memory_order_acquire));
  }
  Clock::time_point at() const { return at_; }

  // Now + step, but no later than the deadline.
  Clock::time_point within(std::chrono::nanoseconds step) const {
    return std::min(at_, Clock::now() + std::chrono::duration_cast<Clock::duration>(step));
  }

 private:
  Deadline(Clock::time_point at, const std::atomic<bool>* called_off)
      : at_(at), called_off_(called_off) {}

  Clock::time_point at_;
  const std::atomic<bool>* called_off_;
};

}  // namespace umbp
