// The copies between the arena and devices that one call needs.
#pragma once

#include <cstdint>
#include <vector>

#include "add_fragment.h"
#include "arena_pins.h"
#include "copy_pool.h"
#include "device_memory.h"
#include "mixed_plan.h"
#include "phases.h"

namespace umbp {

// A map of the arena and what of it devices may address.
struct ArenaMap {
  uint64_t base;
  const ArenaPins& pins;
};

// Makes the copies of a plan: those of devices are submitted, then the host's are made, then the devices'
// are waited for, then what is not pinned goes through a slab. Every byte is there on return. Also after an
// exception nothing is under way: what the call names may be let go. Throws DeviceError.
template <Direction direction>
void move_mixed(const MixedPlan& plan, const ArenaMap& arena, const CopyOrder& after,
                DeviceMemory& devices, CopyPool& host, PhaseTimer& timer);

// The parts of runs that lie in pinned chunks, with the arena's addresses as devices see them, and the
// others as they were.
template <Direction direction>
void split_pinned(const std::vector<Run>& runs, const ArenaMap& arena, std::vector<Run>& pinned,
                  std::vector<Run>& others);

}  // namespace umbp
