#include "device_copier.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "device_chooser.h"
#include "device_kernels.h"
#include "device_lane.h"
#include "device_pieces.h"

namespace umbp {
namespace {

using Clock = std::chrono::steady_clock;

// What a copy is expected to need: the rate of a PCIe 5 link, and a launch with its end. Only the way a thread waits
// depends on it.
constexpr double kBytesPerNs = 50.0;
constexpr std::chrono::microseconds kLaunchAndEnd{15};

std::chrono::nanoseconds expected_time(uint64_t bytes) {
  return std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / kBytesPerNs)) + kLaunchAndEnd;
}

// The module of one device with its functions; none without an image.
class Kernels {
 public:
  Kernels(DeviceApi& api, int device, std::span<const std::byte> image) : api_(api), device_(device) {
    if (image.empty()) return;
    module_ = api_.load_module(device_, image);
    try {
      find_functions();
    } catch (...) {
      unload();
      throw;
    }
  }
  ~Kernels() { unload(); }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  FunctionHandle small() const { return small_; }
  FunctionHandle plain() const { return plain_; }
  FunctionHandle even() const { return even_; }
  FunctionHandle bulk() const { return bulk_; }  // null where the device has no bulk copies

 private:
  void find_functions() {
    small_ = api_.find_function(module_, kSmallKernel);
    plain_ = api_.find_function(module_, kPlainKernel);
    even_ = api_.find_function(module_, kEvenKernel);
    if (api_.properties(device_).major < kBulkFromMajor) return;
    end_quietly([this] {  // one kernel less is no reason to do without the others
      const FunctionHandle found = api_.find_function(module_, kBulkKernel);
      api_.allow_shared_bytes(found, kBulkSharedBytes);
      bulk_ = found;
    });
  }
  void unload() {
    if (module_ != nullptr) end_quietly([this] { api_.unload_module(device_, module_); });
  }

  DeviceApi& api_;
  int device_;
  ModuleHandle module_ = nullptr;
  FunctionHandle small_ = nullptr;
  FunctionHandle plain_ = nullptr;
  FunctionHandle even_ = nullptr;
  FunctionHandle bulk_ = nullptr;
};

// Copies to the device: whether there are some now, or were a moment ago.
class InwardCopies {
 public:
  void note() { last_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed); }
  bool lately() const {
    const Clock::time_point last{Clock::duration(last_.load(std::memory_order_relaxed))};
    return Clock::now() - last < kLately;
  }

 private:
  // Restores of a request come one layer group after another.
  static constexpr std::chrono::milliseconds kLately{20};
  std::atomic<Clock::rep> last_{Clock::duration(-kLately).count()};
};

// Copies to the host leave the way that the requests of copies to the device travel.
void keep_way_free(CopyThresholds& thresholds) {
  for (unsigned& grid : thresholds.d2h_grids) grid = std::min(grid, thresholds.d2h_grid_beside_h2d);
  thresholds.bulk.fill(false);
}

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
  Submission(DeviceApi& api, int device, const Kernels& kernels, DeviceLane& lane, std::span<const Run> runs,
             const Choosing& choosing)
      : api_(api), device_(device), kernels_(kernels), lane_(lane), runs_(runs), choosing_(choosing) {}

  void put(CopyWay asked) {
    const auto sample = runs_.first(std::min(kSampleRuns, runs_.size()));
    const PlanShape shape = shape_of(sample);
    const CopyChoice choice = choosing_.choose(shape, asked);
    way_ = choice.way;
    switch (choice.way) {
      case CopyWay::kKernel:
        if (sample.size() == runs_.size() && put_small(shape, choice)) break;
        put_windows(shape.mean(), choice, even_of(sample));
        break;
      case CopyWay::kBulkKernel:
        put_windows(shape.mean(), choice, {});
        break;
      case CopyWay::kBatchedDma:
        put_batches();
        break;
      default:
        put_each();
    }
  }

  CopyWay way() const { return way_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t descriptors() const { return descriptors_; }
  uint64_t calls() const { return calls_; }

 private:
  struct KernelShape {
    FunctionHandle function;
    unsigned threads;
    unsigned shared_bytes;
    unsigned parts_a_block;  // that one block copies at a time
    unsigned blocks_for_one = 1;  // that count as one block of a grid
  };

  KernelShape plain_shape(FunctionHandle function) const {
    return {function, kPlainThreads, 0, kPlainThreads / kPlainGroup};
  }
  KernelShape small_shape() const {
    return {kernels_.small(), kSmallThreads, 0, kSmallThreads / kPlainGroup, kPlainThreads / kSmallThreads};
  }
  KernelShape bulk_shape() const { return {kernels_.bulk(), kBulkThreads, kBulkSharedBytes, kBulkThreads}; }

  // choice, even: what the first runs say.
  void put_windows(uint64_t mean, const CopyChoice& choice, const std::optional<EvenCopy>& even) {
    const size_t most = window_of(runs_.size(), mean, choosing_.thresholds.launch_bytes, kMostWindowRuns);
    for (size_t first = 0; first < runs_.size(); first += most) {
      const auto runs = runs_.subspan(first, std::min(most, runs_.size() - first));
      if (!even || !put_even(runs, *even, choice)) put_any(runs, choice.way);
    }
  }

  // False, and nothing is done, if the plan has too many pieces for an argument, or is more than one launch is to copy.
  bool put_small(const PlanShape& shape, const CopyChoice& choice) {
    if (runs_.size() > kSmallPieces || shape.bytes > choosing_.thresholds.launch_bytes) return false;
    const PlanCut cut = cut_plan(shape, kPlainPartBytes);
    PieceSource source(runs_, shape.longest, cut.longest_piece);
    SmallCopyPlan plan;
    plan.cut = cut.cut;
    plan.cut.count = static_cast<uint32_t>(source.fill(plan.pieces, kSmallPieces));
    if (!source.finished()) return false;
    void* parameters[] = {&plan};
    launch(small_shape(), plan.cut, choice, parameters);
    bytes_ += shape.bytes;
    return true;
  }

  // False, and nothing is done, if the runs are not what `even` says.
  bool put_even(std::span<const Run> runs, EvenCopy even, const CopyChoice& choice) {
    const PlanShape shape{runs.size(), runs.size() * uint64_t{even.nbytes}, even.nbytes};
    PlanCut cut = cut_plan(shape, kPlainPartBytes);
    const auto room = lane_.plan_room(runs.size() * sizeof(EvenCopyPiece));
    if (shape.longest > cut.longest_piece || !fill_even(runs, even, static_cast<EvenCopyPiece*>(room.memory))) {
      return false;
    }
    lane_.keep_plan(runs.size() * sizeof(EvenCopyPiece));
    cut.cut.count = static_cast<uint32_t>(runs.size());
    uint64_t pieces = room.alias;
    void* parameters[] = {&pieces, &even, &cut.cut};
    launch(plain_shape(kernels_.even()), cut.cut, choice, parameters);
    bytes_ += shape.bytes;
    return true;
  }

  void put_any(std::span<const Run> runs, CopyWay way) {
    const PlanShape shape = shape_of(runs);
    const CopyChoice choice = choosing_.choose(shape, way);
    const bool bulk = choice.way == CopyWay::kBulkKernel;
    const PlanCut cut = cut_plan(shape, bulk ? kBulkPartBytes : kPlainPartBytes);
    put_listed(PieceSource(runs, shape.longest, cut.longest_piece), cut.cut,
               bulk ? bulk_shape() : plain_shape(kernels_.plain()), choice);
    bytes_ += shape.bytes;
  }

  void put_listed(PieceSource source, CopyCut cut, const KernelShape& kernel, const CopyChoice& choice) {
    while (!source.finished()) {
      const size_t most = std::min(kMostPieces, source.at_most());
      const auto room = lane_.plan_room(most * sizeof(CopyPiece));
      cut.count = static_cast<uint32_t>(source.fill(static_cast<CopyPiece*>(room.memory), most));
      lane_.keep_plan(cut.count * sizeof(CopyPiece));
      uint64_t pieces = room.alias;
      void* parameters[] = {&pieces, &cut};
      launch(kernel, cut, choice, parameters);
    }
  }

  // The parameters name `cut`.
  void launch(const KernelShape& kernel, CopyCut& cut, const CopyChoice& choice, void** parameters) {
    const uint64_t parts = uint64_t{cut.count} * cut.parts;
    const uint64_t useful = (parts + kernel.parts_a_block - 1) / kernel.parts_a_block;
    const uint64_t most = uint64_t{choice.most} * kernel.blocks_for_one;
    const auto blocks = static_cast<unsigned>(useful <= most ? useful : choice.grid * kernel.blocks_for_one);
    cut.share = share_of(parts, uint64_t{blocks} * kernel.parts_a_block);
    api_.launch(device_, {kernel.function, blocks, kernel.threads, kernel.shared_bytes, parameters},
                lane_.stream());
    ++calls_;
    descriptors_ += cut.count;
  }

  void put_batches() {
    const size_t most = std::min(api_.max_batch(), kMostDescriptors);
    std::vector<uint64_t> dst, src, nbytes;
    for (size_t first = 0; first < runs_.size(); first += most) {
      const auto part = runs_.subspan(first, std::min(most, runs_.size() - first));
      dst.clear(), src.clear(), nbytes.clear();
      for (const Run& run : part) {
        dst.push_back(run.dst), src.push_back(run.src), nbytes.push_back(run.nbytes);
        bytes_ += run.nbytes;
      }
      api_.copy_batch_async(device_, dst, src, nbytes, choosing_.direction, lane_.stream());
      ++calls_;
    }
    descriptors_ += runs_.size();
  }

  void put_each() {
    for (const Run& run : runs_) {
      api_.copy_async(device_, run.dst, run.src, run.nbytes, lane_.stream());
      bytes_ += run.nbytes;
    }
    calls_ += runs_.size();
    descriptors_ += runs_.size();
  }

  // Of one batched call: more gains nothing.
  static constexpr size_t kMostDescriptors = 8192;
  static constexpr size_t kSampleRuns = 1024;
  static constexpr size_t kMostWindowRuns = 65536;
  static constexpr size_t kMostPieces = DeviceLane::kBlockBytes / sizeof(CopyPiece);
  static_assert(kMostWindowRuns * sizeof(EvenCopyPiece) <= DeviceLane::kBlockBytes);

  DeviceApi& api_;
  int device_;
  const Kernels& kernels_;
  DeviceLane& lane_;
  std::span<const Run> runs_;
  Choosing choosing_;
  CopyWay way_ = CopyWay::kAuto;
  uint64_t bytes_ = 0;
  uint64_t descriptors_ = 0;
  uint64_t calls_ = 0;
};

}  // namespace

struct DeviceCopier::State {
  State(std::shared_ptr<DeviceApi> runtime, int number, std::span<const std::byte> image,
        const CopyThresholds& first_thresholds, unsigned lanes)
      : api(std::move(runtime)),
        device(number),
        kernels(*api, number, image),
        outward(*api, number, false),
        max_lanes(std::max(1u, lanes)),
        thresholds(first_thresholds) {}

  // A free lane, a new one, or the first that comes back.
  DeviceLane* take_lane() {
    std::unique_lock guard(mutex);
    returned.wait(guard, [this] { return !free.empty() || taken < max_lanes; });
    ++taken;
    if (!free.empty()) {
      DeviceLane* lane = free.back().release();
      free.pop_back();
      return lane;
    }
    guard.unlock();
    try {
      return new DeviceLane(*api, device);
    } catch (...) {
      give_back(nullptr);
      throw;
    }
  }

  // Null: a lane that is gone.
  void give_back(std::unique_ptr<DeviceLane> lane) {
    {
      const std::lock_guard guard(mutex);
      --taken;
      if (lane != nullptr) free.push_back(std::move(lane));
    }
    returned.notify_one();
  }

  CopyThresholds current_thresholds() {
    const std::lock_guard guard(mutex);
    return thresholds;
  }

  void count(const Submission& done, size_t fragments, std::chrono::nanoseconds time) {
    const std::lock_guard guard(mutex);
    totals.fragments += fragments;
    totals.descriptors += done.descriptors();
    totals.calls += done.calls();
    totals.bytes += done.bytes();
    totals.submit_ns += static_cast<uint64_t>(time.count());
    ++totals.by_way[static_cast<size_t>(done.way())];
  }

  // For a copy that is submitted now.
  Choosing choosing(CopyDirection direction) {
    Choosing made{direction, current_thresholds(), abilities()};
    if (direction == CopyDirection::kHostToDevice) inward.note();
    if (direction == CopyDirection::kDeviceToHost && inward.lately()) keep_way_free(made.thresholds);
    return made;
  }

  CopyAbilities abilities() const {
    return {kernels.plain() != nullptr, kernels.bulk() != nullptr, api->max_batch() != 0};
  }

  const std::shared_ptr<DeviceApi> api;
  const int device;
  const Kernels kernels;
  // All copies to the host, one after the other: more of them at once are no faster, and fill the way on which the
  // requests of copies to the device travel.
  const DeviceStream outward;
  InwardCopies inward;
  const unsigned max_lanes;
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::unique_ptr<DeviceLane>> free;
  unsigned taken = 0;
  CopyThresholds thresholds;
  DeviceCopyTotals totals;
};

DeviceCopier::DeviceCopier(std::shared_ptr<DeviceApi> api, int device, std::span<const std::byte> kernels,
                           const CopyThresholds& thresholds, unsigned max_lanes)
    : state_(std::make_unique<State>(std::move(api), device, kernels, thresholds, max_lanes)) {}

DeviceCopier::~DeviceCopier() = default;

DeviceCopier::Ticket DeviceCopier::submit(std::span<const Run> runs, size_t fragments, CopyDirection direction,
                                          const CopyOrder& after, CopyWay way) {
  if (runs.empty()) return {};
  const Choosing choosing = state_->choosing(direction);
  std::unique_ptr<DeviceLane> lane(state_->take_lane());
  try {
    Submission submission(*state_->api, state_->device, state_->kernels, *lane, runs, choosing);
    const auto begin = Clock::now();
    lane->begin(direction == CopyDirection::kDeviceToHost ? state_->outward.get() : nullptr);
    lane->order_after(after);
    submission.put(way);
    lane->mark_end(expected_time(submission.bytes()));
    state_->count(submission, fragments, Clock::now() - begin);
  } catch (...) {
    lane->drain();
    lane.reset();
    state_->give_back(nullptr);
    throw;
  }
  return {this, lane.release()};
}

int DeviceCopier::device() const { return state_->device; }

DeviceApi& DeviceCopier::api() { return *state_->api; }

DeviceCopyTotals DeviceCopier::totals() const {
  const std::lock_guard guard(state_->mutex);
  return state_->totals;
}

CopyThresholds DeviceCopier::thresholds() const { return state_->current_thresholds(); }

bool DeviceCopier::has_kernels() const { return state_->abilities().kernels; }

bool DeviceCopier::has_bulk_kernel() const { return state_->abilities().bulk; }

void DeviceCopier::set_totals(const DeviceCopyTotals& totals) {
  const std::lock_guard guard(state_->mutex);
  state_->totals = totals;
}

void DeviceCopier::set_thresholds(const CopyThresholds& thresholds) {
  const std::lock_guard guard(state_->mutex);
  state_->thresholds = thresholds;
}

DeviceCopier::Ticket::Ticket(Ticket&& other) noexcept
    : copier_(std::exchange(other.copier_, nullptr)), lane_(std::exchange(other.lane_, nullptr)) {}

DeviceCopier::Ticket& DeviceCopier::Ticket::operator=(Ticket&& other) noexcept {
  std::swap(copier_, other.copier_);
  std::swap(lane_, other.lane_);
  return *this;
}

DeviceCopier::Ticket::~Ticket() {
  end_quietly([this] { wait(); });
}

void DeviceCopier::Ticket::wait() {
  if (lane_ == nullptr) return;
  std::unique_ptr<DeviceLane> lane(std::exchange(lane_, nullptr));
  State& state = *copier_->state_;
  try {
    lane->wait();
  } catch (...) {
    lane->drain();
    lane.reset();
    state.give_back(nullptr);
    throw;
  }
  state.give_back(std::move(lane));
}

}  // namespace umbp
