// The client's half of a put into another process's pool: copies into what the owner reserved.
#include "pool.h"
#include "pool_call.h"
#include "pool_copy.h"

namespace umbp {
namespace {

// What an owner in another process says is not taken on trust: nothing is written outside the arena.
void check_target(const IndexView& index, uint64_t offset, uint64_t nbytes) {
  if (nbytes <= index.arena_bytes && offset <= index.arena_bytes - nbytes &&
      offset % kArenaGranule == 0)
    return;
  throw InvalidBatch(std::to_string(nbytes) + " bytes at offset " + std::to_string(offset) +
                     " are not an extent of the arena of " + std::to_string(index.arena_bytes) +
                     " bytes");
}

[[noreturn]] void refuse_pick(uint64_t pick, const std::string& reason) {
  throw InvalidBatch("pick " + std::to_string(pick) + " " + reason);
}

void check_picks(const FillTargets& targets, size_t items) {
  if (targets.picks.size() != targets.offsets.size())
    throw InvalidBatch("there are " + std::to_string(targets.picks.size()) + " picks and " +
                       std::to_string(targets.offsets.size()) + " offsets");
  for (const uint64_t pick : targets.picks)
    if (pick >= items) refuse_pick(pick, "is outside the batch's " + std::to_string(items) + " items");
}

}  // namespace

WritableArena& Pool::writable() {
  if (!writable_) throw Error("this pool owns its memory: put into it");
  return *writable_;
}

template <class Batch, class SizeOf>
void Pool::fill(const Batch& batch, const FillTargets& targets, const SizeOf& size_of,
                PhaseTimer& timer) {
  for (size_t i = 0; i < targets.picks.size(); ++i)
    check_target(reader_->index(), targets.offsets[i], size_of(targets.picks[i]));
  const auto arena = reinterpret_cast<uint64_t>(writable().data());
  copy<Direction::kPut>(batch, timer, [&](const auto& add) {
    for (size_t i = 0; i < targets.picks.size(); ++i) {
      const uint64_t item = targets.picks[i];
      add(item, arena + targets.offsets[i]);
      timer.count(batch.fragments_of(item), size_of(item));
    }
  });
}

void Pool::check_put_pages(const PageLayout& layout, std::span<const int64_t> rows) {
  Call call(*this);
  LayoutBatch batch(layout, rows, 0, layout.fragments().size());
  batch.classify(regions_, config_.strict_registration, devices());
}

void Pool::check_put_ranges(const uint64_t* object_bytes, const RangeBatch& ranges, Status* out) {
  Call call(*this);
  ListedBatch batch(ranges);
  for (uint64_t i = 0; i < ranges.keys; ++i) out[i] = ranges.check_object(i, object_bytes[i]);
  batch.classify(regions_, config_.strict_registration, devices());
}

bool Pool::fill_pages(const PageLayout& layout, std::span<const int64_t> rows,
                      const FillTargets& targets, const CopyOrder& after) {
  Call call(*this);
  if (call.lost()) return false;
  PhaseTimer timer(config_.call_debug, put_phases_);
  check_picks(targets, rows.size());
  LayoutBatch batch(layout, rows, 0, layout.fragments().size());
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  fill(batch, targets, [&](uint64_t) { return layout.object_bytes(); }, timer);
  return true;
}

bool Pool::fill_ranges(const uint64_t* object_bytes, const RangeBatch& ranges,
                       const FillTargets& targets, const CopyOrder& after) {
  Call call(*this);
  if (call.lost()) return false;
  PhaseTimer timer(config_.call_debug, put_phases_);
  check_picks(targets, ranges.keys);
  ListedBatch batch(ranges);
  for (const uint64_t pick : targets.picks)  // what is not tiled would leave bytes of somebody else's
    if (ranges.check_object(pick, object_bytes[pick]) != Status::kOk)
      refuse_pick(pick, "does not tile its object");
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  fill(batch, targets, [&](uint64_t item) { return object_bytes[item]; }, timer);
  return true;
}

}  // namespace umbp
