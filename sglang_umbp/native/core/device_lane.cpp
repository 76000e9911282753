#include "device_lane.h"

#include <algorithm>
#include <utility>

namespace umbp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Copies that should need more than this are waited for by blocking: the 30 us it costs are little to them.
constexpr microseconds kLongestAsked{1000};
// Plans begin at multiples of this.
constexpr size_t kPlanUnit = 128;
// How much longer than expected a short copy is asked for.
constexpr microseconds kPatience{100};

void pause_a_little() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

DeviceLane::DeviceLane(DeviceApi& api, int device)
    : api_(api),
      device_(device),
      own_(api, device, true),
      active_(own_.get()),
      end_(api, device),
      before_(api, device) {}

void DeviceLane::begin(QueuePlace place) {
  place_ = std::move(place);
  active_ = place_.stream() != nullptr ? place_.stream() : own_.get();
  block_ = used_ = 0;
}

void DeviceLane::order_after(const CopyOrder& order) {
  if (order.stream != nullptr) {
    try {
      api_.record_event(device_, before_.get(), order.stream);
    } catch (const DeviceError& cause) {
      refuse_stream(order.stream, {&device_, 1}, cause);
    }
    api_.wait_event(device_, active_, before_.get());
  }
  if (order.event == nullptr) return;
  try {
    api_.wait_event(device_, active_, order.event);
  } catch (const DeviceError& cause) {
    refuse_event(order.event, cause);
  }
}

DeviceLane::PlanRoom DeviceLane::plan_room(size_t nbytes) {
  if (nbytes > kBlockBytes - used_) {
    ++block_;
    used_ = 0;
  }
  while (blocks_.size() <= block_) blocks_.push_back(std::make_unique<PinnedBlock>(api_, device_, kBlockBytes));
  const PinnedBlock& block = *blocks_[block_];
  return {static_cast<std::byte*>(block.memory()) + used_, block.alias() + used_};
}

void DeviceLane::keep_plan(size_t nbytes) {
  used_ = std::min(kBlockBytes, (used_ + nbytes + kPlanUnit - 1) / kPlanUnit * kPlanUnit);
}

void DeviceLane::mark_end(std::chrono::nanoseconds expected) {
  asked_until_ = Clock::now() + expected * 3 / 2 + kPatience;
  blocks_at_once_ = expected > kLongestAsked;
  end_is_marked_ = place_.stream() != nullptr || blocks_at_once_;
  if (end_is_marked_) api_.record_event(device_, end_.get(), active_);
}

void DeviceLane::wait() {
  await_end();
  place_ = {};
}

void DeviceLane::await_end() {
  if (!blocks_at_once_) {
    do {
      if (is_done()) return;
      pause_a_little();
    } while (Clock::now() < asked_until_);
    if (!end_is_marked_) api_.record_event(device_, end_.get(), active_);
  }
  api_.synchronize_event(device_, end_.get());
}

bool DeviceLane::is_done() {
  return end_is_marked_ ? api_.is_event_done(device_, end_.get()) : api_.is_stream_done(device_, active_);
}

void DeviceLane::drain() {
  end_quietly([this] { api_.synchronize_stream(device_, active_); });
}

}  // namespace umbp
