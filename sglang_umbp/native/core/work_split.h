// Cuts the runs of one call into parts that several threads take one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner.h"

namespace umbp {

// Pieces [starts[i], starts[i + 1]) are part i.
struct WorkParts {
  std::vector<Run> pieces;
  std::vector<size_t> starts;

  size_t size() const { return starts.size() - 1; }
};

// Parts of decreasing size, the last ones small, so that `threads` threads that take them in order
// end together even if some of them start late. A run larger than its part is cut where a cache
// line of its destination begins.
WorkParts split_work(const Run* runs, size_t n, uint64_t total_bytes, unsigned threads);

}  // namespace umbp
