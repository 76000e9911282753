// An owner that recycles a handful of entries without a pause, and readers that check every byte of
// every hit; both made of the core's own parts. One mistake may be planted on either side.
//
//   protocol_stress PLANT processes|threads SECONDS READERS BATCH
//
// Ends at the first wrong byte or after SECONDS. Prints one line of counts and exits with 0 whatever
// they are: the test judges them. Exit 2: the run itself failed.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "client_list.h"
#include "eviction_policy.h"
#include "extent_allocator.h"
#include "mapping.h"
#include "object_table.h"
#include "read_protocol.h"
#include "reader.h"
#include "space.h"

namespace {

using namespace umbp;

// Few entries, so that each is recycled all the time; more keys than fit, so that most hits race with
// an eviction.
constexpr uint32_t kEntries = 12;
constexpr uint32_t kLiveObjects = 8;
constexpr uint32_t kKeys = 12;
constexpr uint32_t kChunks = 4;
constexpr uint64_t kWords = 512;
constexpr uint64_t kObjectBytes = kWords * sizeof(uint64_t);
constexpr int kLooks = 3;  // a reader looks at each object again and again while it names it

// Mistakes of a reader ------------------------------------------------------------------------------

// Stores to lines that are in no cache keep the store of n, which must wait behind them, in the store
// buffer for longer than a load of the entry takes.
void dirty_cold_lines() {
  constexpr size_t kBytes = 128u << 20;
  constexpr int kStores = 48;
  static thread_local std::byte* const cold = static_cast<std::byte*>(mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  static thread_local uint64_t random = 88172645463325252u;
  for (int i = 0; i < kStores; ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const_cast<volatile std::byte&>(cold[random % kBytes]) = std::byte{1};
  }
}

struct NoFence : Sound {
  static constexpr bool kFence = false;
  static void before_fence() { dirty_cold_lines(); }
};

struct NoRecheck : Sound {
  static constexpr bool kRecheck = false;
};

struct RelaxedHandles : Sound {
  static constexpr std::memory_order kStoreHandle = std::memory_order_relaxed;
};

// What the sound protocol does in the same widened window.
struct SoundBehindColdLines : Sound {
  static void before_fence() { dirty_cold_lines(); }
};

// Counts that all processes see ----------------------------------------------------------------------

struct Counts {
  std::atomic<uint64_t> hits, misses, wrong, reading;
  std::atomic<bool> stop;
};

void pin_to_cpu(size_t nth) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  nth %= static_cast<size_t>(CPU_COUNT(&allowed));
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || nth-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

// Objects --------------------------------------------------------------------------------------------

Hash128 hash_of(uint64_t key) { return prf128(Hash128{1, 2}, Hash128{key, ~key}); }

// Every word tells its key, its incarnation and its place.
void fill(std::byte* object, uint64_t key, uint64_t incarnation) {
  const uint64_t first = key << 56 | (incarnation & 0xffffffffffu) << 16;
  auto* words = reinterpret_cast<uint64_t*>(object);
  for (uint64_t j = 0; j < kWords; ++j) words[j] = first + j;
}

bool holds(const std::byte* object, uint64_t key) {
  const auto* words = reinterpret_cast<const uint64_t*>(object);
  const uint64_t first = words[0];
  bool right = first >> 56 == key && (first & 0xffff) == 0;
  for (uint64_t j = 0; j < kWords; ++j) right &= words[j] == first + j;
  return right;
}

// Readers --------------------------------------------------------------------------------------------

template <class Plant>
uint64_t read_batch(Reader& reader, const uint64_t* keys, const std::vector<Hash128>& hashes,
                    Counts& counts) {
  const int slot = reader.claim_slot(std::chrono::seconds(1));
  const SlotGuard guard(reader, slot);
  const HazardList list = reader.slot_list(slot);
  const auto count = static_cast<uint32_t>(hashes.size());
  uint32_t found[kSlotHandles];
  ReadProtocol<Plant>::publish(reader.index(), list, hashes.data(), count, found);
  uint64_t hits = 0;
  for (int look = 0; look < kLooks; ++look)
    for (uint32_t i = 0; i < count; ++i) {
      if (found[i] == kNoHandle) continue;
      const Entry& entry = reader.index().entries[found[i]];
      const bool right = within_arena(reader.index(), entry) && entry.nbytes == kObjectBytes &&
                         holds(reader.index().arena + entry.offset, keys[i]);
      if (!right) counts.wrong.fetch_add(1);
      if (look == 0) ++hits;
      asm volatile("" ::: "memory");
    }
  ReadProtocol<Plant>::withdraw(list);
  return hits;
}

template <class Plant>
void read_until_stopped(const IndexView& index, const ClientArea& area, Counts& counts,
                        size_t number, uint32_t batch) {
  pin_to_cpu(1 + number);
  Reader reader(index, area);
  std::vector<uint64_t> keys(batch);
  std::vector<Hash128> hashes(batch);
  uint64_t random = 77 * number + 1;
  counts.reading.fetch_add(1);
  while (!counts.stop.load(std::memory_order_relaxed)) {
    for (uint32_t i = 0; i < batch; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      keys[i] = (random >> 33) % kKeys;
      hashes[i] = hash_of(keys[i]);
    }
    const uint64_t hits = read_batch<Plant>(reader, keys.data(), hashes, counts);
    counts.hits.fetch_add(hits, std::memory_order_relaxed);
    counts.misses.fetch_add(batch - hits, std::memory_order_relaxed);
    if (counts.wrong.load(std::memory_order_relaxed) != 0) counts.stop = true;
  }
}

using ReadLoop = void (*)(const IndexView&, const ClientArea&, Counts&, size_t, uint32_t);

ReadLoop loop_of(const std::string& plant) {
  if (plant == "no-fence") return read_until_stopped<NoFence>;
  if (plant == "no-recheck") return read_until_stopped<NoRecheck>;
  if (plant == "relaxed-handles") return read_until_stopped<RelaxedHandles>;
  if (plant == "sound-behind-cold-lines") return read_until_stopped<SoundBehindColdLines>;
  return read_until_stopped<Sound>;  // sound, or the mistake is the owner's
}

// Owners ---------------------------------------------------------------------------------------------

struct Recycled {
  uint64_t puts = 0;
  uint64_t held = 0;  // times that an eviction had to leave memory alone
};

struct Memory {
  explicit Memory(const MappingOptions& options)
      : arena("arena", kEntries * kObjectBytes, options),
        table(kEntries, arena.nbytes(), {3, 4}, options) {}

  Mapping arena;
  ObjectTable table;
  ClientList clients;
  ClientList unseen;  // planted: the owner does not look at these
};

// The core's own: Space retires, passes and frees.
class SpaceOwner {
 public:
  explicit SpaceOwner(Memory& memory)
      : space_(memory.table, memory.clients, make_policy("lru", kEntries),
               kLiveObjects * kObjectBytes, memory.arena.nbytes()) {}

  uint32_t take(const Hash128& hash, Recycled& recycled) {
    uint32_t handle = space_.take(hash, 0, {}, kObjectBytes);
    if (handle != kNoHandle) return handle;
    space_.evict({kObjectBytes, 0, nullptr});
    handle = space_.take(hash, 0, {}, kObjectBytes);
    if (handle == kNoHandle) ++recycled.held;
    return handle;
  }
  void make_live(uint32_t handle) { space_.make_live(handle, 0); }

 private:
  Space space_;
};

// Planted: takes the names that it saw before the retirement for those after it.
class StalePassOwner {
 public:
  explicit StalePassOwner(Memory& memory) : memory_(memory), named_(kEntries) {}

  uint32_t take(const Hash128& hash, Recycled& recycled) {
    if (live_.size() + retired_.size() >= kLiveObjects) {
      std::fill(named_.begin(), named_.end(), false);
      memory_.clients.for_each_named([this](uint32_t handle) {
        if (handle < kEntries) named_[handle] = true;
      });
      if (!live_.empty()) {
        memory_.table.retire(live_.front());
        retired_.push_back(live_.front());
        live_.pop_front();
      }
      std::erase_if(retired_, [this](uint32_t handle) {
        if (!named_[handle]) memory_.table.free(handle);
        return !named_[handle];
      });
    }
    if (live_.size() + retired_.size() >= kLiveObjects) {
      ++recycled.held;
      return kNoHandle;
    }
    return memory_.table.take(hash, 0, {}, free_offset(), kObjectBytes);
  }
  void make_live(uint32_t handle) {
    memory_.table.make_live(handle);
    live_.push_back(handle);
  }

 private:
  uint64_t free_offset() {
    std::vector<bool> used(kEntries, false);
    for (const auto* list : {&live_, &retired_})
      for (const uint32_t handle : *list)
        used[memory_.table.entry(handle).offset / kObjectBytes] = true;
    uint64_t at = 0;
    while (used[at]) ++at;
    return at * kObjectBytes;
  }

  Memory& memory_;
  std::vector<bool> named_;
  std::deque<uint32_t> live_;
  std::deque<uint32_t> retired_;
};

template <class AnyOwner>
Recycled recycle(Memory& memory, Counts& counts, double seconds, size_t readers) {
  AnyOwner owner(memory);
  Recycled recycled;
  uint64_t random = 5;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (counts.reading.load() < readers && std::chrono::steady_clock::now() < give_up)
    std::this_thread::yield();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!counts.stop.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 64; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const uint64_t key = (random >> 33) % kKeys;
      const Hash128 hash = hash_of(key);
      if (memory.table.find(hash) != kNoHandle) continue;
      const uint32_t handle = owner.take(hash, recycled);
      if (handle == kNoHandle) continue;
      fill(memory.arena.data() + memory.table.entry(handle).offset, key, ++recycled.puts);
      owner.make_live(handle);
    }
  counts.stop = true;
  return recycled;
}

// The two ways to run --------------------------------------------------------------------------------

[[noreturn]] void be_reader_process(const Memory& memory, const Client& client, ReadLoop loop,
                                    Counts& counts, size_t number, uint32_t batch) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Mapping maps[] = {Mapping::attach("header", memory.table.header_memory().fd(), Access::kRead),
                          Mapping::attach("buckets", memory.table.bucket_memory().fd(), Access::kRead),
                          Mapping::attach("entries", memory.table.entry_memory().fd(), Access::kRead),
                          Mapping::attach("arena", memory.arena.fd(), Access::kRead),
                          Mapping::attach("client area", client.memory.fd(), Access::kWrite)};
  const auto* header = reinterpret_cast<const Header*>(maps[0].data());
  const IndexView index{header,
                        reinterpret_cast<const Bucket*>(maps[1].data()),
                        reinterpret_cast<const Entry*>(maps[2].data()),
                        maps[3].data(),
                        header->bucket_count,
                        header->arena_bytes,
                        header->entry_count};
  loop(index, ClientArea::at(maps[4].data()), counts, number, batch);
  _exit(0);
}

struct Arguments {
  std::string plant;
  bool processes;
  double seconds;
  size_t readers;
  uint32_t batch;
};

Recycled run_owner(const Arguments& arguments, Memory& memory, Counts& counts) {
  pin_to_cpu(0);
  if (arguments.plant == "stale-pass")
    return recycle<StalePassOwner>(memory, counts, arguments.seconds, arguments.readers);
  return recycle<SpaceOwner>(memory, counts, arguments.seconds, arguments.readers);
}

int run(const Arguments& arguments) {
  MappingOptions options;
  options.backing = arguments.processes ? MemoryBacking::kMemfd : MemoryBacking::kAnonymous;
  Memory memory(options);
  auto& counts = *static_cast<Counts*>(mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ClientList& list = arguments.plant == "unseen-client" ? memory.unseen : memory.clients;
  const ReadLoop loop = loop_of(arguments.plant);
  std::vector<pid_t> children;
  std::vector<std::thread> threads;
  for (size_t number = 0; number < arguments.readers; ++number) {
    const Client& client = list.add(kChunks, options);
    if (arguments.processes) {
      const pid_t child = fork();
      if (child == 0)
        be_reader_process(memory, client, loop, counts, number, arguments.batch);
      children.push_back(child);
    } else {
      const IndexView index = memory.table.view(memory.arena.data());
      threads.emplace_back(loop, index, client.area, std::ref(counts), number, arguments.batch);
    }
  }
  const Recycled recycled = run_owner(arguments, memory, counts);
  bool failed = false;
  for (std::thread& thread : threads) thread.join();
  for (const pid_t child : children) {
    int status = 0;
    failed |= waitpid(child, &status, 0) != child || status != 0;
  }
  std::printf("{\"hits\": %lu, \"misses\": %lu, \"wrong\": %lu, \"recycled\": %lu, \"held\": %lu}\n",
              counts.hits.load(), counts.misses.load(), counts.wrong.load(), recycled.puts,
              recycled.held);
  return failed ? 2 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: protocol_stress PLANT processes|threads SECONDS READERS BATCH\n");
    return 2;
  }
  return run({argv[1], std::string(argv[2]) == "processes", std::atof(argv[3]),
              static_cast<size_t>(std::atoi(argv[4])), static_cast<uint32_t>(std::atoi(argv[5]))});
}
