// A mutex that counts how often it was taken: the figure "locks per get" is read from it.
#pragma once

#include <cstdint>
#include <mutex>

namespace umbp {

class CountedMutex {
 public:
  void lock() {
    mutex_.lock();
    ++acquisitions_;
  }
  void unlock() { mutex_.unlock(); }

  // Only while holding it.
  uint64_t acquisitions() const { return acquisitions_; }

 private:
  std::mutex mutex_;
  uint64_t acquisitions_ = 0;
};

}  // namespace umbp
