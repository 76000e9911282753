// Copies between host memory that is not pinned and a device, through a pinned slab.
#pragma once

#include <cstdint>
#include <span>

#include "copy_pool.h"
#include "device_copier.h"
#include "device_memory.h"

namespace umbp {

// The slab has two halves: while the device works on one, the host fills or empties the other. Runs have the
// host's addresses on one side and the device's on the other. Every byte is there on return; also after an
// exception nothing is under way. Throws DeviceError.
void stage_to_device(std::span<const Run> runs, const CopyOrder& after, DeviceCopier& copier,
                     CopyPool& host, const Slab& slab);
void stage_to_host(std::span<const Run> runs, const CopyOrder& after, DeviceCopier& copier,
                   CopyPool& host, const Slab& slab);

}  // namespace umbp
