// Gives every page of a map its memory, now or by a thread beside the work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace umbp {

enum class Access : uint8_t { kRead, kWrite };

// The pages have memory on return, and this map has its page tables for that access; what they hold
// stays as it is, whoever writes meanwhile.
void populate(std::byte* data, size_t nbytes, Access access = Access::kWrite);

// Populates in a thread, from the first page upwards. Destruction stops it: the map must outlive this.
class BackgroundPrefault {
 public:
  BackgroundPrefault(std::byte* data, size_t nbytes, Access access = Access::kWrite);
  ~BackgroundPrefault();
  BackgroundPrefault(const BackgroundPrefault&) = delete;
  BackgroundPrefault& operator=(const BackgroundPrefault&) = delete;

  bool through() const { return through_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> through_{false};
  std::thread thread_;
};

}  // namespace umbp
