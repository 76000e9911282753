// Streams and events of an emulated runtime: work is done by another thread, and only when somebody waits for it.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_addresses.h"
#include "fake_kernels.h"
#include "fake_notes.h"

namespace fake {

struct Stream;

struct Event {
  std::shared_ptr<Stream> stream;  // of the last record; none: never recorded
  uint64_t position = 0;
};

struct Operation {
  Work work;                       // nothing: wait for `stream` to have done `position` operations
  std::shared_ptr<Stream> stream;
  uint64_t position = 0;
};

struct Stream {
  int device = 0;
  uint64_t submitted = 0;
  uint64_t done = 0;
  uint64_t wanted = 0;  // operations that somebody waits for
  std::deque<Operation> queue;
};

// Thread-safe. Never destroyed: its thread runs until the process is gone.
class Streams {
 public:
  Streams(Notes& notes, Addresses& addresses) : notes_(notes), addresses_(addresses) {
    std::thread([this] { serve(); }).detach();
  }

  // ---- the error that stays

  int sticky() {
    std::lock_guard lock(mutex_);
    return sticky_;
  }
  void set_sticky(int code) {
    std::lock_guard lock(mutex_);
    if (sticky_ == kOk) sticky_ = code;
  }

  // ---- streams

  Stream* create_stream(int device) {
    std::lock_guard lock(mutex_);
    auto stream = std::make_shared<Stream>();
    stream->device = device;
    streams_.insert(stream);
    return stream.get();
  }
  // Null: there is none.
  std::shared_ptr<Stream> stream_of(const void* handle) {
    std::lock_guard lock(mutex_);
    for (const auto& stream : streams_)
      if (stream.get() == handle) return stream;
    return nullptr;
  }
  int destroy_stream(const void* handle) {  // its work goes on
    const auto stream = stream_of(handle);
    if (stream == nullptr) return kInvalidHandle;
    std::lock_guard lock(mutex_);
    want(stream, stream->submitted);
    streams_.erase(stream);
    return kOk;
  }

  void submit(const std::shared_ptr<Stream>& stream, Work work) {
    std::lock_guard lock(mutex_);
    push(*stream, {std::move(work), nullptr, 0});
  }
  // Waits for all that was submitted.
  int synchronize(const std::shared_ptr<Stream>& stream) {
    std::unique_lock lock(mutex_);
    return wait(lock, stream, stream->submitted);
  }
  int query(const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(mutex_);
    return ask(stream, stream->submitted);
  }
  void wait_for_all() {
    std::unique_lock lock(mutex_);
    const std::vector<std::shared_ptr<Stream>> all(streams_.begin(), streams_.end());
    for (const auto& stream : all) wait(lock, stream, stream->submitted);
  }
  // Operations in queues.
  uint64_t pending() {
    std::lock_guard lock(mutex_);
    uint64_t sum = 0;
    for (const auto& stream : streams_) sum += stream->queue.size();
    return sum;
  }
  // Work that nobody waited for is dropped, and no error stays.
  void reset() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !busy_; });
    for (const auto& stream : streams_) {
      stream->queue.clear();
      stream->done = stream->submitted;
    }
    sticky_ = kOk;
    finished_.notify_all();
  }

  // ---- events

  Event* create_event() {
    std::lock_guard lock(mutex_);
    return events_.emplace(std::make_unique<Event>()).first->get();
  }
  int destroy_event(const void* handle) {
    std::lock_guard lock(mutex_);
    for (const auto& event : events_) {
      if (event.get() != handle) continue;
      events_.erase(event);
      return kOk;
    }
    return kInvalidHandle;
  }
  int record(const void* handle, const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(mutex_);
    Event* event = event_of(handle);
    if (event == nullptr) return kInvalidHandle;
    push(*stream, {[](const Memory&) {}, nullptr, 0});
    *event = {stream, stream->submitted};
    return kOk;
  }
  int make_wait(const std::shared_ptr<Stream>& stream, const void* handle) {
    std::lock_guard lock(mutex_);
    const Event* event = event_of(handle);
    if (event == nullptr) return kInvalidHandle;
    if (event->stream != nullptr) push(*stream, {{}, event->stream, event->position});
    return kOk;
  }
  int synchronize_event(const void* handle) {
    std::unique_lock lock(mutex_);
    const Event* event = event_of(handle);
    if (event == nullptr) return kInvalidHandle;
    return event->stream == nullptr ? sticky_ : wait(lock, event->stream, event->position);
  }
  int query_event(const void* handle) {
    std::lock_guard lock(mutex_);
    const Event* event = event_of(handle);
    if (event == nullptr) return kInvalidHandle;
    return event->stream == nullptr ? sticky_ : ask(event->stream, event->position);
  }

 private:
  // All of these are called with the mutex held.

  Event* event_of(const void* handle) {
    for (const auto& event : events_)
      if (event.get() == handle) return event.get();
    return nullptr;
  }
  void push(Stream& stream, Operation operation) {
    stream.queue.push_back(std::move(operation));
    ++stream.submitted;
    if (notes_.knob("eager") == 0) return;
    stream.wanted = stream.submitted;
    changed_.notify_all();
  }
  void want(const std::shared_ptr<Stream>& stream, uint64_t position) {
    stream->wanted = std::max(stream->wanted, position);
    if (stream->done < stream->wanted) wanted_.insert(stream);
    changed_.notify_all();
  }
  int wait(std::unique_lock<std::mutex>& lock, std::shared_ptr<Stream> stream, uint64_t position) {
    want(stream, position);
    finished_.wait(lock, [&] { return stream->done >= position; });
    return sticky_;
  }
  // Asking is waiting: it sets the work going, and finds it done at a later time.
  int ask(const std::shared_ptr<Stream>& stream, uint64_t position) {
    if (sticky_ != kOk) return sticky_;
    if (stream->done >= position) return kOk;
    want(stream, position);
    return kNotReady;
  }

  // The thread ------------------------------------------------------------------------------------------

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::shared_ptr<Stream> stream;
      changed_.wait(lock, [&] { return (stream = next_wanted()) != nullptr; });
      busy_ = true;
      run(lock, *stream, stream->wanted);
      busy_ = false;
      idle_.notify_all();
    }
  }
  std::shared_ptr<Stream> next_wanted() {
    for (const auto& stream : streams_)
      if (stream->done < stream->wanted) return stream;
    for (auto at = wanted_.begin(); at != wanted_.end();) {
      if ((*at)->done < (*at)->wanted) return *at;
      at = wanted_.erase(at);
    }
    return nullptr;
  }
  void run(std::unique_lock<std::mutex>& lock, Stream& stream, uint64_t position) {
    while (stream.done < position && !stream.queue.empty()) {
      const Operation operation = std::move(stream.queue.front());
      stream.queue.pop_front();
      if (operation.stream != nullptr)
        run(lock, *operation.stream, operation.position);
      else if (sticky_ == kOk)
        run_one(lock, operation.work);
      ++stream.done;
      finished_.notify_all();
    }
  }
  void run_one(std::unique_lock<std::mutex>& lock, const Work& work) {
    lock.unlock();
    const int64_t late_us = notes_.knob("late_us");
    if (late_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(late_us));
    bool faulted = false;
    try {
      work([this](uint64_t address, uint64_t nbytes, bool writes) {
        std::byte* at = addresses_.resolve(address, nbytes, writes, false);
        if (at == nullptr) throw Fault{};
        return at;
      });
    } catch (const Fault&) {
      faulted = true;
    }
    lock.lock();
    if (faulted) sticky_ = kIllegalAddress;
  }

  Notes& notes_;
  Addresses& addresses_;
  std::mutex mutex_;
  std::condition_variable changed_, finished_, idle_;
  bool busy_ = false;
  int sticky_ = kOk;
  std::set<std::shared_ptr<Stream>> streams_, wanted_;
  std::set<std::unique_ptr<Event>> events_;
};

}  // namespace fake
