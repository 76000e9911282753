// The bare loops that the pool is measured against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner.h"

namespace umbp {

enum class FloorMode { kMemcpy, kNonTemporal };

// Copies one fragment after the other, nothing else: no planning, no prefetch, no threshold.
// Returns nanoseconds. threads: 1, or 2 (the second half of the list goes to a persistent thread
// that is awake before the clock starts). Throws InvalidBatch for another number, and for
// kNonTemporal on a CPU without non-temporal stores.
uint64_t floor_copy(const Run* fragments, size_t n, FloorMode mode, unsigned threads);

}  // namespace umbp
