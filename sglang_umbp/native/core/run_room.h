// Vectors of runs that a thread keeps from call to call: the pages of a new one cost a large plan more time than its
// arithmetic does.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "planner.h"

namespace umbp {

// One of the thread's vectors, empty, for as long as this lives; it must end on the thread that made it.
class RunRoom {
 public:
  RunRoom() {
    std::vector<std::vector<Run>>& idle = idle_of_this_thread();
    if (idle.empty()) return;
    runs_ = std::move(idle.back());
    idle.pop_back();
  }
  ~RunRoom() {
    if (runs_.capacity() == 0 || runs_.capacity() > kMostKept) return;
    std::vector<std::vector<Run>>& idle = idle_of_this_thread();
    if (idle.size() == idle.capacity()) return;
    runs_.clear();
    idle.push_back(std::move(runs_));
  }
  RunRoom(const RunRoom&) = delete;
  RunRoom& operator=(const RunRoom&) = delete;

  std::vector<Run>& runs() { return runs_; }
  const std::vector<Run>& runs() const { return runs_; }

 private:
  static constexpr size_t kMostKept = size_t{1} << 20;  // runs: 24 MiB
  static constexpr size_t kVectors = 4;

  // Not inlined: the compiler would look the address up more than once.
  [[gnu::noinline]] static std::vector<std::vector<Run>>& idle_of_this_thread() {
    thread_local std::vector<std::vector<Run>> idle = [] {
      std::vector<std::vector<Run>> made;
      made.reserve(kVectors);
      return made;
    }();
    return idle;
  }

  std::vector<Run> runs_;
};

}  // namespace umbp
