// Measures, on the device at hand, what the chooser needs to know.
#pragma once

#include <cstdint>
#include <span>

#include "device_copier.h"

namespace umbp {

// What one number of blocks needed for the same copy.
struct GridTime {
  unsigned grid;
  double ns;
};

// The fewest blocks that need hardly longer than the best number: every block more takes from the kernels beside it.
GridTime fewest_blocks(std::span<const GridTime> times);

// Thresholds out of about 300 scattered copies of 8 MiB, in about 100 ms; what the copier has is the start (its
// grid_cap is kept), and stays if there are no kernels. Needs 16 MiB of pinned and 16 MiB of device memory meanwhile.
// Nobody else may use the copier until it returns. The copier keeps the thresholds and
// the totals that it had. Throws DeviceError.
CopyThresholds calibrate(DeviceCopier& copier);

}  // namespace umbp
