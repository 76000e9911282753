#include "arena_pins.h"

#include <unistd.h>

#include <algorithm>

#include "errors.h"

namespace umbp {
namespace {

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

uint64_t whole_pages(uint64_t nbytes) {
  return (nbytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

}  // namespace

// Two chunks more than fit: a start between two borders moves every one.
ArenaPins::ArenaPins(std::shared_ptr<DeviceApi> api, uint64_t arena_bytes, uint64_t chunk_bytes)
    : api_(std::move(api)), arena_bytes_(arena_bytes), chunk_bytes_(chunk_bytes),
      aliases_(chunk_bytes == 0 ? 0 : arena_bytes / chunk_bytes + 2) {
  if (chunk_bytes == 0 || chunk_bytes % PinnedMemory::kLargestPage != 0)
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
    lead_.store(reinterpret_cast<uint64_t>(base) % chunk_bytes_, std::memory_order_release);
  }
  // What is pinned is so for every device; which one asks matters only where nothing is.
  if (pinned_bytes() == 0) memory_.emplace(api_, device, chunk_bytes_);
  for (size_t chunk = 0; chunk < aliases_.size() && begin_of(chunk) < arena_bytes_; ++chunk) {
    if (aliases_[chunk].load(std::memory_order_relaxed) != 0) continue;
    if (stop()) return done;
    const uint64_t begin = begin_of(chunk), nbytes = end_of(chunk) - begin;
    const uint64_t alias = pin_chunk(reinterpret_cast<uint64_t>(base_) + begin, nbytes, read_only);
    aliases_[chunk].store(alias, std::memory_order_release);
    pinned_bytes_.fetch_add(nbytes, std::memory_order_relaxed);
    done += nbytes;
  }
  return done;
}

// All of it, in one piece; else nothing. Where devices see it.
uint64_t ArenaPins::pin_chunk(uint64_t base, uint64_t nbytes, bool read_only) {
  memory_->pin(base, nbytes, read_only, page_bytes());
  const PinnedMemory::Piece piece = memory_->at(base);
  if (piece.nbytes >= nbytes) return piece.alias;
  memory_->unpin(base, nbytes);
  throw DeviceError("a part of the arena's " + std::to_string(nbytes) + " bytes at address " + std::to_string(base) +
                    " was registered by others");
}

void ArenaPins::unpin() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& alias : aliases_) alias.store(0, std::memory_order_release);
  memory_.reset();
  pinned_bytes_.store(0, std::memory_order_relaxed);
}

}  // namespace umbp
