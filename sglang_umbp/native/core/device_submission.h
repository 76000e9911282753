// How the plan of one copy gets into a lane's stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device_chooser.h"
#include "device_copier.h"
#include "device_lane.h"
#include "device_module.h"
#include "device_pieces.h"

namespace umbp {

// What choose_way() needs besides a plan.
struct Choosing {
  CopyDirection direction;
  CopyThresholds thresholds;
  CopyAbilities abilities;

  CopyChoice choose(const PlanShape& shape, CopyWay asked) const {
    return choose_way(shape, direction, thresholds, abilities, asked);
  }
};

// Puts one plan into a lane's stream and counts what that took.
//
// Kernels get long plans in windows, one a launch, so that the device begins before the whole was looked at, and the
// model gets the multiprocessors now and then; the first runs decide whether kernels or DMA copy all of it.
class Submission {
 public:
  // There is at least one run; they must outlive the submission.
  Submission(DeviceApi& api, int device, const DeviceModule& kernels, std::span<const Run> runs,
             const Choosing& choosing);

  // More than one launch is to copy, going by the first runs.
  bool is_long() const { return first_.mean() * runs_.size() > choosing_.thresholds.launch_bytes; }

  // lead: the device has nothing else to copy while this thread plans.
  void put(DeviceLane& lane, CopyWay asked, bool lead);

  CopyWay way() const { return way_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t descriptors() const { return descriptors_; }
  uint64_t calls() const { return calls_; }

 private:
  struct KernelShape {
    FunctionHandle function;
    unsigned threads;
    unsigned shared_bytes;
    unsigned parts_a_block;       // that one block copies at a time
    unsigned blocks_for_one = 1;  // that count as one block of a grid
  };
  KernelShape plain_shape(FunctionHandle function) const;
  KernelShape small_shape() const;
  KernelShape bulk_shape() const;

  // choice, even: what the first runs say.
  void put_windows(const CopyChoice& choice, const std::optional<EvenCopy>& even, bool lead);
  bool put_small(const CopyChoice& choice);
  bool put_even(std::span<const Run> runs, EvenCopy even, const CopyChoice& choice);
  void put_any(std::span<const Run> runs, CopyWay way);
  void put_listed(PieceSource source, CopyCut cut, const KernelShape& kernel, const CopyChoice& choice);
  // parts: of the plan. share: is set before the parameters, which name it, are read.
  void launch(const KernelShape& kernel, uint64_t parts, uint32_t& share, const CopyChoice& choice, void** parameters);
  void put_batches();
  void put_each();

  DeviceApi& api_;
  int device_;
  const DeviceModule& kernels_;
  std::span<const Run> runs_;
  Choosing choosing_;
  std::span<const Run> sample_;  // the first runs
  PlanShape first_;              // their shape
  DeviceLane* lane_ = nullptr;
  CopyWay way_ = CopyWay::kAuto;
  uint64_t bytes_ = 0;
  uint64_t descriptors_ = 0;
  uint64_t calls_ = 0;
};

}  // namespace umbp
