#include "device_lane.h"

#include <algorithm>
#include <thread>

namespace umbp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// How long completion is asked for without blocking. A blocked thread is back 10 to 30 us after the end.
constexpr microseconds kAsking{200};
// A sleep ends about this much after what was asked for.
constexpr microseconds kSleepError{100};

void pause_a_little() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

DeviceLane::DeviceLane(DeviceApi& api, int device)
    : api_(api), device_(device), stream_(api, device, true), end_(api, device), before_(api, device) {}

void DeviceLane::order_after(const CopyOrder& order) {
  if (order.stream != nullptr) {
    api_.record_event(device_, before_.get(), order.stream);
    api_.wait_event(device_, stream_.get(), before_.get());
  }
  if (order.event != nullptr) api_.wait_event(device_, stream_.get(), order.event);
}

CopyPiece* DeviceLane::plan_block(size_t i) {
  while (blocks_.size() <= i) blocks_.push_back(std::make_unique<PlanBlock>(api_, device_));
  return static_cast<CopyPiece*>(blocks_[i]->pinned.memory());
}

uint64_t DeviceLane::send_plan(size_t i, size_t n) {
  const PlanBlock& block = *blocks_[i];
  api_.copy_async(device_, block.sent.address(), block.pinned.alias(), n * sizeof(CopyPiece), stream_.get());
  return block.sent.address();
}

void DeviceLane::wait() {
  const auto first = Clock::now();
  if (due_ - first > kAsking + kSleepError) std::this_thread::sleep_for(due_ - first - kAsking);
  const auto last = std::max(due_, Clock::now()) + kAsking;
  while (!api_.is_stream_done(device_, stream_.get())) {
    if (Clock::now() >= last) {
      api_.record_event(device_, end_.get(), stream_.get());
      api_.synchronize_event(device_, end_.get());
      return;
    }
    pause_a_little();
  }
}

void DeviceLane::drain() {
  end_quietly([this] { api_.synchronize_stream(device_, stream_.get()); });
}

}  // namespace umbp
