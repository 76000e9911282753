// What gets, puts and fills have in common: whose memory a batch names, then plan and copy.
#pragma once

#include <vector>

#include "batches.h"
#include "pool.h"

namespace umbp {

// Not inlined: the compiler would ask for the address of the thread's vector once a fragment.
[[gnu::noinline]] inline std::vector<Run>& runs_of_this_thread() {
  thread_local std::vector<Run> runs;
  runs.clear();
  return runs;
}

template <class Batch>
inline void Pool::classify(Batch& batch, PhaseTimer& timer) {
  batch.classify(regions_, config_.strict_registration, devices());
  timer.mark(Phase::kClassify);
  if (batch.host_waits()) {
    await(batch.after);
    batch.after = {};
    timer.mark(Phase::kWait);
  }
}

// each_object(add) calls add(item, address in the arena) for each object that is to be copied.
template <Direction direction, class Batch, class EachObject>
inline void Pool::copy(const Batch& batch, PhaseTimer& timer, const EachObject& each_object) {
  if (batch.on_devices()) return copy_mixed<direction>(batch, timer, each_object);
  std::vector<Run>& runs = runs_of_this_thread();
  RunBuilder builder(runs);
  each_object([&](size_t item, uint64_t object) {
    batch.template add<direction>(item, object, builder);
  });
  builder.finish();
  timer.mark(Phase::kPlan);
  copies_.copy(runs.data(), runs.size(), &timer);
}

template <Direction direction, class Batch, class EachObject>
[[gnu::noinline]] void Pool::copy_mixed(const Batch& batch, PhaseTimer& timer,
                                        const EachObject& each_object) {
  MixedPlan plan;
  each_object([&](size_t item, uint64_t object) {
    batch.template add_mixed<direction>(item, object, plan);
  });
  plan.finish();
  timer.mark(Phase::kPlan);
  const ArenaMap arena = direction == Direction::kGet ? readable_map() : writable_map();
  move_mixed<direction>(plan, arena, batch.after, *devices(), copies_, timer);
}

}  // namespace umbp
