// Which way a plan of runs goes to or from a device, with how many blocks, and how it is cut. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device_copier.h"
#include "device_kernels.h"

namespace umbp {

struct PlanShape {
  uint64_t runs = 0;
  uint64_t bytes = 0;
  uint64_t longest = 0;
  bool aligned = true;  // every address and size is a multiple of kBulkAlignment

  uint64_t mean() const { return runs == 0 ? 0 : bytes / runs; }
};

PlanShape shape_of(std::span<const Run> runs);

// How many runs each launch takes, so that launches are about equal and copy about launch_bytes, and none has more than
// `most` runs.
size_t window_of(size_t runs, uint64_t mean, uint64_t launch_bytes, size_t most);

// What the device and its runtime offer.
struct CopyAbilities {
  bool kernels = false;
  bool bulk = false;
  bool batched_dma = false;
};

struct CopyChoice {
  CopyWay way;    // never kAuto
  unsigned grid;  // blocks of a kernel; 0 for DMA
  // Blocks of a launch that is done when each group of threads has copied one part: it is over so soon that more
  // blocks disturb nobody.
  unsigned most = grid;
};

// kAuto: what the thresholds say. A way that is asked for by name is taken where it can be: a bulk kernel becomes the
// plain one where it is missing or the plan is not aligned, any kernel becomes DMA where there are none, batched DMA
// becomes DMA by run where the runtime has no batched call. Copies within a device do not go by batched DMA.
CopyChoice choose_way(const PlanShape& shape, CopyDirection direction, const CopyThresholds& thresholds,
                      const CopyAbilities& abilities, CopyWay asked);

// How the runs of a plan are cut for a kernel that copies parts of at most largest_part bytes. Runs longer than
// longest_piece must be split into pieces of at most that; the cut's count and share are left for each launch to fill.
struct PlanCut {
  CopyCut cut;
  uint64_t longest_piece;  // a multiple of kPartUnit
};
// Few pieces of many parts. Runs that are longer than twice their mean are split, so that one long run among many short
// ones does not make every run cost as many parts as the long one has.
PlanCut cut_plan(const PlanShape& shape, uint32_t largest_part);
// The same where runs are about as long as each other; else pieces of one part each, so that none is empty: a group of
// threads must read what to copy of an empty part, too.
PlanCut cut_closely(const PlanShape& shape, uint32_t largest_part);

// Parts that a group of threads takes at a time, of a plan of so many parts for so many groups: as many as it can, since
// what it reads of the plan at a time is one way to host memory, but so that all groups end together.
uint32_t share_of(uint64_t parts, uint64_t groups);

}  // namespace umbp
