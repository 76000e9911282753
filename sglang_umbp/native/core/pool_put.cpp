// Puts: allocate in one pass, copy without a lock, commit in one pass.
#include "pool.h"
#include "pool_call.h"
#include "pool_copy.h"

namespace umbp {
namespace {

// Gives back what is still being filled when a call ends by an exception.
class FillingGuard {
 public:
  FillingGuard(Owner& owner, std::vector<PutItem>& items) : owner_(owner), items_(items) {}
  ~FillingGuard() {
    if (armed_) owner_.abandon(items_);
  }
  FillingGuard(const FillingGuard&) = delete;
  FillingGuard& operator=(const FillingGuard&) = delete;
  void disarm() { armed_ = false; }

 private:
  Owner& owner_;
  std::vector<PutItem>& items_;
  bool armed_ = true;
};

}  // namespace

template <class Batch>
void Pool::store(std::vector<PutItem>& items, const Batch& batch, PhaseTimer& timer, Status* out) {
  const Deadline deadline = Deadline::after(config_.deadline);
  FillingGuard guard(owner(), items);
  const auto arena = reinterpret_cast<uint64_t>(owner().arena());
  bool over = false;
  while (!over) {
    owner().allocate(items, deadline);
    timer.mark(Phase::kAllocate);
    copy<Direction::kPut>(batch, timer, [&](const auto& add) {
      for (size_t i = 0; i < items.size(); ++i) {
        if (items[i].phase != PutPhase::kNew) continue;
        add(i, arena + items[i].offset);
        timer.count(batch.fragments_of(i), items[i].nbytes);
      }
    });
    over = owner().commit(items);
    timer.mark(Phase::kCommit);
    if (!over) over = owner().await_busy(items, deadline);
    timer.mark(Phase::kWait);
  }
  guard.disarm();
  note_troubles();
  for (size_t i = 0; i < items.size(); ++i) out[i] = items[i].status;
}

void Pool::put_pages(const Component& component, const PageLayout& layout,
                     std::span<const Hash128> digests, std::span<const std::string_view> keys,
                     std::span<const int64_t> rows, std::optional<uint32_t> depth, Status* out,
                     const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.put));
  PhaseTimer timer(config_.call_debug, put_phases_);
  check_lengths(digests.size(), rows.size());
  LayoutBatch batch(layout, rows, 0, layout.fragments().size());
  std::vector<PutItem> items = make_items(component.id, component.key, digests, keys, depth);
  for (PutItem& item : items) item.nbytes = layout.object_bytes();
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  store(items, batch, timer, out);
}

void Pool::put_components(std::span<const PagePut> puts, std::optional<uint32_t> depth, Status* out,
                          const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.put));
  PhaseTimer timer(config_.call_debug, put_phases_);
  JoinedBatch batch(puts.size());
  std::vector<PutItem> items;
  for (const PagePut& put : puts) {
    check_lengths(put.digests.size(), put.rows.size());
    batch.append(put.layout, put.rows, 0, put.layout.fragments().size());
    append_items(items, put.component.id, put.component.key, put.digests, put.keys, depth);
    for (size_t i = items.size() - put.rows.size(); i < items.size(); ++i)
      items[i].nbytes = put.layout.object_bytes();
  }
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  store(items, batch, timer, out);
}

void Pool::put_ranges(const Component& component, std::span<const Hash128> digests,
                      std::span<const std::string_view> keys, const uint64_t* object_bytes,
                      const RangeBatch& ranges, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.put));
  PhaseTimer timer(config_.call_debug, put_phases_);
  check_lengths(digests.size(), ranges.keys);
  ListedBatch batch(ranges);
  std::vector<PutItem> items =
      make_items(component.id, component.key, digests, keys, std::nullopt);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].nbytes = object_bytes != nullptr ? object_bytes[i] : ranges.nbytes[i];
    const Status shape = ranges.check_object(i, items[i].nbytes);
    if (shape != Status::kOk) items[i].finish(shape);
  }
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  store(items, batch, timer, out);
}

}  // namespace umbp
