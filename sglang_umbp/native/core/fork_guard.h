// A forked child does not own its parent's pool: its maps are not there and its threads are not either.
#pragma once

#include <cstdint>

namespace umbp {

// Number of forks between the process that loaded the library and this one.
uint32_t fork_depth();

// A place that remembers in which process it was made.
class ForkGuard {
 public:
  ForkGuard() : born_(fork_depth()) {}
  bool foreign() const { return fork_depth() != born_; }
  void check() const;  // throws ForkedPool

 private:
  uint32_t born_;
};

}  // namespace umbp
