// Gets: name, check, plan, copy, let go.
#include <algorithm>

#include "pool.h"
#include "pool_call.h"
#include "pool_copy.h"

namespace umbp {
namespace {

constexpr uint64_t kSliceBytes = 256u << 20;  // what one call may keep from being freed

std::vector<Hash128>& keys_of_this_thread() {
  thread_local std::vector<Hash128> keys;
  return keys;
}

std::span<const Hash128> derive_keys(const Reader& reader, const Component& component,
                                     std::span<const Hash128> digests) {
  std::vector<Hash128>& keys = keys_of_this_thread();
  keys.resize(digests.size());
  reader.derive_keys(component.key, digests, keys.data());
  return keys;
}

std::span<const Hash128> derive_keys(const Reader& reader, std::span<const PageGet> gets,
                                     size_t count) {
  std::vector<Hash128>& keys = keys_of_this_thread();
  keys.resize(count);
  size_t at = 0;
  for (const PageGet& get : gets) {
    reader.derive_keys(get.component.key, get.digests, keys.data() + at);
    at += get.digests.size();
  }
  return keys;
}

// How many items from `start` on make one slice.
template <class Batch>
size_t slice_size(const Batch& batch, size_t start, size_t count) {
  size_t size = 0;
  uint64_t bytes = 0;
  while (start + size < count && size < kSlotHandles) {
    bytes += batch.bytes_of(start + size);
    if (size != 0 && bytes > kSliceBytes) break;
    ++size;
  }
  return size;
}

void check_session_window(const Session& session, size_t part, size_t first_page, size_t count) {
  if (part >= session.width())
    throw InvalidBatch("component " + std::to_string(part) + " is not one of the session's " +
                       std::to_string(session.width()));
  if (first_page > session.pages() || count > session.pages() - first_page)
    throw InvalidBatch("pages [" + std::to_string(first_page) + ", " +
                       std::to_string(first_page + count) + ") are not a part of the session's [0, " +
                       std::to_string(session.pages()) + ")");
}

// Releases the session on every way out.
class SessionUse {
 public:
  explicit SessionUse(Session& session) : session_(session), held_(session.acquire()) {}
  ~SessionUse() {
    if (held_) session_.release();
  }
  SessionUse(const SessionUse&) = delete;
  SessionUse& operator=(const SessionUse&) = delete;
  bool held() const { return held_; }

 private:
  Session& session_;
  bool held_;
};

}  // namespace

template <class Batch>
void Pool::read_named(std::span<const Hash128> keys, const Batch& batch, Status* out,
                      PhaseTimer& timer) {
  for (size_t start = 0; start < keys.size();) {
    const size_t size = slice_size(batch, start, keys.size());
    read_slice(keys.subspan(start, size), batch, start, out + start, timer);
    start += size;
  }
}

template <class Batch>
void Pool::read_slice(std::span<const Hash128> keys, const Batch& batch, size_t first_item,
                      Status* out, PhaseTimer& timer) {
  const bool counts_as_call = first_item == 0;  // one a get, whatever its slices
  if (hidden()) return leave_unread(Status::kMissing, {out, keys.size()}, counts_as_call);
  const int slot = reader_->claim_slot(config_.deadline);
  SlotGuard guard(*reader_, slot);
  if (slot < 0) return leave_unread(Status::kNoSlot, {out, keys.size()}, counts_as_call);
  NamedBatch named(*reader_, slot, keys);
  named.totals().calls = counts_as_call ? 1 : 0;
  timer.mark(Phase::kResolve);
  const auto arena = reinterpret_cast<uint64_t>(reader_->index().arena);
  copy<Direction::kGet>(batch, timer, [&](const auto& add) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t item = first_item + i;
      out[i] = Status::kMissing;
      if (named.found(i) && within_arena(reader_->index(), named.entry(i))) {
        out[i] = batch.check(item, named.entry(i).nbytes);
        if (out[i] == Status::kOk) add(item, arena + named.entry(i).offset);
      }
      named.totals().count(out[i], batch.bytes_of(item));
      timer.count(batch.fragments_of(item), out[i] == Status::kOk ? batch.bytes_of(item) : 0);
    }
  });
  named.record_recency();
}

template <class Batch, class ObjectOf>
void Pool::read_session(Session& session, size_t count, const ObjectOf& object_of,
                        const Batch& batch, Status* out, PhaseTimer& timer) {
  SessionUse use(session);
  if (use.held()) return read_pinned(session, count, object_of, batch, out, timer);
  if (!session.dropped() || session.ended()) throw InvalidBatch("the session is closed");
  std::vector<Hash128> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(session.keys()[object_of(i)]);
  read_named(keys, batch, out, timer);
}

template <class Batch, class ObjectOf>
void Pool::read_pinned(Session& session, size_t count, const ObjectOf& object_of,
                       const Batch& batch, Status* out, PhaseTimer& timer) {
  timer.mark(Phase::kResolve);
  ReadTotals totals;
  totals.calls = 1;
  const auto arena = reinterpret_cast<uint64_t>(reader_->index().arena);
  copy<Direction::kGet>(batch, timer, [&](const auto& add) {
    for (size_t i = 0; i < count; ++i) {
      const PinnedObject& object = session.object(object_of(i));
      out[i] = object.handle == kNoHandle ? Status::kNotPinned : batch.check(i, object.nbytes);
      if (out[i] == Status::kOk) add(i, arena + object.offset);
      totals.count(out[i], batch.bytes_of(i));
      timer.count(batch.fragments_of(i), out[i] == Status::kOk ? batch.bytes_of(i) : 0);
    }
  });
  session.ledger().add(totals);
}

void Pool::answer_all(Status answer, std::span<Status> out, PhaseTimer& timer) {
  timer.count(out.size(), 0);
  leave_unread(answer, out, true);
}

void Pool::leave_unread(Status answer, std::span<Status> out, bool counts_as_call) {
  std::fill(out.begin(), out.end(), answer);
  ReadTotals totals;
  totals.calls = counts_as_call ? 1 : 0;
  totals.by_status[static_cast<size_t>(answer)] = out.size();
  reader_->slots().spare_ledger().add(totals);
}

void Pool::get_pages(const Component& component, const PageLayout& layout,
                     std::span<const Hash128> digests, std::span<const int64_t> rows, size_t first,
                     size_t last, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.get));
  PhaseTimer timer(config_.call_debug, get_phases_);
  check_lengths(digests.size(), rows.size());
  LayoutBatch batch(layout, rows, first, last);
  batch.check_distinct();
  if (call.lost()) return answer_all(Status::kMissing, {out, digests.size()}, timer);
  const auto keys = derive_keys(*reader_, component, digests);
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  read_named(keys, batch, out, timer);
}

void Pool::get_components(std::span<const PageGet> gets, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.get));
  PhaseTimer timer(config_.call_debug, get_phases_);
  JoinedBatch batch(gets.size());
  for (const PageGet& get : gets) {
    check_lengths(get.digests.size(), get.rows.size());
    batch.append(get.layout, get.rows, get.first, get.last);
  }
  batch.check_distinct();
  if (call.lost()) return answer_all(Status::kMissing, {out, batch.size()}, timer);
  const auto keys = derive_keys(*reader_, gets, batch.size());
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  read_named(keys, batch, out, timer);
}

void Pool::get_session_components(Session& session, std::span<const SessionGet> gets,
                                  size_t first_page, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.get));
  PhaseTimer timer(config_.call_debug, get_phases_);
  JoinedBatch batch(gets.size());
  std::vector<size_t> places;
  for (const SessionGet& get : gets) {
    check_session_window(session, get.part, first_page, get.rows.size());
    batch.append(get.layout, get.rows, get.first, get.last);
    for (size_t i = 0; i < get.rows.size(); ++i)
      places.push_back(session.place_of(first_page + i, get.part));
  }
  batch.check_distinct();
  if (call.lost()) return answer_all(Status::kNotPinned, {out, places.size()}, timer);
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  read_session(session, places.size(), [&](size_t i) { return places[i]; }, batch, out, timer);
}

void Pool::get_session_pages(Session& session, size_t part, size_t first_page,
                             const PageLayout& layout, std::span<const int64_t> rows, size_t first,
                             size_t last, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.get));
  PhaseTimer timer(config_.call_debug, get_phases_);
  check_session_window(session, part, first_page, rows.size());
  LayoutBatch batch(layout, rows, first, last);
  batch.check_distinct();
  if (call.lost()) return answer_all(Status::kNotPinned, {out, rows.size()}, timer);
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  const auto object_of = [&](size_t i) { return session.place_of(first_page + i, part); };
  read_session(session, rows.size(), object_of, batch, out, timer);
}

void Pool::get_ranges(const Component& component, std::span<const Hash128> digests,
                      const RangeBatch& ranges, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.get));
  PhaseTimer timer(config_.call_debug, get_phases_);
  check_lengths(digests.size(), ranges.keys);
  ListedBatch batch(ranges);
  ranges.check_disjoint();
  if (call.lost()) return answer_all(Status::kMissing, {out, digests.size()}, timer);
  const auto keys = derive_keys(*reader_, component, digests);
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  read_named(keys, batch, out, timer);
}

void Pool::get_session_ranges(Session& session, size_t part, size_t first_page,
                              const RangeBatch& ranges, Status* out, const CopyOrder& after) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.get));
  PhaseTimer timer(config_.call_debug, get_phases_);
  check_session_window(session, part, first_page, ranges.keys);
  ListedBatch batch(ranges);
  ranges.check_disjoint();
  if (call.lost()) return answer_all(Status::kNotPinned, {out, ranges.keys}, timer);
  timer.mark(Phase::kBuild);
  batch.after = after;
  classify(batch, timer);
  const auto object_of = [&](size_t i) { return session.place_of(first_page + i, part); };
  read_session(session, ranges.keys, object_of, batch, out, timer);
}

}  // namespace umbp
