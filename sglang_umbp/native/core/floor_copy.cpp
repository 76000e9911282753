#include "floor_copy.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "copy_kernels.h"
#include "errors.h"

namespace umbp {
namespace {

using Loop = void (*)(const Run* fragments, size_t n);

void memcpy_loop(const Run* fragments, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    std::memcpy(reinterpret_cast<void*>(fragments[i].dst),
                reinterpret_cast<const void*>(fragments[i].src), fragments[i].nbytes);
  }
}

void stream_fragment(const CopyKernel& kernel, const Run& fragment) {
  auto* dst = reinterpret_cast<uint8_t*>(fragment.dst);
  const auto* src = reinterpret_cast<const uint8_t*>(fragment.src);
  const size_t head = std::min<size_t>(-fragment.dst % kLineBytes, fragment.nbytes);
  const size_t line_bytes = (fragment.nbytes - head) / kLineBytes * kLineBytes;
  const size_t tail = fragment.nbytes - head - line_bytes;
  if (head != 0) std::memcpy(dst, src, head);
  kernel.stream_bare(dst + head, src + head, line_bytes / kLineBytes);
  if (tail != 0) std::memcpy(dst + head + line_bytes, src + head + line_bytes, tail);
}

void nt_loop(const Run* fragments, size_t n) {
  static const CopyKernel& kernel = find_copy_kernel("auto");
  for (size_t i = 0; i < n; ++i) stream_fragment(kernel, fragments[i]);
  kernel.fence();
}

// The second thread. It lives as long as the process, asleep between calls.
class SecondThread {
 public:
  SecondThread() : pid_(getpid()) {
    std::thread([this] { serve(); }).detach();
  }

  bool lives_here() const { return pid_ == getpid(); }

  // Returns when the thread is awake and waits for go().
  void prepare(Loop loop, const Run* fragments, size_t n) {
    loop_ = loop;
    fragments_ = fragments;
    n_ = n;
    phase_.store(kCalled, std::memory_order_release);
    phase_.notify_one();
    spin_until(kReady);
  }
  void go() { phase_.store(kGo, std::memory_order_release); }
  void join() { spin_until(kAsleep); }

 private:
  static constexpr int kSpinsBeforeYield = 10'000;
  enum Phase : int { kAsleep, kCalled, kReady, kGo };

  // Yields in the end: on a busy machine the other thread may need this core.
  void spin_until(int phase) const {
    for (int spins = 0; phase_.load(std::memory_order_acquire) != phase; ++spins) {
      if (spins > kSpinsBeforeYield) std::this_thread::yield();
    }
  }

  void serve() {
    for (;;) {
      phase_.wait(kAsleep, std::memory_order_acquire);
      spin_until(kCalled);
      phase_.store(kReady, std::memory_order_release);
      spin_until(kGo);
      loop_(fragments_, n_);
      phase_.store(kAsleep, std::memory_order_release);
    }
  }

  const pid_t pid_;
  std::atomic<int> phase_{kAsleep};
  Loop loop_ = nullptr;
  const Run* fragments_ = nullptr;
  size_t n_ = 0;
};

// One measurement at a time; never freed, because the thread is never ended.
SecondThread& second_thread() {
  static SecondThread* second = nullptr;
  if (second == nullptr || !second->lives_here()) second = new SecondThread;
  return *second;
}

template <typename Work>
uint64_t elapsed_ns(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
}

}  // namespace

uint64_t floor_copy(const Run* fragments, size_t n, FloorMode mode, unsigned threads) {
  if (mode == FloorMode::kNonTemporal && find_copy_kernel("auto").stream_bare == nullptr) {
    throw InvalidBatch(
        "this CPU has no non-temporal stores that the floor could use; use mode 'memcpy'");
  }
  const Loop loop = mode == FloorMode::kMemcpy ? memcpy_loop : nt_loop;
  if (threads == 1) return elapsed_ns([&] { loop(fragments, n); });
  if (threads != 2)
    throw InvalidBatch("a floor has 1 or 2 threads, not " + std::to_string(threads));
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  SecondThread& second = second_thread();
  second.prepare(loop, fragments + n / 2, n - n / 2);
  return elapsed_ns([&] {
    second.go();
    loop(fragments, n / 2);
    second.join();
  });
}

}  // namespace umbp
