#include "copy_pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <system_error>
#include <thread>

#include "errors.h"
#include "work_split.h"

namespace umbp {
namespace {

// Each thread of a call has at least this much to copy: waking a helper costs about 25 us. Measured
// on 2 Zen 4 cores: calls of 216 KiB are slower with a second thread (16 -> 23 us), calls of 1 MiB
// are a little faster (74 -> 70 us, 48 us if the helper is still awake), 4.6 MiB 256 -> 180 us.
constexpr uint64_t kMinBytesPerThread = 512 << 10;
constexpr unsigned kMaxHelpers = 63;
constexpr int kSpinsBeforeSleep = 200;
// A helper stays awake about 40 us after its work (0.5 us a yield), because a restore's next call
// often comes within that time. It yields all along, so that a thread which has work gets the core.
constexpr int kYieldsBeforeSleep = 80;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t bytes_of(const Run* runs, size_t n) {
  uint64_t nbytes = 0;
  for (size_t i = 0; i < n; ++i) nbytes += runs[i].nbytes;
  return nbytes;
}

// Signals belong to the application's threads.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

struct CopyPool::Job {
  const WorkParts& parts;
  std::atomic<size_t> next_part{0};
};

// The way of `state`: kFree -(caller)-> kClaimed -> kOffered -(helper)-> kWorking -> kDone
// -(caller)-> kFree, or from kOffered back to kFree if the caller is through first. A helper says
// kDone and not kFree so that no other call can claim it before this one has seen that it is
// through; after kDone it does not touch the job.
struct alignas(kLineBytes) CopyPool::Helper {
  enum State : int { kFree, kClaimed, kOffered, kWorking, kDone, kStop };

  std::atomic<int> state{kFree};
  Job* job = nullptr;  // written by the claiming caller, read by the helper once it is kWorking
  std::thread thread;

  // Returns true when work is offered, false when the helper is to end.
  bool wait_for_call() const {
    for (int yields = 0;; ++yields) {
      const int now = state.load(std::memory_order_acquire);
      if (now == kOffered || now == kStop) return now == kOffered;
      if (yields < kYieldsBeforeSleep) {
        std::this_thread::yield();
      } else {
        state.wait(now, std::memory_order_acquire);
      }
    }
  }
};

CopyPool::CopyPool(const HostCopier& copier, unsigned threads)
    : copier_(copier), helper_count_(std::min(std::max(threads, 1u) - 1, kMaxHelpers)) {
  if (helper_count_ != 0) start_helpers();
}

CopyPool::~CopyPool() { stop(); }

void CopyPool::stop() {
  stop_helpers();
  helper_count_ = 0;
}

void CopyPool::abandon() {
  helper_count_ = 0;
  static_cast<void>(
      helpers_.release());  // std::thread cannot be destroyed where its thread does not exist
}

void CopyPool::start_helpers() {
  helpers_ = std::make_unique<Helper[]>(helper_count_);
  const BlockedSignals blocked;
  for (unsigned i = 0; i < helper_count_; ++i) {
    Helper& helper = helpers_[i];
    try {
      helper.thread = std::thread([this, &helper] { run_helper(helper); });
    } catch (const std::system_error& error) {
      stop_helpers();
      throw Error("cannot start copy thread " + std::to_string(i + 2) + " of " +
                  std::to_string(helper_count_ + 1) + " (" + error.what() +
                  "); fewer copy threads need less");
    }
  }
}

void CopyPool::stop_helpers() {
  for (unsigned i = 0; i < helper_count_; ++i) {
    Helper& helper = helpers_[i];
    if (!helper.thread.joinable()) continue;
    helper.state.store(Helper::kStop, std::memory_order_release);
    helper.state.notify_one();
    helper.thread.join();
  }
}

void CopyPool::run_helper(Helper& self) const {
  while (self.wait_for_call()) {
    int offered = Helper::kOffered;
    if (!self.state.compare_exchange_strong(offered, Helper::kWorking, std::memory_order_acquire)) {
      continue;  // taken back
    }
    work_on(*self.job);
    self.state.store(Helper::kDone, std::memory_order_release);
    self.state.notify_one();
  }
}

void CopyPool::work_on(Job& job) const {
  const WorkParts& parts = job.parts;
  for (size_t i = job.next_part.fetch_add(1, std::memory_order_relaxed); i < parts.size();
       i = job.next_part.fetch_add(1, std::memory_order_relaxed)) {
    copier_.copy(parts.pieces.data() + parts.starts[i], parts.starts[i + 1] - parts.starts[i]);
  }
}

unsigned CopyPool::claim_helpers(Job& job, unsigned wanted, Helper** claimed) {
  unsigned count = 0;
  for (unsigned i = 0; i < helper_count_ && count < wanted; ++i) {
    Helper& helper = helpers_[i];
    int free = Helper::kFree;
    if (!helper.state.compare_exchange_strong(free, Helper::kClaimed, std::memory_order_acquire))
      continue;
    helper.job = &job;
    helper.state.store(Helper::kOffered, std::memory_order_release);
    helper.state.notify_one();
    claimed[count++] = &helper;
  }
  return count;
}

void CopyPool::release_helper(Helper& helper) {
  int offered = Helper::kOffered;
  if (helper.state.compare_exchange_strong(offered, Helper::kFree, std::memory_order_acq_rel))
    return;
  for (int i = 0;
       i < kSpinsBeforeSleep && helper.state.load(std::memory_order_acquire) != Helper::kDone;
       ++i) {
    pause_cpu();
  }
  while (helper.state.load(std::memory_order_acquire) != Helper::kDone) {
    helper.state.wait(Helper::kWorking, std::memory_order_acquire);
  }
  helper.state.store(Helper::kFree, std::memory_order_release);
}

void CopyPool::copy(const Run* runs, size_t n, PhaseTimer* timer) {
  const uint64_t total_bytes = helper_count_ == 0 ? 0 : bytes_of(runs, n);
  const uint64_t threads = std::min<uint64_t>(helper_count_ + 1, total_bytes / kMinBytesPerThread);
  if (threads < 2) {
    copier_.copy(runs, n);
    if (timer != nullptr) timer->mark(Phase::kSubmit);
    return;
  }
  const WorkParts parts = split_work(runs, n, total_bytes, static_cast<unsigned>(threads));
  Job job{parts};
  Helper* claimed[kMaxHelpers];
  const unsigned count = claim_helpers(job, static_cast<unsigned>(threads) - 1, claimed);
  work_on(job);
  if (timer != nullptr) timer->mark(Phase::kSubmit);
  for (unsigned i = 0; i < count; ++i) release_helper(*claimed[i]);
  if (timer != nullptr) timer->mark(Phase::kWait);
}

}  // namespace umbp
