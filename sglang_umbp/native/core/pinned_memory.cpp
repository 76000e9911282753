#include "pinned_memory.h"

#include <algorithm>
#include <exception>
#include <string>

#include "errors.h"

namespace umbp {
namespace {

uint64_t round_down(uint64_t value, uint64_t unit) { return value / unit * unit; }

std::string text_of(uint64_t base, uint64_t nbytes) {
  return "address " + std::to_string(base) + ", " + std::to_string(nbytes) + " bytes";
}

void check(uint64_t base, uint64_t nbytes, uint64_t page_bytes) {
  if (nbytes == 0 || base > UINT64_MAX - PinnedMemory::kLargestPage ||
      nbytes > UINT64_MAX - PinnedMemory::kLargestPage - base)
    throw RegionError("cannot pin " + text_of(base, nbytes) + ": no bytes, or an end beyond 2^64");
  const bool power_of_two = page_bytes != 0 && (page_bytes & (page_bytes - 1)) == 0;
  if (!power_of_two || page_bytes > PinnedMemory::kLargestPage)
    throw RegionError("cannot pin pages of " + std::to_string(page_bytes) + " bytes; allowed: up to 2 MiB");
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<DeviceApi> api, int device, uint64_t chunk_bytes)
    : api_(std::move(api)), device_(device), chunk_bytes_(chunk_bytes) {
  if (chunk_bytes == 0 || chunk_bytes % kLargestPage != 0)
    throw InvalidBatch("chunks of " + std::to_string(chunk_bytes) + " bytes; allowed: multiples of 2 MiB");
}

PinnedMemory::~PinnedMemory() {
  for (auto& [base, chunk] : chunks_) chunk.uses = 0;
  try {
    drop_unused(0, UINT64_MAX);
  } catch (const Error&) {  // the runtime is gone, and its hold on the memory with it
  }
}

void PinnedMemory::pin(uint64_t base, uint64_t nbytes, bool read_only, uint64_t page_bytes) {
  check(base, nbytes, page_bytes);
  const std::lock_guard pinning(pinning_);
  const uint64_t end = base + nbytes;
  uint64_t at = round_down(base, page_bytes);
  try {
    while (at < end) {
      const auto there = first_touching(at);
      if (there != chunks_.end() && there->first <= at)
        at = there->second.end;
      else
        at = add_chunk(at, base, end, read_only, page_bytes);
    }
  } catch (...) {
    const std::exception_ptr why = std::current_exception();
    try {
      drop_unused(round_down(base, page_bytes), end);
    } catch (const Error&) {  // the first error is the one to tell
    }
    std::rethrow_exception(why);
  }
  ++pinned_[{base, nbytes}];
  const std::unique_lock lock(mutex_);
  for (auto chunk = first_touching(base); chunk != chunks_.end() && chunk->first < end; ++chunk) ++chunk->second.uses;
}

// Makes [at, ...) pinned as far as one chunk goes; its end. `at` is in no chunk.
uint64_t PinnedMemory::add_chunk(uint64_t at, uint64_t base, uint64_t end, bool read_only, uint64_t page_bytes) {
  const auto next = first_touching(at);
  uint64_t limit = (at / chunk_bytes_ + 1) * chunk_bytes_;
  if (next != chunks_.end()) limit = std::min(limit, next->first);
  const uint64_t asked = std::max(at, base);
  const PointerInfo known = api_->pointer(asked);
  if (known.kind == MemoryKind::kPinnedHost) {
    const uint64_t theirs = known.nbytes == 0 ? round_down(asked, page_bytes) + page_bytes : known.base + known.nbytes;
    limit = std::min({limit, theirs, end});
    insert(asked, {limit, known.device_alias, 0, true});
    return limit;
  }
  limit = std::min(limit, round_down(end - 1, page_bytes) + page_bytes);
  insert(at, {limit, api_->register_host(device_, at, limit - at, read_only), 0, false});
  return limit;
}

void PinnedMemory::insert(uint64_t at, const Chunk& chunk) {
  const std::unique_lock lock(mutex_);
  chunks_.emplace(at, chunk);
}

// The chunk that holds `address`, else the first one above it.
PinnedMemory::Chunks::iterator PinnedMemory::first_touching(uint64_t address) {
  const auto above = chunks_.upper_bound(address);
  if (above == chunks_.begin() || std::prev(above)->second.end <= address) return above;
  return std::prev(above);
}

void PinnedMemory::unpin(uint64_t base, uint64_t nbytes) {
  const std::lock_guard pinning(pinning_);
  const auto range = pinned_.find({base, nbytes});
  if (range == pinned_.end()) throw RegionError("not pinned: " + text_of(base, nbytes));
  if (--range->second == 0) pinned_.erase(range);
  {
    const std::unique_lock lock(mutex_);
    for (auto chunk = first_touching(base); chunk != chunks_.end() && chunk->first < base + nbytes; ++chunk)
      --chunk->second.uses;
  }
  drop_unused(base, base + nbytes);
}

// Forgets the chunks in the range that nobody uses, every one of them, then throws the first error.
void PinnedMemory::drop_unused(uint64_t base, uint64_t end) {
  std::exception_ptr first;
  auto chunk = first_touching(base);
  while (chunk != chunks_.end() && chunk->first < end) {
    if (chunk->second.uses != 0) {
      ++chunk;
      continue;
    }
    const uint64_t at = chunk->first;
    const bool foreign = chunk->second.foreign;
    {
      const std::unique_lock lock(mutex_);  // before the registration ends: nobody finds it any more
      chunk = chunks_.erase(chunk);
    }
    try {
      if (!foreign) api_->unregister_host(at);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

PinnedMemory::Piece PinnedMemory::at(uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const auto after = chunks_.upper_bound(address);
  if (after == chunks_.begin()) return {};
  const auto& [base, chunk] = *std::prev(after);
  if (address >= chunk.end || chunk.uses == 0) return {};
  return {chunk.end - address, chunk.alias + (address - base)};
}

uint64_t PinnedMemory::pinned_bytes() const {
  const std::shared_lock lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [base, chunk] : chunks_)
    if (!chunk.foreign) sum += chunk.end - base;
  return sum;
}

}  // namespace umbp
