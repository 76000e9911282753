#include "device_moves.h"

#include <algorithm>

#include "run_room.h"
#include "staged_copy.h"

namespace umbp {
namespace {

// What is to be staged for one device.
struct Rest {
  DeviceCopier* copier;
  std::vector<Run> runs;
};

template <Direction direction>
uint64_t in_arena(const Run& run) {
  return direction == Direction::kGet ? run.src : run.dst;
}

template <Direction direction>
Run aliased(Run run, uint64_t alias) {
  (direction == Direction::kGet ? run.src : run.dst) = alias;
  return run;
}

std::vector<const DevicePlan*> by_number(const MixedPlan& plan) {
  std::vector<const DevicePlan*> plans;
  for (const DevicePlan& part : plan.devices()) plans.push_back(&part);
  std::sort(plans.begin(), plans.end(),
            [](const DevicePlan* a, const DevicePlan* b) { return a->device < b->device; });
  return plans;
}

template <Direction direction>
void stage(const Rest& rest, const CopyOrder& after, DeviceMemory& devices, CopyPool& host) {
  const DeviceMemory::SlabHold hold(devices, rest.copier->device());
  uint64_t nbytes = 0;
  for (const Run& run : rest.runs) nbytes += run.nbytes;
  devices.count_staged(nbytes);
  if constexpr (direction == Direction::kGet)
    stage_to_device(rest.runs, after, *rest.copier, host, hold.slab());
  else
    stage_to_host(rest.runs, after, *rest.copier, host, hold.slab());
}

}  // namespace

template <Direction direction>
void split_pinned(const std::vector<Run>& runs, const ArenaMap& arena, std::vector<Run>& pinned,
                  std::vector<Run>& others) {
  ArenaPins::Piece chunk{0, 0, 0};
  uint64_t chunk_begin = 0;
  for (const Run& run : runs) {
    const uint64_t offset = in_arena<direction>(run) - arena.base;
    if (offset - chunk_begin < chunk.nbytes && run.nbytes <= chunk.nbytes - (offset - chunk_begin)) {
      pinned.push_back(aliased<direction>(run, chunk.alias + (offset - chunk_begin)));
      continue;
    }
    for (uint64_t done = 0; done < run.nbytes;) {
      const auto piece = arena.pins.at(offset + done);
      const uint64_t nbytes = std::min(run.nbytes - done, piece.rest);
      const Run part{run.src + done, run.dst + done, nbytes};
      if (piece.nbytes == 0) {
        others.push_back(part);
      } else {
        pinned.push_back(aliased<direction>(part, piece.alias));
        chunk = piece;
        chunk_begin = offset + done;
      }
      done += nbytes;
    }
  }
}

// A call that waits for a lane of one device has lanes of devices with lower numbers only: calls cannot wait
// for each other in a circle. For the same reason all are given back before anything is staged.
template <Direction direction>
void move_mixed(const MixedPlan& plan, const ArenaMap& arena, const CopyOrder& after,
                DeviceMemory& devices, CopyPool& host, PhaseTimer& timer) {
  constexpr auto way = direction == Direction::kGet ? CopyDirection::kHostToDevice
                                                    : CopyDirection::kDeviceToHost;
  std::vector<DeviceCopier::Ticket> tickets;
  std::vector<Rest> rests;
  RunRoom room;
  std::vector<Run>& pinned = room.runs();
  for (const DevicePlan* part : by_number(plan)) {
    DeviceCopier& copier = devices.copier(part->device);
    devices.want_arena(part->device, direction == Direction::kPut);
    Rest rest{&copier, {}};
    pinned.clear();
    pinned.reserve(part->runs().size());
    split_pinned<direction>(part->runs(), arena, pinned, rest.runs);
    if (!pinned.empty()) {
      // What is staged counts as it is submitted; the rest is what the caller asked for here.
      const size_t fragments = std::max(part->fragments, rest.runs.size()) - rest.runs.size();
      tickets.push_back(copier.submit(pinned, fragments, way, after));
    }
    if (!rest.runs.empty()) rests.push_back(std::move(rest));
  }
  timer.mark(Phase::kSubmit);
  host.copy(plan.host_runs().data(), plan.host_runs().size(), &timer);
  for (DeviceCopier::Ticket& ticket : tickets) ticket.wait();
  timer.mark(Phase::kWait);
  for (const Rest& rest : rests) stage<direction>(rest, after, devices, host);
  timer.mark(Phase::kSubmit);
}

template void move_mixed<Direction::kGet>(const MixedPlan&, const ArenaMap&, const CopyOrder&,
                                          DeviceMemory&, CopyPool&, PhaseTimer&);
template void move_mixed<Direction::kPut>(const MixedPlan&, const ArenaMap&, const CopyOrder&,
                                          DeviceMemory&, CopyPool&, PhaseTimer&);
template void split_pinned<Direction::kGet>(const std::vector<Run>&, const ArenaMap&,
                                            std::vector<Run>&, std::vector<Run>&);
template void split_pinned<Direction::kPut>(const std::vector<Run>&, const ArenaMap&,
                                            std::vector<Run>&, std::vector<Run>&);

}  // namespace umbp
