// Gives every page of a map its memory, now or by a thread beside the work.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>

namespace umbp {

// The pages have memory on return; what they hold stays as it is, whoever writes meanwhile.
void populate(std::byte* data, size_t nbytes);

// Populates in a thread, from the first page upwards. Destruction stops it: the map must outlive this.
class BackgroundPrefault {
 public:
  BackgroundPrefault(std::byte* data, size_t nbytes);
  ~BackgroundPrefault();
  BackgroundPrefault(const BackgroundPrefault&) = delete;
  BackgroundPrefault& operator=(const BackgroundPrefault&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace umbp
