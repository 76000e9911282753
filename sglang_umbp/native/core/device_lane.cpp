#include "device_lane.h"

namespace umbp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Copies that should need more than this are waited for by blocking: the 30 us it costs are little to them.
constexpr microseconds kLongestAsked{1000};
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
    : api_(api), device_(device), own_(api, device, true), active_(own_.get()), end_(api, device), before_(api, device) {}

void DeviceLane::begin(StreamHandle shared) {
  shared_ = shared != nullptr;
  active_ = shared_ ? shared : own_.get();
}

void DeviceLane::order_after(const CopyOrder& order) {
  if (order.stream != nullptr) {
    api_.record_event(device_, before_.get(), order.stream);
    api_.wait_event(device_, active_, before_.get());
  }
  if (order.event != nullptr) api_.wait_event(device_, active_, order.event);
}

CopyPiece* DeviceLane::plan_block(size_t i) {
  while (blocks_.size() <= i) {
    blocks_.push_back(std::make_unique<PlanBlock>(api_, device_, kBlockPieces * sizeof(CopyPiece)));
  }
  return static_cast<CopyPiece*>(blocks_[i]->pinned.memory());
}

uint64_t DeviceLane::send_plan(size_t i, size_t n) {
  const PlanBlock& block = *blocks_[i];
  api_.copy_async(device_, block.sent.address(), block.pinned.alias(), n * sizeof(CopyPiece), active_);
  return block.sent.address();
}

void DeviceLane::mark_end(std::chrono::nanoseconds expected) {
  asked_until_ = Clock::now() + expected * 3 / 2 + kPatience;
  blocks_at_once_ = expected > kLongestAsked;
  end_is_marked_ = shared_ || blocks_at_once_;
  if (end_is_marked_) api_.record_event(device_, end_.get(), active_);
}

void DeviceLane::wait() {
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
