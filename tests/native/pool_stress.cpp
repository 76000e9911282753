// Four threads of mixed calls on one pool that evicts all the time, every byte of every success
// checked; and pools that close while their sessions end in other threads. To be run under sanitizers.
//
//   pool_stress SECONDS NT_COPY_MIN_BYTES
//
// Exits with 0 if every byte was right and the accounting came out even.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "pool.h"

namespace {

using namespace umbp;

constexpr size_t kThreads = 4;
constexpr size_t kBatch = 4;
constexpr uint64_t kKeys = 40;
constexpr uint64_t kLargestBytes = 100'032;
constexpr uint64_t kCapacityBytes = 12 * kLargestBytes;

std::atomic<uint64_t> wrong{0};

void expect(bool right, const char* what) {
  if (right) return;
  if (wrong.fetch_add(1) < 10) std::fprintf(stderr, "wrong: %s\n", what);
}

uint64_t nbytes_of(uint64_t key) { return key % 3 == 0 ? 1'728 : key % 3 == 1 ? 8'448 : kLargestBytes; }

uint64_t word_of(uint64_t key, uint64_t position) {
  return (key << 40 | position) * 0x9e3779b97f4a7c15u;
}

// One thread's registered memory: a row a member of a batch.
struct Rows {
  explicit Rows(Pool& pool) : words(kBatch * kLargestBytes / sizeof(uint64_t)) {
    pool.add_region(address(0), words.size() * sizeof(uint64_t), false);
  }
  uint64_t address(size_t row) const {
    return reinterpret_cast<uint64_t>(words.data()) + row * kLargestBytes;
  }
  uint64_t* row(size_t i) { return words.data() + i * kLargestBytes / sizeof(uint64_t); }
  void fill(size_t i, uint64_t key) {
    for (uint64_t j = 0; j < nbytes_of(key) / sizeof(uint64_t); ++j) row(i)[j] = word_of(key, j);
  }
  bool holds(size_t i, uint64_t key) {
    for (uint64_t j = 0; j < nbytes_of(key) / sizeof(uint64_t); ++j)
      if (row(i)[j] != word_of(key, j)) return false;
    return true;
  }

  std::vector<uint64_t> words;
};

struct Batch {
  Batch(Pool& pool, Rows& rows, const uint64_t* numbers) : keys(numbers, numbers + kBatch) {
    for (size_t i = 0; i < kBatch; ++i) {
      texts.push_back("key " + std::to_string(keys[i]));
      addresses.push_back(rows.address(i));
      sizes.push_back(nbytes_of(keys[i]));
      offsets.push_back(0);
      starts.push_back(i);
    }
    starts.push_back(kBatch);
    views.assign(texts.begin(), texts.end());
    digests.resize(kBatch);
    pool.digest(views, digests.data());
  }
  RangeBatch whole() const {
    return {addresses.data(), sizes.data(), nullptr, nullptr, kBatch, kBatch};
  }
  RangeBatch ranges() const {
    return {addresses.data(), sizes.data(), offsets.data(), starts.data(), kBatch, kBatch};
  }

  std::vector<uint64_t> keys;
  std::vector<std::string> texts;
  std::vector<std::string_view> views;
  std::vector<Hash128> digests;
  std::vector<uint64_t> addresses, sizes, offsets, starts;
};

class Caller {
 public:
  Caller(Pool& pool, size_t number)
      : pool_(pool), rows_(pool), component_(pool.component("raw")), random_(number * 77 + 1) {}

  void call_once() {
    uint64_t numbers[kBatch];
    for (size_t i = 0; i < kBatch; ++i) numbers[i] = (next() % kKeys + i * kKeys) % (kBatch * kKeys);
    const Batch batch(pool_, rows_, numbers);
    switch (next() % 16) {
      case 0: case 1: case 2: case 3: case 4: return put(batch);
      case 5: case 6: case 7: case 8: return get(batch);
      case 9: case 10: return read_pinned(batch, true);
      case 11: case 12: return read_pinned(batch, false);
      case 13: return exists(batch);
      case 14: return remove(batch);
      default: return next() % 8 == 0 ? pool_.clear() : count();
    }
  }
  uint64_t hits() const { return hits_; }

 private:
  uint64_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }

  void check(const Batch& batch, const Status* answers) {
    for (size_t i = 0; i < kBatch; ++i) {
      if (answers[i] != Status::kOk) continue;
      ++hits_;
      expect(rows_.holds(i, batch.keys[i]), "bytes of a hit");
    }
  }

  void put(const Batch& batch) {
    for (size_t i = 0; i < kBatch; ++i) rows_.fill(i, batch.keys[i]);
    Status answers[kBatch];
    pool_.put_ranges(component_, batch.digests, batch.views, nullptr, batch.whole(), answers);
    for (const Status answer : answers)
      expect(succeeded(answer) || answer == Status::kNoSpace || answer == Status::kCleared ||
                 answer == Status::kBusy,
             "outcome of a put");
  }

  void get(const Batch& batch) {
    Status answers[kBatch];
    pool_.get_ranges(component_, batch.digests, next() % 2 ? batch.whole() : batch.ranges(), answers);
    check(batch, answers);
  }

  void read_pinned(const Batch& batch, bool firm) {
    const auto session = pool_.pin({&component_, 1}, batch.digests, firm);
    std::thread closer;
    if (next() % 8 == 0) closer = std::thread([session] { session->close(); });
    for (int reads = 0; reads < 2; ++reads) {
      Status answers[kBatch];
      try {
        pool_.get_session_ranges(*session, 0, 0, batch.ranges(), answers);
      } catch (const InvalidBatch&) {
        expect(closer.joinable(), "a session that nobody closed");
        continue;
      }
      check(batch, answers);
      for (size_t i = 0; i < kBatch; ++i)
        expect(session->dropped() || (answers[i] == Status::kOk) == session->held(i),
               "a held page can be read");
    }
    if (closer.joinable()) closer.join();
    if (next() % 2) session->close();
  }

  void exists(const Batch& batch) {
    bool found[kBatch];
    pool_.exists({&component_, 1}, batch.digests, found);
    expect(pool_.exists_prefix({&component_, 1}, batch.digests) <= kBatch, "a prefix");
  }

  void remove(const Batch& batch) {
    bool removed[kBatch];
    pool_.remove({&component_, 1}, batch.digests, removed);
  }

  void count() {
    const PoolStats stats = pool_.stats();
    expect(stats.owner.space.used_bytes <= kCapacityBytes, "used bytes within the capacity");
    expect(stats.owner.space.live_bytes + stats.owner.space.retired_bytes <=
               stats.owner.space.used_bytes,
           "used bytes hold live and retired ones");
  }

  Pool& pool_;
  Rows rows_;
  Component component_;
  uint64_t random_;
  uint64_t hits_ = 0;
};

PoolConfig config(uint64_t nt_copy_min_bytes) {
  PoolConfig config;
  config.owner.capacity_bytes = kCapacityBytes;
  config.owner.entry_count = 24;
  config.copy_threads = 2;
  config.nt_copy_min_bytes = nt_copy_min_bytes;
  config.session_quota_bytes = kCapacityBytes / 3;
  config.deadline = std::chrono::milliseconds(200);
  return config;
}

uint64_t mixed_calls(double seconds, uint64_t nt_copy_min_bytes) {
  Pool pool(config(nt_copy_min_bytes));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::atomic<uint64_t> hits{0}, calls{0};
  std::vector<std::thread> threads;
  for (size_t number = 0; number < kThreads; ++number)
    threads.emplace_back([&, number] {
      Caller caller(pool, number);
      for (; std::chrono::steady_clock::now() < end; calls.fetch_add(1)) caller.call_once();
      hits.fetch_add(caller.hits());
    });
  for (std::thread& thread : threads) thread.join();
  pool.clear();
  const PoolStats stats = pool.stats();
  expect(stats.owner.space.used_bytes == 0, "nothing is used after a clear without readers");
  expect(stats.owner.objects == 0, "no objects after a clear");
  expect(stats.sessions.open == 0 && stats.sessions.pinned_bytes == 0, "all sessions ended");
  expect(stats.owner.space.evicted_objects > 100, "evictions all the time");
  std::printf("calls %lu hits %lu evicted %lu dropped %lu\n", calls.load(), hits.load(),
              stats.owner.space.evicted_objects, stats.sessions.dropped);
  return hits.load();
}

// The last owners of sessions let go in one thread while another closes the pool.
void close_among_dying_sessions(uint64_t nt_copy_min_bytes) {
  Pool pool(config(nt_copy_min_bytes));
  Rows rows(pool);
  const Component component = pool.component("raw");
  const uint64_t numbers[kBatch] = {0, 3, 6, 9};
  const Batch batch(pool, rows, numbers);
  Status answers[kBatch];
  for (size_t i = 0; i < kBatch; ++i) rows.fill(i, numbers[i]);
  pool.put_ranges(component, batch.digests, batch.views, nullptr, batch.whole(), answers);
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < 64; ++i) sessions.push_back(pool.pin({&component, 1}, batch.digests, i % 2));
  std::atomic<int> ready{0};
  const auto meet = [&ready](int parties) {
    ready.fetch_add(1);
    while (ready.load() < parties) std::this_thread::yield();
  };
  std::thread ender([&, mine = std::move(sessions)]() mutable {
    meet(3);
    mine.clear();
  });
  std::thread reader([&] {
    meet(3);
    try {
      while (true) {
        pool.get_ranges(component, batch.digests, batch.whole(), answers);
        for (size_t i = 0; i < kBatch; ++i)
          expect(answers[i] == Status::kOk && rows.holds(i, numbers[i]), "a read before the close");
      }
    } catch (const PoolClosed&) {
    }
  });
  meet(3);
  pool.close();
  ender.join();
  reader.join();
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const uint64_t nt_copy_min_bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024;
  expect(mixed_calls(seconds, nt_copy_min_bytes) > 100, "hits");
  for (int i = 0; i < 150; ++i) close_among_dying_sessions(nt_copy_min_bytes);
  return wrong.load() == 0 ? 0 : 1;
}
