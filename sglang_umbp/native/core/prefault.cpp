#include "prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace umbp {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kStepBytes = 16u << 20;  // the most that closing a pool has to wait for
constexpr std::chrono::milliseconds kPause{5};  // between two questions whether it may begin

}  // namespace

void populate(std::byte* data, size_t nbytes, Access access) {
  const int advice = access == Access::kWrite ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  // A failure other than an unknown advice is met again, and told, by whoever uses the page.
  if (madvise(data, nbytes, advice) == 0 || errno != EINVAL) return;
  // Before Linux 5.14. An atomic "or 0" writes without changing what another thread has put there.
  for (size_t at = 0; at < nbytes; at += kPageBytes) {
    auto* const page = reinterpret_cast<uint8_t*>(data + at);
    if (access == Access::kWrite)
      __atomic_fetch_or(page, uint8_t{0}, __ATOMIC_RELAXED);
    else
      static_cast<void>(__atomic_load_n(page, __ATOMIC_RELAXED));
  }
}

BackgroundPrefault::BackgroundPrefault(std::byte* data, size_t nbytes, Access access,
                                       PrefaultHooks hooks)
    : thread_([this, data, nbytes, access, hooks = std::move(hooks)] {
        if (may_begin(hooks)) {
          size_t at = 0;
          for (; at < nbytes && !stop_.load(std::memory_order_relaxed); at += kStepBytes)
            populate(data + at, std::min(kStepBytes, nbytes - at), access);
          if (at >= nbytes && hooks.when_through) hooks.when_through();
        }
        through_.store(true, std::memory_order_release);
      }) {}

bool BackgroundPrefault::may_begin(const PrefaultHooks& hooks) const {
  while (!stop_.load(std::memory_order_relaxed)) {
    const Begin answer = hooks.when ? hooks.when() : Begin::kNow;
    if (answer != Begin::kNotYet) return answer == Begin::kNow;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

BackgroundPrefault::~BackgroundPrefault() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

}  // namespace umbp
