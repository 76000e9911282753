// A point in time after which a call gives up.
#pragma once

#include <algorithm>
#include <chrono>

namespace umbp {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static Deadline after(std::chrono::nanoseconds timeout) { return Deadline(Clock::now() + timeout); }

  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }

  // Now + step, but no later than the deadline.
  Clock::time_point within(std::chrono::nanoseconds step) const {
    return std::min(at_, Clock::now() + std::chrono::duration_cast<Clock::duration>(step));
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace umbp
