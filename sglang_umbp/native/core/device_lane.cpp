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
    : api_(api), device_(device), stream_(api, device, true), end_(api, device), before_(api, device) {}

void DeviceLane::order_after(const CopyOrder& order) {
  if (order.stream != nullptr) {
    api_.record_event(device_, before_.get(), order.stream);
    api_.wait_event(device_, stream_.get(), before_.get());
  }
  if (order.event != nullptr) api_.wait_event(device_, stream_.get(), order.event);
}

CopyPiece* DeviceLane::plan_block(size_t i) {
  while (blocks_.size() <= i) {
    const uint64_t nbytes = block_pieces(blocks_.size()) * sizeof(CopyPiece);
    blocks_.push_back(std::make_unique<PlanBlock>(api_, device_, nbytes));
  }
  return static_cast<CopyPiece*>(blocks_[i]->pinned.memory());
}

uint64_t DeviceLane::send_plan(size_t i, size_t n) {
  const PlanBlock& block = *blocks_[i];
  api_.copy_async(device_, block.sent.address(), block.pinned.alias(), n * sizeof(CopyPiece), stream_.get());
  return block.sent.address();
}

void DeviceLane::mark_end(std::chrono::nanoseconds expected) {
  asked_until_ = Clock::now() + expected * 3 / 2 + kPatience;
  end_is_marked_ = expected > kLongestAsked;
  if (end_is_marked_) api_.record_event(device_, end_.get(), stream_.get());
}

void DeviceLane::wait() {
  if (!end_is_marked_) {
    do {
      if (api_.is_stream_done(device_, stream_.get())) return;
      pause_a_little();
    } while (Clock::now() < asked_until_);
    api_.record_event(device_, end_.get(), stream_.get());
  }
  api_.synchronize_event(device_, end_.get());
}

void DeviceLane::drain() {
  end_quietly([this] { api_.synchronize_stream(device_, stream_.get()); });
}

}  // namespace umbp
