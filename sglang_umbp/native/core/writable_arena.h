// The arena as the put path of an attached pool writes to it.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>

#include "mapping.h"

namespace umbp {

// A second map of the arena, writable, made when the first put asks for it: gets read through the
// read-only one, so that a stray store of theirs faults instead of changing what others read. Page
// tables cost about 2 MiB per GiB and map. Thread-safe.
class WritableArena {
 public:
  // Called with the map once it is made.
  using Made = std::function<void(Mapping&)>;

  // Duplicates the descriptor. Throws Error.
  WritableArena(int fd, Made made);
  ~WritableArena();
  WritableArena(const WritableArena&) = delete;
  WritableArena& operator=(const WritableArena&) = delete;

  // Throws OutOfMemory.
  std::byte* data();
  bool populated();  // true before the first put as well

 private:
  int fd_;
  Made made_;
  std::mutex mutex_;
  Mapping memory_;
};

}  // namespace umbp
