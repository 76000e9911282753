#include "prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace umbp {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kStepBytes = 16u << 20;  // the most that closing a pool has to wait for

}  // namespace

void populate(std::byte* data, size_t nbytes) {
  // A failure other than an unknown advice is met again, and told, by whoever uses the page.
  if (madvise(data, nbytes, MADV_POPULATE_WRITE) == 0 || errno != EINVAL) return;
  // Before Linux 5.14. An atomic "or 0" writes without changing what another thread has put there.
  for (size_t at = 0; at < nbytes; at += kPageBytes)
    __atomic_fetch_or(reinterpret_cast<uint8_t*>(data + at), uint8_t{0}, __ATOMIC_RELAXED);
}

BackgroundPrefault::BackgroundPrefault(std::byte* data, size_t nbytes)
    : thread_([this, data, nbytes] {
        for (size_t at = 0; at < nbytes && !stop_.load(std::memory_order_relaxed); at += kStepBytes)
          populate(data + at, std::min(kStepBytes, nbytes - at));
      }) {}

BackgroundPrefault::~BackgroundPrefault() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

}  // namespace umbp
