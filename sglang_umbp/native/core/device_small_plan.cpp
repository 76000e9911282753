#include "device_small_plan.h"

#include <algorithm>

#include "device_chooser.h"
#include "device_even.h"

namespace umbp {
namespace {

// How many runs at the front have the size of the first one.
size_t stretch_of(std::span<const Run> runs) {
  const auto end = std::find_if(runs.begin(), runs.end(),
                                [&](const Run& run) { return run.nbytes != runs.front().nbytes; });
  return static_cast<size_t>(end - runs.begin());
}

bool add_segment(std::span<const Run> runs, uint32_t first_piece, SmallCopyPlan& plan) {
  const auto even = even_of(runs, Reach::kWhole);
  if (!even || plan.segments == kSmallSegments) return false;
  const PlanCut cut = cut_plan({runs.size(), runs.size() * uint64_t{even->nbytes}, even->nbytes}, kPlainPartBytes);
  const uint64_t parts = plan.parts + runs.size() * uint64_t{cut.cut.parts};
  if (even->nbytes > cut.longest_piece || parts > kMaxParts) return false;
  plan.segment[plan.segments++] = {*even, first_piece, plan.parts, cut.cut.parts, cut.cut.part_bytes};
  plan.parts = static_cast<uint32_t>(parts);
  return fill_even(runs, *even, plan.pieces + first_piece);
}

}  // namespace

bool make_small_plan(std::span<const Run> runs, SmallCopyPlan& plan) {
  plan.segments = plan.parts = plan.reserved = 0;
  if (runs.size() > kSmallPieces) return false;
  for (size_t first = 0; first < runs.size();) {
    const size_t count = stretch_of(runs.subspan(first));
    if (!add_segment(runs.subspan(first, count), static_cast<uint32_t>(first), plan)) return false;
    first += count;
  }
  return true;
}

}  // namespace umbp
