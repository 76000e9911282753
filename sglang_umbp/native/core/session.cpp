#include "session.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace umbp {

Session::~Session() { close(); }

size_t Session::prefix() const {
  size_t page = 0;
  while (page < pages() && held(page)) ++page;
  return page;
}

bool Session::acquire() {
  if (users_.fetch_add(1, std::memory_order_seq_cst) < kClosed) return true;
  users_.fetch_sub(1, std::memory_order_seq_cst);
  return false;
}

bool Session::try_drop() {
  uint32_t idle = 0;
  if (!users_.compare_exchange_strong(idle, kClosed, std::memory_order_seq_cst)) return false;
  dropped_.store(true, std::memory_order_release);
  return true;
}

void Session::close() {
  if (guard_.foreign()) return;  // what a forked child inherited is its parent's
  ended_.store(true, std::memory_order_release);
  users_.fetch_or(kClosed, std::memory_order_seq_cst);
  // A read lasts as long as its copy, and no new one starts: this ends.
  while (users_.load(std::memory_order_seq_cst) != kClosed)
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  list_->give_back(*this);
}

void Session::let_go_of_page(Reader& reader, size_t page) {
  for (size_t i = page * width_; i < (page + 1) * width_; ++i) {
    objects_[i] = {};
    reader.chunk_list(chunks_[i / kChunkHandles])
        .handles[i % kChunkHandles]
        .store(kNoHandle, std::memory_order_release);
  }
}

std::shared_ptr<Session> SessionList::pin(std::span<const Hash128> keys, size_t width, bool firm,
                                          int slot) {
  const auto session =
      std::make_shared<Session>(Session::Key{}, shared_from_this(), width, firm);
  session->objects_.resize(keys.size());
  if (!firm) session->keys_.assign(keys.begin(), keys.end());
  const size_t named = claim_chunks(*session, keys.size());
  name_objects(*session, keys.first(named));
  keep_whole_pages(*session);
  apply_quota(*session);
  reader_.record_recency(slot, session->objects_, [](const PinnedObject& object) { return object.handle; });
  return session;
}

std::shared_ptr<Session> SessionList::hold_nothing(size_t pages, size_t width, bool firm) {
  const auto session =
      std::make_shared<Session>(Session::Key{}, shared_from_this(), width, firm);
  session->objects_.resize(pages * width);
  session->returned_ = true;  // there is nothing to give back
  return session;
}

// Returns how many objects (whole pages) the chunks that could be had will hold.
size_t SessionList::claim_chunks(Session& session, size_t objects) {
  std::lock_guard lock(mutex_);
  const size_t wanted = (objects + kChunkHandles - 1) / kChunkHandles;
  while (!session.firm_ && reader_.chunks().available() < wanted && drop_oldest()) {
  }
  while (session.chunks_.size() < wanted && reader_.chunks().available() > 0)
    session.chunks_.push_back(reader_.chunks().claim());
  for (const uint32_t chunk : session.chunks_)
    raise_mark(reader_.area().head->chunks_used, chunk + 1);
  session.place_ = sessions_.insert(sessions_.end(), &session);
  const size_t room = session.chunks_.size() * kChunkHandles;
  return objects <= room ? objects : room / session.width_ * session.width_;
}

void SessionList::name_objects(Session& session, std::span<const Hash128> keys) {
  const IndexView& index = reader_.index();
  uint32_t handles[kChunkHandles];
  for (size_t start = 0; start < keys.size(); start += kChunkHandles) {
    const auto part = keys.subspan(start, std::min<size_t>(kChunkHandles, keys.size() - start));
    ReadProtocol<>::publish(index, reader_.chunk_list(session.chunks_[start / kChunkHandles]),
                            part.data(), static_cast<uint32_t>(part.size()), handles);
    for (size_t i = 0; i < part.size(); ++i) {
      if (handles[i] == kNoHandle) continue;
      const Entry& entry = index.entries[handles[i]];
      if (!within_arena(index, entry)) continue;
      session.objects_[start + i] = {entry.offset, entry.nbytes, handles[i]};
    }
  }
}

void SessionList::keep_whole_pages(Session& session) {
  const auto missing = [](const PinnedObject& object) { return object.handle == kNoHandle; };
  const size_t named = std::min(session.pages(),
                                session.chunks_.size() * kChunkHandles / session.width_);
  for (size_t page = 0; page < named; ++page) {
    const auto first = session.objects_.begin() + static_cast<ptrdiff_t>(page * session.width_);
    if (std::any_of(first, first + static_cast<ptrdiff_t>(session.width_), missing))
      session.let_go_of_page(reader_, page);
  }
}

void SessionList::apply_quota(Session& session) {
  std::lock_guard lock(mutex_);
  bool full = false;
  uint64_t nbytes = 0;  // set in the session at the end: until then drop_oldest() passes it over
  for (size_t page = 0; page < session.pages(); ++page) {
    if (!session.held(page)) continue;
    uint64_t page_bytes = 0;
    for (size_t part = 0; part < session.width_; ++part)
      page_bytes += session.object(session.place_of(page, part)).nbytes;
    const auto fits = [&] {
      return totals_.pinned_bytes + nbytes + page_bytes <= quota_bytes_;
    };
    while (!full && !fits() && !session.firm_ && drop_oldest()) {
    }
    full = full || !fits();
    if (full)
      session.let_go_of_page(reader_, page);
    else
      nbytes += page_bytes;
  }
  session.nbytes_ = nbytes;
  totals_.pinned_bytes += nbytes;
  if (full) ++totals_.cut_short;
  give_back_chunks(session, chunks_in_use(session));
}

// Chunks up to the last object that is held: sessions that found little must not use up what others
// need to hold anything at all.
size_t SessionList::chunks_in_use(const Session& session) {
  size_t objects = session.objects_.size();
  while (objects != 0 && session.objects_[objects - 1].handle == kNoHandle) --objects;
  return (objects + kChunkHandles - 1) / kChunkHandles;
}

void SessionList::give_back_chunks(Session& session, size_t keep) {
  while (session.chunks_.size() > keep) {
    ReadProtocol<>::withdraw(reader_.chunk_list(session.chunks_.back()));
    reader_.chunks().release(session.chunks_.back());
    session.chunks_.pop_back();
  }
}

bool SessionList::drop_oldest() {
  for (Session* session : sessions_)
    if (!session->firm_ && session->nbytes_ != 0 && session->try_drop()) {
      ++totals_.dropped;
      give_back_locked(*session);
      return true;
    }
  return false;
}

void SessionList::give_back(Session& session) {
  std::lock_guard lock(mutex_);
  give_back_locked(session);
}

void SessionList::give_back_locked(Session& session) {
  if (session.returned_.exchange(true)) return;
  give_back_chunks(session, 0);
  totals_.pinned_bytes -= session.nbytes_;
  session.ledger_.add_to(totals_.reads);
  sessions_.erase(session.place_);
}

SessionTotals SessionList::totals() {
  std::lock_guard lock(mutex_);
  SessionTotals totals = totals_;
  totals.open = sessions_.size();
  for (Session* session : sessions_) session->ledger_.add_to(totals.reads);
  return totals;
}

void SessionList::close_all() {
  std::vector<std::shared_ptr<Session>> open;
  {
    std::lock_guard lock(mutex_);
    for (Session* session : sessions_)
      if (auto alive = session->weak_from_this().lock()) open.push_back(std::move(alive));
    // Those that are being destroyed: nobody reads them, and their destructor waits for this mutex.
    const std::list<Session*> dying = sessions_;
    for (Session* session : dying)
      if (session->weak_from_this().expired()) give_back_locked(*session);
  }
  for (const auto& session : open) session->close();
}

}  // namespace umbp
