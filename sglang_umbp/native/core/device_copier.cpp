#include "device_copier.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device_lane.h"
#include "device_module.h"
#include "device_queue.h"
#include "device_submission.h"

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

// Copies to the device: whether there are some now, or were a moment ago.
class InwardCopies {
 public:
  // One begins that should need so long.
  void note(std::chrono::nanoseconds expected) {
    const Clock::rep until = (Clock::now() + expected + kLately).time_since_epoch().count();
    Clock::rep known = until_.load(std::memory_order_relaxed);
    while (known < until && !until_.compare_exchange_weak(known, until, std::memory_order_relaxed)) {
    }
  }
  bool lately() const { return Clock::now().time_since_epoch().count() < until_.load(std::memory_order_relaxed); }

 private:
  // Restores of a request come one layer group after another.
  static constexpr std::chrono::milliseconds kLately{20};
  std::atomic<Clock::rep> until_{0};
};

// Copies to the host leave the way that the requests of copies to the device travel.
void keep_way_free(CopyThresholds& thresholds) {
  for (unsigned& grid : thresholds.d2h_grids) grid = std::min(grid, thresholds.d2h_grid_beside_h2d);
  thresholds.bulk.fill(false);
}

}  // namespace

void refuse_stream(StreamHandle stream, std::span<const int> devices, const DeviceError& cause) {
  std::string numbers;
  for (const int device : devices) numbers += (numbers.empty() ? "" : " or ") + std::to_string(device);
  throw DeviceError("stream=" + std::to_string(reinterpret_cast<uintptr_t>(stream)) + " cannot be waited for (" +
                    cause.what() + "); allowed: a stream of device " + numbers +
                    ", or an event that was recorded in a stream of any device");
}

void refuse_event(EventHandle event, const DeviceError& cause) {
  throw DeviceError("event=" + std::to_string(reinterpret_cast<uintptr_t>(event)) + " cannot be waited for (" +
                    cause.what() + "); allowed: an event that was created and not destroyed");
}

struct DeviceCopier::State {
  State(std::shared_ptr<DeviceApi> runtime, int number, std::span<const std::byte> image,
        const CopyThresholds& first_thresholds, unsigned lanes)
      : api(std::move(runtime)),
        device(number),
        kernels(*api, number, image),
        outward(*api, number, false),
        long_inward(*api, number, true),
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
    if (direction == CopyDirection::kDeviceToHost && inward.lately()) keep_way_free(made.thresholds);
    return made;
  }

  // Null: it goes its own way.
  CopyQueue* queue_of(CopyDirection direction, const Submission& submission, const CopyOrder& after) {
    if (after.stream != nullptr || after.event != nullptr) return nullptr;  // nobody else waits for that
    if (direction == CopyDirection::kDeviceToHost) return &outward;
    if (direction == CopyDirection::kHostToDevice && submission.is_long()) return &long_inward;
    return nullptr;
  }

  CopyAbilities abilities() const {
    return {kernels.plain() != nullptr, kernels.bulk() != nullptr, api->max_batch() != 0};
  }

  const std::shared_ptr<DeviceApi> api;
  const int device;
  const DeviceModule kernels;
  // The copies to the host that wait for nothing of their caller's, one after the other: more of them at once are no faster, and fill the way on which the
  // requests of copies to the device travel.
  CopyQueue outward;
  // The long copies to the device that wait for nothing of their caller's: one after another they need half the
  // multiprocessors, and the next one is there when one ends.
  CopyQueue long_inward;
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
    const auto begin = Clock::now();
    Submission submission(*state_->api, state_->device, state_->kernels, runs, choosing);
    lane->begin(QueuePlace(state_->queue_of(direction, submission, after)));
    lane->order_after(after);
    submission.put(*lane, way, lane->is_first());
    const auto expected = expected_time(submission.bytes());
    lane->mark_end(expected);
    if (direction == CopyDirection::kHostToDevice) state_->inward.note(expected);
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
