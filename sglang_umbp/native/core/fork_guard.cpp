#include "fork_guard.h"

#include <pthread.h>

#include <atomic>

#include "errors.h"

namespace umbp {
namespace {

std::atomic<uint32_t> depth{0};
const int registered =
    pthread_atfork(nullptr, nullptr, [] { depth.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint32_t fork_depth() {
  (void)registered;
  return depth.load(std::memory_order_relaxed);
}

void ForkGuard::check() const {
  if (foreign())
    throw ForkedPool("this pool belongs to the parent process: open one in the child, or spawn it");
}

}  // namespace umbp
