#include "arena_pins.h"

#include <unistd.h>

#include <algorithm>

#include "errors.h"

namespace umbp {
namespace {

constexpr uint64_t kLargePage = 2u << 20;

uint64_t whole_pages(uint64_t nbytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

}  // namespace

// Two chunks more than fit: a start between two large pages moves every border.
ArenaPins::ArenaPins(std::shared_ptr<DeviceApi> api, uint64_t arena_bytes, uint64_t chunk_bytes)
    : api_(std::move(api)), arena_bytes_(arena_bytes), chunk_bytes_(chunk_bytes),
      aliases_(chunk_bytes == 0 ? 0 : arena_bytes / chunk_bytes + 2) {
  if (chunk_bytes == 0 || chunk_bytes % kLargePage != 0)
    throw InvalidBatch("the arena is pinned in chunks of " + std::to_string(chunk_bytes) +
                       " bytes; allowed: multiples of 2 MiB");
}

uint64_t ArenaPins::begin_of(size_t chunk) const {
  return chunk == 0 ? 0 : chunk * chunk_bytes_ - lead_.load(std::memory_order_relaxed);
}

uint64_t ArenaPins::end_of(size_t chunk) const {
  return std::min((chunk + 1) * chunk_bytes_ - lead_.load(std::memory_order_relaxed),
                  whole_pages(arena_bytes_));
}

uint64_t ArenaPins::pin(int device, std::byte* base, bool read_only,
                        const std::function<bool()>& stop) {
  const std::lock_guard lock(mutex_);
  uint64_t done = 0;
  if (base_ != nullptr && base_ != base) throw Error("the arena is pinned through another map");
  if (base_ == nullptr) {
    base_ = base;
    lead_.store(reinterpret_cast<uint64_t>(base) % kLargePage, std::memory_order_release);
  }
  for (size_t chunk = 0; chunk < aliases_.size() && begin_of(chunk) < arena_bytes_; ++chunk) {
    if (aliases_[chunk].load(std::memory_order_relaxed) != 0) continue;
    if (stop()) return done;
    const uint64_t begin = begin_of(chunk), nbytes = end_of(chunk) - begin;
    const uint64_t alias = api_->register_host(
        device, reinterpret_cast<uint64_t>(base_) + begin, nbytes, read_only);
    aliases_[chunk].store(alias, std::memory_order_release);
    pinned_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
    done += nbytes;
  }
  return done;
}

void ArenaPins::unpin() noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t chunk = 0; chunk < aliases_.size(); ++chunk) {
    if (aliases_[chunk].exchange(0, std::memory_order_acq_rel) == 0) continue;
    try {
      api_->unregister_host(reinterpret_cast<uint64_t>(base_) + begin_of(chunk));
    } catch (const Error&) {  // the runtime is gone: so is its hold on the memory
    }
  }
  pinned_bytes_.store(0, std::memory_order_relaxed);
}

}  // namespace umbp
