#include "device_submission.h"

#include <algorithm>
#include <vector>

#include "device_even.h"
#include "device_small_plan.h"

namespace umbp {
namespace {

// Runs that say what the others will be like.
constexpr size_t kSampleRuns = 1024;
// Runs of the launches that are to begin soon, one after the other: the device copies each while the next is planned.
constexpr size_t kLeadRuns[] = {2048, 8192};
constexpr size_t kMostWindowRuns = 65536;
constexpr size_t kMostPieces = DeviceLane::kBlockBytes / sizeof(CopyPiece);
static_assert(kMostWindowRuns * sizeof(EvenCopyPiece) <= DeviceLane::kBlockBytes);
// Of one batched call: more gains nothing.
constexpr size_t kMostDescriptors = 8192;

}  // namespace

Submission::Submission(DeviceApi& api, int device, const DeviceModule& kernels, std::span<const Run> runs,
                       const Choosing& choosing)
    : api_(api), device_(device), kernels_(kernels), runs_(runs), choosing_(choosing),
      sample_(runs.first(std::min(kSampleRuns, runs.size()))), first_(shape_of(sample_)) {}

void Submission::put(DeviceLane& lane, CopyWay asked, bool lead) {
  lane_ = &lane;
  const CopyChoice choice = choosing_.choose(first_, asked);
  way_ = choice.way;
  switch (choice.way) {
    case CopyWay::kKernel:
      if (!put_small(choice)) put_windows(choice, even_of(sample_, Reach::kHalf), lead);
      break;
    case CopyWay::kBulkKernel:
      put_windows(choice, {}, lead);
      break;
    case CopyWay::kBatchedDma:
      put_batches();
      break;
    default:
      put_each();
  }
}

Submission::KernelShape Submission::plain_shape(FunctionHandle function) const {
  return {function, kPlainThreads, 0, kPlainThreads / kPlainGroup};
}

Submission::KernelShape Submission::small_shape() const {
  return {kernels_.small(), kSmallThreads, 0, kSmallThreads / kPlainGroup, kPlainThreads / kSmallThreads};
}

Submission::KernelShape Submission::bulk_shape() const {
  return {kernels_.bulk(), kBulkThreads, kBulkSharedBytes, kBulkThreads};
}

void Submission::put_windows(const CopyChoice& choice, const std::optional<EvenCopy>& even, bool lead) {
  size_t next = 0;
  const auto put_next = [&](size_t most) {
    const auto runs = runs_.subspan(next, std::min(most, runs_.size() - next));
    if (!even || !put_even(runs, *even, choice)) put_any(runs, choice.way);
    next += runs.size();
  };
  const auto window = [&] {
    return window_of(runs_.size() - next, first_.mean(), choosing_.thresholds.launch_bytes, kMostWindowRuns);
  };
  for (const size_t runs : kLeadRuns) {
    if (lead && runs_.size() - next > 2 * runs) put_next(std::min(runs, window()));
  }
  for (const size_t most = window(); next < runs_.size();) put_next(most);
}

// False, and nothing is done, if the plan cannot be an argument, or has more bytes than one launch is to copy.
bool Submission::put_small(const CopyChoice& choice) {
  SmallCopyPlan plan;
  if (runs_.size() > kSmallPieces || is_long() || !make_small_plan(runs_, plan)) return false;
  void* parameters[] = {&plan};
  launch(small_shape(), plan.parts, plan.share, choice, parameters);
  descriptors_ += runs_.size();
  bytes_ += first_.bytes;
  return true;
}

// False, and nothing is done, if the runs are not what `even` says.
bool Submission::put_even(std::span<const Run> runs, EvenCopy even, const CopyChoice& choice) {
  const PlanShape shape{runs.size(), runs.size() * uint64_t{even.nbytes}, even.nbytes};
  PlanCut cut = cut_plan(shape, kPlainPartBytes);
  const auto room = lane_->plan_room(runs.size() * sizeof(EvenCopyPiece));
  if (shape.longest > cut.longest_piece || !fill_even(runs, even, static_cast<EvenCopyPiece*>(room.memory))) {
    return false;
  }
  lane_->keep_plan(runs.size() * sizeof(EvenCopyPiece));
  cut.cut.count = static_cast<uint32_t>(runs.size());
  uint64_t pieces = room.alias;
  void* parameters[] = {&pieces, &even, &cut.cut};
  launch(plain_shape(kernels_.even()), runs.size() * uint64_t{cut.cut.parts}, cut.cut.share, choice, parameters);
  descriptors_ += runs.size();
  bytes_ += shape.bytes;
  return true;
}

void Submission::put_any(std::span<const Run> runs, CopyWay way) {
  const PlanShape shape = shape_of(runs);
  const CopyChoice choice = choosing_.choose(shape, way);
  const bool bulk = choice.way == CopyWay::kBulkKernel;
  const PlanCut cut = cut_closely(shape, bulk ? kBulkPartBytes : kPlainPartBytes);
  put_listed(PieceSource(runs, shape.longest, cut.longest_piece), cut.cut,
             bulk ? bulk_shape() : plain_shape(kernels_.plain()), choice);
  bytes_ += shape.bytes;
}

void Submission::put_listed(PieceSource source, CopyCut cut, const KernelShape& kernel, const CopyChoice& choice) {
  while (!source.finished()) {
    const size_t most = std::min(kMostPieces, source.at_most());
    const auto room = lane_->plan_room(most * sizeof(CopyPiece));
    cut.count = static_cast<uint32_t>(source.fill(static_cast<CopyPiece*>(room.memory), most));
    lane_->keep_plan(cut.count * sizeof(CopyPiece));
    uint64_t pieces = room.alias;
    void* parameters[] = {&pieces, &cut};
    launch(kernel, uint64_t{cut.count} * cut.parts, cut.share, choice, parameters);
    descriptors_ += cut.count;
  }
}

void Submission::launch(const KernelShape& kernel, uint64_t parts, uint32_t& share, const CopyChoice& choice,
                        void** parameters) {
  const uint64_t useful = (parts + kernel.parts_a_block - 1) / kernel.parts_a_block;
  const uint64_t most = uint64_t{choice.most} * kernel.blocks_for_one;
  const auto blocks = static_cast<unsigned>(useful <= most ? useful : choice.grid * kernel.blocks_for_one);
  share = share_of(parts, uint64_t{blocks} * kernel.parts_a_block);
  api_.launch(device_, {kernel.function, blocks, kernel.threads, kernel.shared_bytes, parameters}, lane_->stream());
  ++calls_;
}

void Submission::put_batches() {
  const size_t most = std::min(api_.max_batch(), kMostDescriptors);
  std::vector<uint64_t> dst, src, nbytes;
  for (size_t first = 0; first < runs_.size(); first += most) {
    const auto part = runs_.subspan(first, std::min(most, runs_.size() - first));
    dst.clear(), src.clear(), nbytes.clear();
    for (const Run& run : part) {
      dst.push_back(run.dst), src.push_back(run.src), nbytes.push_back(run.nbytes);
      bytes_ += run.nbytes;
    }
    api_.copy_batch_async(device_, dst, src, nbytes, choosing_.direction, lane_->stream());
    ++calls_;
  }
  descriptors_ += runs_.size();
}

void Submission::put_each() {
  for (const Run& run : runs_) {
    api_.copy_async(device_, run.dst, run.src, run.nbytes, lane_->stream());
    bytes_ += run.nbytes;
  }
  calls_ += runs_.size();
  descriptors_ += runs_.size();
}

}  // namespace umbp
