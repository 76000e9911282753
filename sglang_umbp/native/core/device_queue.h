// Copies that take turns.
#pragma once

#include <atomic>
#include <utility>

#include "device_handles.h"

namespace umbp {

// A stream that copies of several lanes are put into, and how many are in it.
struct CopyQueue {
  CopyQueue(DeviceApi& api, int device, bool high_priority) : stream(api, device, high_priority) {}

  const DeviceStream stream;
  std::atomic<unsigned> copies{0};
};

// One copy's place in a queue, or in none, for as long as this lives.
class QueuePlace {
 public:
  QueuePlace() = default;
  // Null: in none.
  explicit QueuePlace(CopyQueue* queue) : queue_(queue) {
    if (queue_ != nullptr) first_ = queue_->copies.fetch_add(1, std::memory_order_relaxed) == 0;
  }
  QueuePlace(QueuePlace&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)), first_(other.first_) {}
  QueuePlace& operator=(QueuePlace&& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(first_, other.first_);
    return *this;
  }
  ~QueuePlace() {
    if (queue_ != nullptr) queue_->copies.fetch_sub(1, std::memory_order_relaxed);
  }

  // Null: of no queue.
  StreamHandle stream() const { return queue_ == nullptr ? nullptr : queue_->stream.get(); }
  // Nobody was before it when it came.
  bool first() const { return first_; }

 private:
  CopyQueue* queue_ = nullptr;
  bool first_ = true;
};

}  // namespace umbp
