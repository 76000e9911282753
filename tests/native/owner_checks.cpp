// Cases of the owner, the sessions and the fork guard that need an exact order of steps, which calls
// through Python do not give. Prints what failed; exits with the number of failures.
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "errors.h"
#include "owner.h"
#include "pool.h"

namespace {

size_t refused_bytes = SIZE_MAX;  // arrays of at least this size cannot be had

}  // namespace

void* operator new[](size_t nbytes) {
  if (nbytes >= refused_bytes) throw std::bad_alloc();
  return std::malloc(nbytes);
}
void operator delete[](void* address) noexcept { std::free(address); }
void operator delete[](void* address, size_t) noexcept { std::free(address); }

namespace {

using namespace umbp;
using namespace std::chrono_literals;

constexpr uint64_t kObjectBytes = 4096;
int failures = 0;

void expect(bool right, const char* what) {
  if (right) return;
  ++failures;
  std::printf("failed: %s\n", what);
}

OwnerConfig owner_config(uint64_t objects, uint32_t entries = 64) {
  OwnerConfig config;
  config.capacity_bytes = objects * kObjectBytes;
  config.entry_count = entries;
  return config;
}

PutItem item_of(uint64_t key, uint64_t nbytes = kObjectBytes) {
  static const std::string name = "key";
  PutItem item;
  item.hash = prf128(Hash128{1, 2}, Hash128{key, key});
  item.key = name;
  item.nbytes = nbytes;
  return item;
}

std::vector<PutItem> items_of(std::initializer_list<uint64_t> keys) {
  std::vector<PutItem> items;
  for (const uint64_t key : keys) items.push_back(item_of(key));
  return items;
}

void put(Owner& owner, std::initializer_list<uint64_t> keys) {
  std::vector<PutItem> items = items_of(keys);
  owner.allocate(items, Deadline::after(0s));
  owner.commit(items);
  for (const PutItem& item : items) expect(succeeded(item.status), "a plain put");
}

bool has(Owner& owner, uint64_t key) {
  std::vector<PutItem> items = items_of({key});
  owner.allocate(items, Deadline::after(0s));
  const bool present = items[0].phase == PutPhase::kPresent;
  owner.abandon(items);
  return present;
}

void a_member_that_another_batch_stored_is_no_victim_of_this_batch() {
  Owner owner(owner_config(2));
  std::vector<PutItem> first = items_of({1}), second = items_of({2}), both = items_of({1, 2});
  owner.allocate(first, Deadline::after(0s));
  owner.allocate(second, Deadline::after(0s));
  owner.allocate(both, Deadline::after(0s));
  expect(both[0].phase == PutPhase::kBusy && both[1].phase == PutPhase::kBusy, "both are in flight");
  expect(!owner.commit(both), "a batch with items in flight is not over");
  owner.commit(first);
  owner.abandon(second);
  put(owner, {3});  // newer than 1, so that 1 would be the next victim
  expect(!owner.await_busy(both, Deadline::after(0s)), "one item has to be put after all");
  expect(both[0].status == Status::kExists, "the first is there");
  expect(both[1].phase == PutPhase::kPending, "the second is not");
  owner.allocate(both, Deadline::after(0s));
  expect(owner.commit(both), "the batch is over");
  expect(both[1].status == Status::kOk, "the second was stored");
  expect(has(owner, 1) && has(owner, 2) && !has(owner, 3), "every success can be read back");
}

void two_crossing_batches_both_end() {
  Owner owner(owner_config(8));
  std::vector<PutItem> first = items_of({1, 2}), second = items_of({2, 1});
  std::vector<PutItem> head = items_of({2});
  owner.allocate(head, Deadline::after(0s));
  owner.allocate(first, Deadline::after(0s));
  owner.abandon(head);
  owner.allocate(second, Deadline::after(0s));
  expect(first[1].phase == PutPhase::kBusy && second[1].phase == PutPhase::kBusy, "they cross");
  expect(!owner.commit(first) && !owner.commit(second), "each waits for the other's");
  expect(owner.await_busy(first, Deadline::after(0s)), "the first is over");
  expect(owner.await_busy(second, Deadline::after(0s)), "the second is over");
  expect(first[1].status == Status::kExists && second[1].status == Status::kExists, "both are there");
}

void a_put_in_flight_that_clear_met_stores_nothing_and_frees_its_room() {
  Owner owner(owner_config(2));
  std::vector<PutItem> items = items_of({1, 1, 2});
  owner.allocate(items, Deadline::after(0s));
  owner.clear();
  expect(owner.commit(items), "the batch is over");
  for (const PutItem& item : items) expect(item.status == Status::kCleared, "it was cleared");
  expect(owner.stats().space.used_bytes == 0, "nothing is used");
  put(owner, {3, 4});
}

void a_batch_that_fails_gives_back_what_it_was_filling() {
  Owner owner(owner_config(2, 2));
  for (int round = 0; round < 10; ++round) {
    std::vector<PutItem> items = items_of({1, 2, 1});
    owner.allocate(items, Deadline::after(0s));
    owner.abandon(items);
    expect(owner.stats().space.used_bytes == 0, "nothing is used");
  }
  put(owner, {1, 2});
  put(owner, {3, 4});
}

void a_present_object_that_is_removed_before_the_commit_leaves_no_protection_behind() {
  Owner owner(owner_config(1, 1));
  put(owner, {1});
  std::vector<PutItem> items = items_of({1, 1});
  owner.allocate(items, Deadline::after(0s));
  bool removed = false;
  owner.remove({&items[0].hash, 1}, &removed);
  expect(removed, "it was there");
  expect(owner.commit(items), "the batch is over");
  put(owner, {2});
  put(owner, {3});  // evicts 2, which has the same entry
}

void entries_run_out_before_bytes_and_are_made_room_for() {
  Owner owner(owner_config(1000, 4));
  for (uint64_t key = 0; key < 40; key += 2) put(owner, {key, key + 1});
  expect(owner.stats().objects == 4, "as many as there are entries");
  expect(has(owner, 38) && has(owner, 39), "the last ones");
}

void full_buckets_are_made_room_for_by_their_own_objects() {
  // All keys of this test fall into the same two buckets of the many.
  Owner owner(owner_config(4000, 4000));
  const auto crowded = [](uint64_t key) {
    PutItem item = item_of(key);
    item.hash.low = key << 32 | 7;
    item.hash.high = key << 32 | 0x80000007u;
    return item;
  };
  for (uint64_t key = 1; key <= 50; ++key) {
    std::vector<PutItem> items{crowded(key)};
    owner.allocate(items, Deadline::after(0s));
    expect(owner.commit(items) && items[0].status == Status::kOk, "there is always room for one more");
  }
  expect(owner.stats().objects == 2 * kBucketWords, "as many as two buckets name");
  expect(owner.stats().space.evicted_objects == 50 - 2 * kBucketWords, "one for one");
}

void objects_of_mixed_sizes_are_stored_and_evicted_until_the_accounting_is_even() {
  Owner owner(owner_config(8));
  uint64_t random = 1;
  for (int round = 0; round < 3000; ++round) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::vector<PutItem> items;
    for (int i = 0; i < 3; ++i)
      items.push_back(item_of((random >> (20 + 5 * i)) % 97, 1 + (random >> (30 + 7 * i)) % 9000));
    owner.allocate(items, Deadline::after(0s));
    owner.commit(items);
    const OwnerStats stats = owner.stats();
    expect(stats.space.used_bytes == stats.space.live_bytes, "all that is used is live");
    expect(stats.space.used_bytes <= stats.capacity_bytes, "the capacity holds");
  }
  owner.clear();
  expect(owner.stats().space.used_bytes == 0, "nothing is used");
  std::vector<PutItem> whole{item_of(1000, 8 * kObjectBytes)};
  owner.allocate(whole, Deadline::after(0s));
  expect(owner.commit(whole) && whole[0].status == Status::kOk, "all extents joined again");
}

void a_key_that_cannot_be_copied_costs_no_room() {
  Owner owner(owner_config(2, 2));
  const std::string long_key(1 << 20, 'k');
  std::vector<PutItem> items = items_of({1, 2});
  items[1].key = long_key;
  refused_bytes = long_key.size();
  bool failed = false;
  try {
    owner.allocate(items, Deadline::after(0s));
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  refused_bytes = SIZE_MAX;
  expect(failed, "the key cannot be copied");
  owner.abandon(items);
  expect(owner.stats().space.used_bytes == 0, "nothing is used");
  put(owner, {1, 2});
}

void all_slots_in_use_are_waited_for_until_the_deadline() {
  std::vector<std::byte> memory(ClientArea::nbytes(1) + 4096);
  auto* base = memory.data() + (-reinterpret_cast<uintptr_t>(memory.data())) % 4096;
  const ClientArea area = ClientArea::at(base);
  area.head->chunk_count = 1;
  Reader reader(IndexView{}, area);
  for (uint32_t i = 0; i < kSlots; ++i) expect(reader.claim_slot(0s) >= 0, "a slot is free");
  expect(area.head->slots_used.load() == kSlots, "the owner looks at all of them");
  expect(reader.claim_slot(0s) == -1, "none is left");
  expect(reader.claim_slot(5ms) == -1, "none is left after a while");
  std::thread releaser([&reader] { reader.release_slot(17); });
  expect(reader.claim_slot(20s) == 17, "the one that was given back");
  releaser.join();
}

// Pools ----------------------------------------------------------------------------------------------

PoolConfig pool_config(uint64_t objects, std::chrono::nanoseconds deadline) {
  PoolConfig config;
  config.owner = owner_config(objects);
  config.session_quota_bytes = config.owner.capacity_bytes;
  config.strict_registration = false;
  config.copy_threads = 2;
  config.deadline = deadline;
  return config;
}

struct Caller {
  explicit Caller(Pool& pool) : pool(pool), component(pool.component("raw")), bytes(kObjectBytes) {}

  Hash128 digest(const std::string& key) {
    const std::string_view view = key;
    Hash128 digest;
    pool.digest({&view, 1}, &digest);
    return digest;
  }
  Status put(const std::string& key) {
    const std::string_view view = key;
    const Hash128 hash = digest(key);
    const auto address = reinterpret_cast<uint64_t>(bytes.data());
    Status answer{};
    pool.put_ranges(component, {&hash, 1}, {&view, 1}, nullptr,
                    {&address, &kObjectBytes, nullptr, nullptr, 1, 1}, &answer);
    return answer;
  }
  std::shared_ptr<Session> pin(const std::string& key, bool firm) {
    const Hash128 hash = digest(key);
    return pool.pin({&component, 1}, {&hash, 1}, firm);
  }

  Pool& pool;
  Component component;
  std::vector<std::byte> bytes;
};

void a_droppable_session_that_is_being_read_is_not_dropped() {
  PoolConfig config = pool_config(4, 1s);
  config.session_quota_bytes = kObjectBytes;
  Pool pool(config);
  Caller caller(pool);
  for (const char* key : {"a", "b"}) expect(caller.put(key) == Status::kOk, "a plain put");
  const auto read = caller.pin("a", false);
  expect(read->acquire(), "the read begins");
  expect(!caller.pin("b", false)->held(0), "the quota is taken by what is being read");
  expect(!read->dropped() && read->held(0), "it is not dropped");
  read->release();
  expect(caller.pin("b", false)->held(0), "once it is idle it makes room");
  expect(read->dropped() && !read->acquire(), "it was dropped");
}

void closing_a_session_waits_for_the_read_in_progress() {
  Pool pool(pool_config(4, 1s));
  Caller caller(pool);
  expect(caller.put("a") == Status::kOk, "a plain put");
  const auto session = caller.pin("a", true);
  expect(session->acquire(), "the read begins");
  std::atomic<bool> closed{false};
  std::thread closer([&] {
    session->close();
    closed = true;
  });
  while (!session->closed()) std::this_thread::yield();
  expect(!session->acquire(), "no new read begins");
  expect(!closed, "the close waits");
  expect(pool.stats().sessions.pinned_bytes == kObjectBytes, "the object is still held");
  session->release();
  closer.join();
  expect(pool.stats().sessions.pinned_bytes == 0, "it is held no longer");
}

// Ends of children -----------------------------------------------------------------------------------

bool ends_well(pid_t child) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  pollfd request{pidfd, POLLIN, 0};
  const bool ended = poll(&request, 1, 20'000) == 1;
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  close(pidfd);
  return ended && status == 0;
}

void a_forked_child_destroys_a_pool_whose_put_waited_at_the_fork() {
  auto pool = std::make_unique<Pool>(pool_config(1, 60s));
  Caller caller(*pool);
  expect(caller.put("a") == Status::kOk, "a plain put");
  auto session = caller.pin("a", true);
  Status answer{};
  std::thread waiting([&] { answer = Caller(*pool).put("b"); });
  const uint64_t locks = pool->stats().owner.locks;
  uint64_t own = 0;
  while (pool->stats().owner.locks < locks + ++own + 8) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    session.reset();
    pool.reset();
    _exit(0);
  }
  expect(ends_well(child), "the child ends");
  session->close();
  waiting.join();
  expect(answer == Status::kOk, "the parent's put goes on");
}

}  // namespace

int main() {
  a_member_that_another_batch_stored_is_no_victim_of_this_batch();
  two_crossing_batches_both_end();
  a_put_in_flight_that_clear_met_stores_nothing_and_frees_its_room();
  a_batch_that_fails_gives_back_what_it_was_filling();
  a_present_object_that_is_removed_before_the_commit_leaves_no_protection_behind();
  entries_run_out_before_bytes_and_are_made_room_for();
  full_buckets_are_made_room_for_by_their_own_objects();
  objects_of_mixed_sizes_are_stored_and_evicted_until_the_accounting_is_even();
  a_key_that_cannot_be_copied_costs_no_room();
  all_slots_in_use_are_waited_for_until_the_deadline();
  a_droppable_session_that_is_being_read_is_not_dropped();
  closing_a_session_waits_for_the_read_in_progress();
  a_forked_child_destroys_a_pool_whose_put_waited_at_the_fork();
  return failures;
}
