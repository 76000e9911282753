#include "pool.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "pool_call.h"

namespace umbp {
namespace {

// Enough chunks to name every entry twice over, and thousands for short sessions, each of which
// takes one whole. What is never used costs address space only.
uint32_t chunk_count_for(uint32_t entry_count) { return 2 * (entry_count / kChunkHandles) + 4096; }

Hash128 component_key(const Hash128& secret, std::string_view identity) {
  // A key of its own, so that no page hash can be mistaken for an identity.
  return prf128({~secret.low, secret.high}, identity);
}

// Page after page, the keys of all components.
void derive_page_keys(const Reader& reader, std::span<const Component> components,
                      std::span<const Hash128> digests, std::vector<Hash128>& keys) {
  const size_t width = components.size();
  keys.resize(digests.size() * width);
  if (width == 1) return reader.derive_keys(components[0].key, digests, keys.data());
  std::vector<Hash128> column(digests.size());
  for (size_t c = 0; c < width; ++c) {
    reader.derive_keys(components[c].key, digests, column.data());
    for (size_t i = 0; i < digests.size(); ++i) keys[i * width + c] = column[i];
  }
}

IndexView view_of(const std::vector<Mapping>& memory) {
  const auto* header = reinterpret_cast<const Header*>(memory[0].data());
  if (header->magic != kHeaderMagic || header->version != kLayoutVersion)
    throw Error("the shared memory is not of this version: magic " +
                std::to_string(header->magic) + ", version " + std::to_string(header->version) +
                ", expected version " + std::to_string(kLayoutVersion));
  if (header->bucket_count > memory[1].nbytes() / sizeof(Bucket) ||
      header->entry_count > memory[2].nbytes() / sizeof(Entry) ||
      header->arena_bytes > memory[3].nbytes())
    throw Error("the shared memory is smaller than its header says: are the descriptors in order "
                "(header, buckets, entries, arena)?");
  return {header,
          reinterpret_cast<const Bucket*>(memory[1].data()),
          reinterpret_cast<const Entry*>(memory[2].data()),
          memory[3].data(),
          header->bucket_count,
          header->arena_bytes,
          header->entry_count};
}

// Populates maps of another process's memory as soon as that one has: what it touches first is charged to
// its cgroup, not to ours. Holds a map of the header, so that it may be asked for as long as it is there.
class Populating {
 public:
  explicit Populating(int header_fd)
      : header_(std::make_shared<const Mapping>(
            Mapping::attach("index header", header_fd, Access::kRead))) {}

  void start(Mapping& memory, Access access) const {
    memory.populate_in_background(access, {[header = header_] { return begin(*header); }, {}});
  }

 private:
  static Begin begin(const Mapping& header) {
    const auto& state = reinterpret_cast<const Header*>(header.data())->prefaulting;
    switch (state.load(std::memory_order_acquire)) {
      case Prefaulting::kDone: return Begin::kNow;
      case Prefaulting::kNotWanted: return Begin::kNever;
      default: return Begin::kNotYet;
    }
  }

  std::shared_ptr<const Mapping> header_;
};

ClientArea area_of(const Mapping& memory) {
  const ClientArea area = ClientArea::at(memory.data());
  if (memory.nbytes() < ClientArea::nbytes(0) || area.head->magic != kHeaderMagic ||
      memory.nbytes() < ClientArea::nbytes(area.head->chunk_count))
    throw Error("the descriptor is not that of a client area");
  return area;
}

}  // namespace

Pool::Pool(const PoolConfig& config)
    : config_(config), copies_(HostCopier(config.nt_copy_min_bytes, config.copy_isa),
                               config.copy_threads) {
  owner_ = std::make_unique<Owner>(config.owner);
  const Client& self = owner_->add_client(chunk_count_for(config.owner.entry_count), true);
  own_client_ = self.id;
  start_reading(owner_->view(), self.area);
}

Pool::Pool(const PoolConfig& config, const Share& share)
    : config_(config), copies_(HostCopier(config.nt_copy_min_bytes, config.copy_isa),
                               config.copy_threads) {
  const char* names[] = {"index header", "index buckets", "index entries", "arena"};
  for (size_t i = 0; i < share.memory.size(); ++i)
    attached_.push_back(Mapping::attach(names[i], share.memory[i], Access::kRead));
  const IndexView index = view_of(attached_);
  WritableArena::Made made = [](Mapping&) {};
  if (config.owner.memory.prefault_in_background) {
    const Populating populating(share.memory[0]);
    for (Mapping& memory : attached_) populating.start(memory, Access::kRead);
    made = [populating](Mapping& memory) { populating.start(memory, Access::kWrite); };
  }
  attached_.push_back(Mapping::attach("client area", share.client, Access::kWrite));
  writable_ = std::make_unique<WritableArena>(share.memory[3], std::move(made));
  start_reading(index, area_of(attached_.back()));
}

void Pool::start_reading(const IndexView& index, const ClientArea& area) {
  secret_ = index.header->secret;
  reader_ = std::make_unique<Reader>(index, area);
  sessions_ = std::make_shared<SessionList>(*reader_, config_.session_quota_bytes);
}

Pool::~Pool() {
  if (!guard_.foreign()) {
    close();
    return;
  }
  copies_.abandon();
  abandon_devices();
  // A put that waited at the fork is counted in the condition variable for ever: destroying it hangs.
  static_cast<void>(owner_.release());
}

// Every call has a deadline, and those that come now are refused or counted elsewhere: this ends.
void Pool::wait_for(const std::atomic<uint32_t>& calls) {
  while (calls.load(std::memory_order_seq_cst) != 0)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void Pool::close() {
  if (guard_.foreign() || closed_.exchange(true, std::memory_order_seq_cst)) return;
  wait_for(calls_);
  wait_for(lost_calls_);
  std::lock_guard lock(ending_mutex_);
  sessions_->close_all();
  copies_.stop();
  let_go_of_devices();
  reader_.reset();
  owner_.reset();
  attached_.clear();
  writable_.reset();
  ended_->store(true, std::memory_order_release);
}

void Pool::lose() {
  guard_.check();
  if (owner_) throw Error("this pool owns its memory: it cannot lose its owner");
  lost_.store(true, std::memory_order_seq_cst);
}

void Pool::unmap() {
  guard_.check();
  if (!lost()) throw Error("the pool is not lost: close() it");
  wait_for(calls_);
  std::lock_guard lock(ending_mutex_);
  sessions_->close_all();
  unpin();
  attached_.clear();
  writable_.reset();
  ended_->store(true, std::memory_order_release);
}

void Pool::hide(bool hidden) {
  guard_.check();
  hidden_.store(hidden, std::memory_order_seq_cst);
}

bool Pool::populated() {
  Call call(*this);
  if (call.lost()) return true;
  if (owner_) return owner_->populated();
  return writable_->populated() &&
         std::all_of(attached_.begin(), attached_.end(),
                     [](const Mapping& memory) { return memory.populated(); });
}

Owner& Pool::owner() {
  if (!owner_) throw Error("this pool is attached to another process's memory and only reads");
  return *owner_;
}

Component Pool::component(std::string_view identity) {
  Call call(*this);
  std::lock_guard lock(components_mutex_);
  auto known = std::find(components_.begin(), components_.end(), identity);
  if (known == components_.end()) known = components_.insert(known, std::string(identity));
  return {static_cast<uint32_t>(known - components_.begin()), component_key(secret_, identity)};
}

void Pool::exists(std::span<const Component> components, std::span<const Hash128> digests,
                  bool* found) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.exists));
  if (call.lost() || hidden()) return std::fill(found, found + digests.size(), false);
  look_up(components, digests, false, found);
}

size_t Pool::exists_prefix(std::span<const Component> components,
                           std::span<const Hash128> digests) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.exists));
  return call.lost() || hidden() ? 0 : look_up(components, digests, true, nullptr);
}

// Returns the leading run of digests that every component has. Without stop_at_missing, found[i] is
// set for all of them.
size_t Pool::look_up(std::span<const Component> components, std::span<const Hash128> digests,
                     bool stop_at_missing, bool* found) {
  const size_t step = kSlotHandles / components.size();
  if (step == 0)
    throw InvalidBatch("at most " + std::to_string(kSlotHandles) + " components a namespace");
  const int slot = reader_->claim_slot(config_.deadline);
  SlotGuard guard(*reader_, slot);
  if (found != nullptr) std::fill(found, found + digests.size(), false);
  if (slot < 0) return 0;
  std::vector<Hash128> keys;
  ReadTotals totals;
  size_t prefix = 0;
  bool unbroken = true;
  for (size_t start = 0; start < digests.size(); start += step) {
    const auto part = digests.subspan(start, std::min(step, digests.size() - start));
    derive_page_keys(*reader_, components, part, keys);
    NamedBatch named(*reader_, slot, keys);
    for (size_t i = 0; i < part.size(); ++i) {
      bool whole = true;
      for (size_t c = 0; c < components.size(); ++c)
        whole = whole && named.found(i * components.size() + c);
      unbroken = unbroken && whole;
      if (unbroken) ++prefix;
      if (whole) ++totals.keys_found;
      if (found != nullptr) found[start + i] = whole;
    }
    totals.keys_looked_up += part.size();
    if (config_.exists_refreshes) named.record_recency();
    if (stop_at_missing && !unbroken) break;
  }
  reader_->slots().ledger(slot).add(totals);
  return prefix;
}

bool Pool::holds(std::span<const SizedObjects> objects) {
  Call call(*this);
  if (call.lost()) return false;
  const int slot = reader_->claim_slot(std::chrono::nanoseconds(0));
  SlotGuard guard(*reader_, slot);
  if (slot < 0) return false;
  return std::all_of(objects.begin(), objects.end(),
                     [&](const SizedObjects& some) { return holds(some, slot); });
}

bool Pool::holds(const SizedObjects& objects, int slot) {
  std::vector<Hash128> keys(kSlotHandles);
  for (size_t start = 0; start < objects.digests.size(); start += kSlotHandles) {
    const auto part = objects.digests.subspan(
        start, std::min<size_t>(kSlotHandles, objects.digests.size() - start));
    reader_->derive_keys(objects.component.key, part, keys.data());
    NamedBatch named(*reader_, slot, std::span(keys).first(part.size()));
    for (size_t i = 0; i < part.size(); ++i)
      if (!named.found(i) || named.entry(i).nbytes != objects.sizes[start + i]) return false;
    named.record_recency();
  }
  return true;
}

std::shared_ptr<Session> Pool::pin(std::span<const Component> components,
                                   std::span<const Hash128> digests, bool firm) {
  Call call(*this);
  const CallLatency latency(latency_of(latencies_.pin));
  if (call.lost() || hidden())
    return sessions_->hold_nothing(digests.size(), components.size(), firm);
  const int slot = reader_->claim_slot(config_.deadline);
  SlotGuard guard(*reader_, slot);
  if (slot < 0) throw Error("no reader slot was free before the deadline");
  thread_local std::vector<Hash128> keys;
  derive_page_keys(*reader_, components, digests, keys);
  return sessions_->pin(keys, components.size(), firm, slot);
}

void Pool::remove(std::span<const Component> components, std::span<const Hash128> digests,
                  bool* removed) {
  Call call(*this);
  std::fill(removed, removed + digests.size(), false);
  std::vector<Hash128> keys(digests.size());
  const auto one = std::make_unique<bool[]>(digests.size());
  for (const Component& component : components) {
    prf128_batch(component.key, digests, keys.data());
    owner().remove(keys, one.get());
    for (size_t i = 0; i < digests.size(); ++i) removed[i] |= one[i];
  }
}

void Pool::clear() {
  Call call(*this);
  owner().clear();
}

PoolStats Pool::stats() {
  Call call(*this);
  PoolStats stats;
  stats.owner_attached = owner_ != nullptr;
  if (owner_) stats.owner = owner_->stats();
  stats.sessions = sessions_->totals();
  stats.reads = reader_->slots().totals();
  stats.reads.add(stats.sessions.reads);
  stats.region_locks = regions_.shared_acquisitions();
  stats.regions = regions_.size();
  stats.copy_isa = copies_.isa();
  if (DeviceMemory* const known = devices()) {
    stats.devices.copies = known->totals();
    stats.devices.staged_bytes = known->staged_bytes();
    stats.devices.pinned_bytes = read_pins_->pinned_bytes();
    if (write_pins_ != read_pins_) stats.devices.pinned_bytes += write_pins_->pinned_bytes();
  }
  stats.gets = get_phases_.read();
  stats.puts = put_phases_.read();
  stats.get_latency = latencies_.get.read();
  stats.put_latency = latencies_.put.read();
  stats.exists_latency = latencies_.exists.read();
  stats.pin_latency = latencies_.pin.read();
  return stats;
}

std::vector<ClientReport> Pool::clients() {
  Call call(*this);
  return owner_ ? owner_->clients() : std::vector<ClientReport>{};
}

std::vector<Pool::ComponentReport> Pool::component_reports() {
  Call call(*this);
  std::vector<ComponentTotals> totals = owner().component_totals();
  std::vector<ComponentReport> reports;
  std::lock_guard lock(components_mutex_);
  totals.resize(components_.size());
  for (size_t i = 0; i < components_.size(); ++i) reports.push_back({components_[i], totals[i]});
  return reports;
}

void Pool::report_reads() {
  Call call(*this);
  if (call.lost()) return;
  ReadTotals reads = reader_->slots().totals();
  reads.add(sessions_->totals().reads);
  uint64_t keys = 0;
  for (const uint64_t count : reads.by_status) keys += count;
  const auto leave = [this](Figure figure, uint64_t value) {
    reader_->area().head->figures[static_cast<size_t>(figure)].store(value,
                                                                    std::memory_order_relaxed);
  };
  leave(Figure::kGetCalls, reads.calls);
  leave(Figure::kGets, keys);
  leave(Figure::kHits, reads.by_status[static_cast<size_t>(Status::kOk)]);
  leave(Figure::kBytesRead, reads.bytes);
  leave(Figure::kExistsKeys, reads.keys_looked_up);
  leave(Figure::kExistsFound, reads.keys_found);
}

std::pair<uint64_t, uint64_t> Pool::locate(const Component& component, const Hash128& digest) {
  Call call(*this);
  if (call.lost() || hidden()) return {0, 0};
  const Hash128 key = prf128(component.key, digest);
  const int slot = reader_->claim_slot(config_.deadline);
  SlotGuard guard(*reader_, slot);
  if (slot < 0) return {0, 0};
  NamedBatch named(*reader_, slot, {&key, 1});
  if (!named.found(0)) return {0, 0};
  const Entry& entry = named.entry(0);
  return {reinterpret_cast<uint64_t>(reader_->index().arena) + entry.offset, entry.nbytes};
}

Share Pool::share() {
  Call call(*this);
  if (config_.owner.memory.backing != MemoryBacking::kMemfd)
    throw Error("only a pool with memory='memfd' can be shared; this one is anonymous");
  const Client& client = owner().add_client(chunk_count_for(config_.owner.entry_count), false);
  return {owner().descriptors(), client.memory.fd(), client.id};
}

void Pool::flush() { Call call(*this); }

void Pool::bind_client(uint32_t id, pid_t pid, int pidfd) {
  Call call(*this);
  refuse_own_client(id);
  owner().bind_client(id, pid, pidfd);
}

void Pool::remove_client(uint32_t id) {
  Call call(*this);
  refuse_own_client(id);
  owner().remove_client(id);
}

void Pool::refuse_own_client(uint32_t id) {
  owner();
  if (id == own_client_)
    throw InvalidBatch("client " + std::to_string(id) + " is the pool itself, not an attached one");
}

}  // namespace umbp
