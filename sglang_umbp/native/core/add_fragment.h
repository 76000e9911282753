// How one fragment of a batch becomes part of a plan.
#pragma once

#include <cstdint>

#include "planner.h"

namespace umbp {

enum class Direction : uint8_t { kGet, kPut };

inline constexpr uint32_t kArenaRegion = 0xffffffffu;
// From here on: memory that no single region covers as a whole; each piece gets an id of its own.
inline constexpr uint32_t kLooseRegion = 0x80000000u;

template <Direction direction>
inline void add_fragment(RunBuilder& builder, uint64_t object, uint64_t memory, uint64_t nbytes,
                         uint32_t region) {
  if constexpr (direction == Direction::kGet)
    builder.add(object, memory, nbytes, kArenaRegion, region);
  else
    builder.add(memory, object, nbytes, region, kArenaRegion);
}

}  // namespace umbp
