// Plans that travel as a launch's argument.
#pragma once

#include <span>

#include "device_kernels.h"

namespace umbp {

// Makes the plan of these runs, all but its share. False if they are too many, of too many sizes one after the other, or
// too far apart for their alignment: then the plan is not to be used.
bool make_small_plan(std::span<const Run> runs, SmallCopyPlan& plan);

}  // namespace umbp
