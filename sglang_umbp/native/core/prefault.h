// Gives every page of a map its memory, now or by a thread beside the work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace umbp {

enum class Access : uint8_t { kRead, kWrite };

// The pages have memory on return, and this map has its page tables for that access; what they hold
// stays as it is, whoever writes meanwhile.
void populate(std::byte* data, size_t nbytes, Access access = Access::kWrite);

// Whether a map of another process's memory may be given its pages: whoever touches a page first pays for it.
enum class Begin : uint8_t { kNotYet, kNow, kNever };

// What happens around populating, in the thread that does it.
struct PrefaultHooks {
  std::function<Begin()> when;        // asked again and again until it is not kNotYet; empty: now
  std::function<void()> when_through;  // every page has its memory; not called if it was stopped
};

// Populates in a thread, from the first page upwards. Destruction stops it: the map must outlive this.
class BackgroundPrefault {
 public:
  BackgroundPrefault(std::byte* data, size_t nbytes, Access access = Access::kWrite,
                     PrefaultHooks hooks = {});
  ~BackgroundPrefault();
  BackgroundPrefault(const BackgroundPrefault&) = delete;
  BackgroundPrefault& operator=(const BackgroundPrefault&) = delete;

  // Whether there is nothing to do any more; not while it waits for its beginning.
  bool through() const { return through_.load(std::memory_order_acquire); }

 private:
  bool may_begin(const PrefaultHooks& hooks) const;

  std::atomic<bool> stop_{false};
  std::atomic<bool> through_{false};
  std::thread thread_;
};

}  // namespace umbp
