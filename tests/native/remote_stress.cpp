// Puts whose bytes others copy, against readers: exact orders of steps, then threads at once, every byte
// of every hit checked. To be run under sanitizers, and with mistakes planted in the core.
//
//   remote_stress SECONDS NT_COPY_MIN_BYTES     0 seconds: only the exact orders
//
// Exits with 0 if every byte was right, every refusal came, and the accounting came out even.
//
// ThreadSanitizer takes one page at two addresses for two pages, so half of the writers copy through the
// owner's own map, where it sees them meet the owner's readers.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "pool.h"
#include "remote_batch.h"

namespace {

using namespace umbp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kBatch = 4;
constexpr uint64_t kKeys = 24;
constexpr uint64_t kLargestBytes = 100'032;
constexpr uint64_t kCapacityBytes = 12 * kLargestBytes;
constexpr auto kLong = 10s;

std::atomic<uint64_t> wrong{0};

void expect(bool right, const char* what) {
  if (right) return;
  if (wrong.fetch_add(1) < 10) std::fprintf(stderr, "wrong: %s\n", what);
}

template <class F>
bool refused(const F& f) {
  try {
    f();
  } catch (const InvalidBatch&) {
    return true;
  }
  return false;
}

uint64_t nbytes_of(uint64_t key) { return key % 3 == 0 ? 1'728 : key % 3 == 1 ? 8'448 : kLargestBytes; }

uint64_t word_of(uint64_t key, uint64_t position) {
  return (key << 40 | position) * 0x9e3779b97f4a7c15u;
}

// A batch of keys with rows for their bytes.
class Work {
 public:
  Work() : words_(kBatch * kLargestBytes / sizeof(uint64_t)) {
    for (size_t i = 0; i < kBatch; ++i) addresses_.push_back(address(i));
  }
  void choose(const Pool& pool, std::vector<uint64_t> keys) {
    keys_ = std::move(keys);
    texts_.clear();
    sizes_.clear();
    for (const uint64_t key : keys_) {
      texts_.push_back("a key that is no short string: " + std::to_string(key));
      sizes_.push_back(nbytes_of(key));
    }
    views_.assign(texts_.begin(), texts_.end());
    digests_.resize(keys_.size());
    pool.digest(views_, digests_.data());
  }
  void fill_rows() {
    for (size_t i = 0; i < size(); ++i)
      for (uint64_t j = 0; j < sizes_[i] / 8; ++j) row(i)[j] = word_of(keys_[i], j);
  }
  bool holds(size_t i) {
    for (uint64_t j = 0; j < sizes_[i] / 8; ++j)
      if (row(i)[j] != word_of(keys_[i], j)) return false;
    return true;
  }
  void forget_names() {
    for (std::string& text : texts_) text.assign(text.size(), '?');
  }

  size_t size() const { return keys_.size(); }
  uint64_t* row(size_t i) { return words_.data() + i * kLargestBytes / 8; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  const std::vector<Hash128>& digests() const { return digests_; }
  const std::vector<std::string_view>& views() const { return views_; }
  RangeBatch whole() const {
    return {addresses_.data(), sizes_.data(), nullptr, nullptr, size(), size()};
  }

 private:
  uint64_t address(size_t i) const {
    return reinterpret_cast<uint64_t>(words_.data()) + i * kLargestBytes;
  }

  std::vector<uint64_t> words_, keys_, sizes_, addresses_;
  std::vector<std::string> texts_;
  std::vector<std::string_view> views_;
  std::vector<Hash128> digests_;
};

std::shared_ptr<RemoteBatch> reserve(Pool& owner, const Work& work) {
  return std::make_shared<RemoteBatch>(owner, owner.component("raw"), work.digests(), work.views(),
                                       work.sizes().data(), std::nullopt);
}

FillTargets targets_of(const RemoteBatch& batch, std::vector<uint64_t>& picks,
                       std::vector<uint64_t>& offsets) {
  picks.clear();
  offsets.clear();
  const auto answers = batch.answers();
  for (size_t i = 0; i < answers.size(); ++i)
    if (answers[i].phase == PutPhase::kNew) {
      picks.push_back(i);
      offsets.push_back(answers[i].offset);
    }
  return {picks, offsets};
}

PoolConfig config(uint64_t nt_copy_min_bytes) {
  PoolConfig config;
  config.owner.capacity_bytes = kCapacityBytes;
  config.owner.entry_count = 24;
  config.owner.memory.backing = MemoryBacking::kMemfd;
  config.copy_threads = 2;
  config.nt_copy_min_bytes = nt_copy_min_bytes;
  config.session_quota_bytes = kCapacityBytes / 4;
  config.deadline = 100ms;
  config.strict_registration = false;
  return config;
}

// A pool attached to another one; forgotten by it at the end.
struct Client {
  Client(Pool& owner, uint64_t nt_copy_min_bytes)
      : owner(owner), share(owner.share()), pool(config(nt_copy_min_bytes), share) {}
  ~Client() {
    pool.close();
    owner.remove_client(share.client_id);
  }
  void fill(Work& work, const RemoteBatch& batch) {
    std::vector<uint64_t> picks, offsets;
    const FillTargets targets = targets_of(batch, picks, offsets);
    expect(pool.fill_ranges(work.sizes().data(), work.whole(), targets), "a fill");
  }

  Pool& owner;
  Share share;
  Pool pool;
};

uint64_t used_bytes(Pool& owner) { return owner.stats().owner.space.used_bytes; }

// Whether every key of the work is found with its bytes.
bool reads(Pool& pool, Work& work) {
  Status answers[kBatch];
  for (size_t i = 0; i < work.size(); ++i) std::memset(work.row(i), 0xee, work.sizes()[i]);
  pool.get_ranges(pool.component("raw"), work.digests(), work.whole(), answers);
  for (size_t i = 0; i < work.size(); ++i)
    if (answers[i] != Status::kOk || !work.holds(i)) return false;
  return true;
}

void put(Client& client, Work& work) {
  work.fill_rows();
  const auto batch = reserve(client.owner, work);
  batch->allocate(0s);
  client.fill(work, *batch);
  expect(batch->commit(), "a put is over");
}

// --- exact orders ------------------------------------------------------------------------------

void abandon_frees_at_once(Client& client, Work& work) {
  Pool& owner = client.owner;
  work.choose(client.pool, {2, 5});
  for (int way = 0; way < 2; ++way) {
    auto batch = reserve(owner, work);
    batch->allocate(0s);
    client.fill(work, *batch);
    expect(used_bytes(owner) == 2 * kLargestBytes && batch->nbytes_reserved() == 2 * kLargestBytes &&
               batch->nbytes_held() == 2 * kLargestBytes && !batch->over(),
           "a batch counts what it reserves");
    if (way == 0) {
      batch->abandon();
      batch->abandon();
      expect(batch->over() && batch->nbytes_reserved() == 0 && batch->nbytes_held() == 0,
             "an abandoned batch is over");
      for (const auto& answer : batch->answers())
        expect(answer.phase == PutPhase::kDone && !succeeded(answer.status), "no offset to write to");
    }
    batch.reset();
    expect(used_bytes(owner) == 0, "what is abandoned is free");
  }
  expect(!reads(owner, work), "what was abandoned is not there");
}

void stale_commit_is_refused(Client& client, Work& work) {
  work.choose(client.pool, {2});
  const auto old = reserve(client.owner, work);
  old->allocate(0s);
  old->abandon();
  Work other;
  other.choose(client.pool, {5});  // takes the extent and the entry that the old one had
  const auto taken = reserve(client.owner, other);
  taken->allocate(0s);
  expect(refused([&] { old->commit(); }), "a commit after the batch was abandoned");
  expect(client.owner.stats().owner.objects == 0, "a stale commit shows nothing");
  other.fill_rows();
  client.fill(other, *taken);
  expect(taken->commit(), "the one who has the place now commits");
  expect(refused([&] { taken->commit(); }), "a second commit");
  expect(refused([&] { taken->allocate(0s); }), "a batch that is over starts again");
  expect(client.owner.stats().owner.objects == 1, "one object, once");
  expect(reads(client.owner, other), "the new object is whole");
  expect(!reads(client.owner, work), "the old one is not there");
  client.owner.clear();
}

void protection_ends_with_the_batch(Client& client, Work& work) {
  work.choose(client.pool, {2, 5, 8, 11});
  put(client, work);
  Work others;
  {
    const auto holds = reserve(client.owner, work);  // finds all four
    holds->allocate(0s);
    expect(holds->nbytes_held() == 4 * kLargestBytes && holds->nbytes_reserved() == 0, "found, held");
    for (uint64_t key = 101; key < 140; key += 12) {
      others.choose(client.pool, {key, key + 3, key + 6, key + 9});
      put(client, others);
    }
    expect(reads(client.owner, work), "eviction passed over what a batch found");
    holds->abandon();
  }
  for (uint64_t key = 200; key < 240; key += 12) {
    others.choose(client.pool, {key, key + 3, key + 6, key + 9});
    put(client, others);
  }
  expect(!reads(client.owner, work), "it holds nothing any more");
  client.owner.clear();
}

void keys_are_the_batchs_own(Client& client, Work& work) {
  work.choose(client.pool, {0, 1, 3, 4});
  work.fill_rows();
  const auto batch = reserve(client.owner, work);
  work.forget_names();
  batch->allocate(0s);
  client.fill(work, *batch);
  batch->commit();
  work.choose(client.pool, {0, 1, 3, 4});
  const auto again = reserve(client.owner, work);
  again->allocate(0s);
  for (const auto& answer : again->answers())
    expect(answer.phase == PutPhase::kPresent, "the same key is found by its full name");
  expect(again->commit(), "a batch of keys that are there");
  client.owner.clear();
}

void abandon_cuts_waits_short(Client& client, Work& work) {
  work.choose(client.pool, {2});
  const auto first = reserve(client.owner, work);
  first->allocate(0s);
  const auto second = reserve(client.owner, work);
  second->allocate(0s);
  expect(!second->commit(), "a key that another put fills");
  const auto begun = Clock::now();
  std::thread waiter([&] { second->await_busy(kLong); });
  std::this_thread::sleep_for(20ms);
  second->abandon();
  waiter.join();
  std::vector<std::shared_ptr<RemoteBatch>> holders;  // the whole pool, reserved
  Work large;
  for (uint64_t key = 300; used_bytes(client.owner) < kCapacityBytes; key += 3) {
    large.choose(client.pool, {key + 2});
    holders.push_back(reserve(client.owner, large));
    holders.back()->allocate(0s);
  }
  large.choose(client.pool, {1001});
  const auto third = reserve(client.owner, large);
  std::thread waits_for_room(
      [&] { expect(refused([&] { third->allocate(kLong); }), "an abandoned batch gets no offset"); });
  std::this_thread::sleep_for(20ms);
  third->abandon();
  waits_for_room.join();
  expect(Clock::now() - begun < kLong - 2s, "abandoning ends a wait");
  expect(third->nbytes_reserved() == 0, "it left nothing");
  holders.clear();
  first->abandon();
  expect(used_bytes(client.owner) == 0, "all is free");
}

void targets_outside_are_refused(Client& client, Work& work) {
  work.choose(client.pool, {0});
  const uint64_t pick = 0;
  for (const uint64_t offset : {uint64_t{1}, uint64_t{1} << 40, ~uint64_t{63}, ~uint64_t{0}})
    expect(refused([&] {
             client.pool.fill_ranges(work.sizes().data(), work.whole(), {{&pick, 1}, {&offset, 1}});
           }),
           "a target outside the arena");
}

void exact_orders(uint64_t nt_copy_min_bytes) {
  Pool owner(config(nt_copy_min_bytes));
  Client client(owner, nt_copy_min_bytes);
  Work work;
  void (*const orders[])(Client&, Work&) = {
      abandon_frees_at_once,   stale_commit_is_refused,  protection_ends_with_the_batch,
      keys_are_the_batchs_own, abandon_cuts_waits_short, targets_outside_are_refused};
  for (const auto order : orders) {
    order(client, work);
    owner.clear();
    expect(used_bytes(owner) == 0, "an order left something");
    if (wrong.load() != 0) return;
  }
}

// A client whose owner is lost while others read through it: right bytes or misses, then no memory.
void lose_among_readers(Pool& owner, uint64_t nt_copy_min_bytes) {
  Client client(owner, nt_copy_min_bytes);
  Work work;
  work.choose(client.pool, {2, 5, 8});
  put(client, work);
  std::atomic<int> reading{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&, i] {
      Work mine;
      mine.choose(client.pool, {2, 5, 8});
      const Component component = client.pool.component("raw");
      const uint64_t zeros[kBatch] = {}, starts[] = {0, 1, 2, 3};
      while (!stop.load()) {
        Status answers[kBatch];
        if (i == 0) {
          client.pool.get_ranges(component, mine.digests(), mine.whole(), answers);
        } else {
          const auto session = client.pool.pin({&component, 1}, mine.digests(), true);
          RangeBatch ranges = mine.whole();
          ranges.offsets = zeros;
          ranges.starts = starts;
          try {
            client.pool.get_session_ranges(*session, 0, 0, ranges, answers);
          } catch (const InvalidBatch&) {  // ended by unmap() in this moment
            continue;
          }
        }
        for (size_t k = 0; k < mine.size(); ++k)
          expect(answers[k] == Status::kOk ? mine.holds(k)
                                           : answers[k] == Status::kMissing || answers[k] == Status::kNotPinned,
                 "a read at the loss");
        reading.fetch_add(1);
      }
    });
  while (reading.load() < 4) std::this_thread::yield();
  client.pool.lose();
  client.pool.unmap();
  const int at_unmap = reading.load();
  while (reading.load() < at_unmap + 4) std::this_thread::yield();
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  expect(!reads(client.pool, work), "a lost pool finds nothing");
  const uint64_t pick = 0, offset = 0;
  expect(!client.pool.fill_ranges(work.sizes().data(), work.whole(), {{&pick, 1}, {&offset, 1}}),
         "a lost pool fills nothing");
}

// --- all at once -------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 77 + 1) {}
  uint64_t below(uint64_t end) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % end;
  }
  std::vector<uint64_t> keys() {  // all different
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < kBatch; ++i) keys.push_back(i * kKeys + below(kKeys));
    return keys;
  }

 private:
  uint64_t state_;
};

// Where the one who abandons batches finds that of a writer. Nobody may abandon while it copies.
struct Desk {
  std::mutex copying;
  std::mutex changing;
  std::shared_ptr<RemoteBatch> batch;

  void show(std::shared_ptr<RemoteBatch> shown) {
    std::lock_guard lock(changing);
    batch = std::move(shown);
  }
  std::shared_ptr<RemoteBatch> seen() {
    std::lock_guard lock(changing);
    return batch;
  }
};

struct Counts {
  std::atomic<uint64_t> stored{0}, abandoned{0}, hits{0};
};

void write(Pool& owner, Client& client, std::byte* owners_arena, Desk& desk, Random random,
           Clock::time_point end, Counts& counts) {
  Work work;
  std::vector<uint64_t> picks, offsets;
  while (Clock::now() < end) {
    work.choose(client.pool, random.keys());
    work.fill_rows();
    const auto batch = reserve(owner, work);
    desk.show(batch);
    try {
      bool over = false;
      while (!over) {
        batch->allocate(100ms);
        {
          std::lock_guard lock(desk.copying);
          if (batch->abandoned()) throw InvalidBatch("abandoned");
          if (owners_arena == nullptr) {
            client.fill(work, *batch);
          } else {
            targets_of(*batch, picks, offsets);
            for (size_t i = 0; i < picks.size(); ++i)
              std::memcpy(owners_arena + offsets[i], work.row(picks[i]), work.sizes()[picks[i]]);
          }
        }
        if (random.below(8) == 0) batch->abandon();
        over = batch->commit() || batch->await_busy(100ms);
      }
      for (const auto& answer : batch->answers()) {
        expect(answer.phase == PutPhase::kDone, "an answer a key");
        if (answer.status == Status::kOk) counts.stored.fetch_add(1);
      }
    } catch (const InvalidBatch&) {
      expect(batch->abandoned(), "a refusal without a reason");
      counts.abandoned.fetch_add(1);
    }
    desk.show(nullptr);
  }
}

void read(Pool& pool, Random random, Clock::time_point end, Counts& counts) {
  Work work;
  const Component component = pool.component("raw");
  while (Clock::now() < end) {
    work.choose(pool, random.keys());
    Status answers[kBatch];
    pool.get_ranges(component, work.digests(), work.whole(), answers);
    for (size_t i = 0; i < kBatch; ++i)
      if (answers[i] == Status::kOk) {
        counts.hits.fetch_add(1);
        expect(work.holds(i), "bytes of a hit");
      }
    if (random.below(64) == 0) {
      bool removed[kBatch];
      if (random.below(8) == 0)
        pool.clear();
      else
        pool.remove({&component, 1}, work.digests(), removed);
    }
  }
}

void read_attached(Pool& owner, uint64_t nt_copy_min_bytes, Random random, Clock::time_point end,
                   Counts& counts) {
  while (Clock::now() < end) {
    Client client(owner, nt_copy_min_bytes);
    Work work;
    const Component component = client.pool.component("raw");
    for (int call = 0; call < 20; ++call) {
      work.choose(client.pool, random.keys());
      Status answers[kBatch];
      client.pool.get_ranges(component, work.digests(), work.whole(), answers);
      for (size_t i = 0; i < kBatch; ++i)
        if (answers[i] == Status::kOk) {
          counts.hits.fetch_add(1);
          expect(work.holds(i), "bytes of a hit in an attached pool");
        }
    }
  }
}

void abandon_now_and_then(std::vector<Desk>& desks, Random random, Clock::time_point end) {
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(500)));
    Desk& desk = desks[random.below(desks.size())];
    const auto batch = desk.seen();
    if (!batch) continue;
    std::lock_guard lock(desk.copying);
    batch->abandon();
  }
}

// The address of the arena in the owner's own map.
std::byte* arena_of(Pool& owner, Client& client, Work& work) {
  work.choose(client.pool, {0});
  work.fill_rows();
  const auto batch = reserve(owner, work);
  batch->allocate(0s);
  const uint64_t offset = batch->answers()[0].offset;
  client.fill(work, *batch);
  batch->commit();
  const uint64_t address = owner.locate(owner.component("raw"), work.digests()[0]).first;
  return reinterpret_cast<std::byte*>(address - offset);
}

void all_at_once(double seconds, uint64_t nt_copy_min_bytes) {
  Pool owner(config(nt_copy_min_bytes));
  Counts counts;
  {
    Client client(owner, nt_copy_min_bytes);
    Work work;
    std::byte* const arena = arena_of(owner, client, work);
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::vector<Desk> desks(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < desks.size(); ++i)
      threads.emplace_back([&, i] {
        write(owner, client, i % 2 == 0 ? arena : nullptr, desks[i], Random(i), end, counts);
      });
    threads.emplace_back([&] { read(owner, Random(50), end, counts); });
    threads.emplace_back([&] { read_attached(owner, nt_copy_min_bytes, Random(51), end, counts); });
    threads.emplace_back([&] { abandon_now_and_then(desks, Random(52), end); });
    for (std::thread& thread : threads) thread.join();
  }
  owner.clear();
  const PoolStats stats = owner.stats();
  expect(stats.owner.space.used_bytes == 0, "nothing is used after a clear");
  expect(stats.owner.objects == 0, "no objects after a clear");
  expect(stats.owner.clients == 1, "clients are forgotten");
  expect(counts.stored > 100 && counts.abandoned > 100 && counts.hits > 100, "enough happened");
  std::printf("stored %lu abandoned %lu hits %lu evicted %lu\n", counts.stored.load(),
              counts.abandoned.load(), counts.hits.load(), stats.owner.space.evicted_objects);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const uint64_t nt_copy_min_bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  exact_orders(nt_copy_min_bytes);
  if (wrong.load() == 0) {
    Pool owner(config(nt_copy_min_bytes));
    for (int i = 0; i < 10; ++i) lose_among_readers(owner, nt_copy_min_bytes);
  }
  if (seconds > 0 && wrong.load() == 0) all_at_once(seconds, nt_copy_min_bytes);
  return wrong.load() == 0 ? 0 : 1;
}
