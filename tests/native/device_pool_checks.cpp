// A pool whose pages lie in the memory of two devices and of the host, over a runtime where every copy is as
// late as it may be. Every byte that a call says is there is compared, and the bytes beside it.
//
//   device_pool_checks LIBRARY mappings N    planned and copied both ways: every short mapping, N random ones
//   device_pool_checks LIBRARY mixed N SEED  N random batches through a pool, by four threads
//   device_pool_checks LIBRARY order         a put waits for the stream or event that is named, a get too
//   device_pool_checks LIBRARY chunks        objects that lie across the chunks in which the arena is pinned; for a
//                                            LIBRARY whose fifth registration fails
//
// LIBRARY: an emulated libcuda.so.1, or libamdhip64.so of any version, of two devices.
// Exits with 0 if every byte was right; prints what it did.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_api.h"
#include "errors.h"
#include "planner.h"
#include "pool.h"

namespace {

using namespace umbp;
using Bytes = std::vector<uint8_t>;

constexpr uint8_t kUntouched = 0xee;
constexpr int kDevices = 2;

std::atomic<uint64_t> wrong{0};

void expect(bool right, const std::string& what) {
  if (right) return;
  if (wrong.fetch_add(1) < 10) std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

std::string library;  // of the emulated runtime

std::shared_ptr<DeviceApi> make_api() {
  const bool hip = library.substr(library.rfind('/') + 1).starts_with("libamdhip64.");
  return hip ? load_hip(library) : load_cuda(library);
}

std::shared_ptr<DeviceCopier> make_copier(const std::shared_ptr<DeviceApi>& api, int device) {
  return std::make_shared<DeviceCopier>(api, device, std::span<const std::byte>{}, CopyThresholds{}, 2);
}

// Device memory, and pinned memory through which the host fills and reads it.
class DeviceBytes {
 public:
  DeviceBytes(DeviceApi& api, int device, uint64_t nbytes)
      : api_(api), device_(device), nbytes_(nbytes), address_(api.allocate_device(device, nbytes)),
        host_(static_cast<uint8_t*>(api.allocate_pinned(device, nbytes, &alias_))),
        stream_(api.create_stream(device, false)) {}
  ~DeviceBytes() {
    api_.synchronize_stream(device_, stream_);
    api_.destroy_stream(device_, stream_);
    api_.free_pinned(host_);
    api_.free_device(device_, address_);
  }
  uint64_t address() const { return address_; }
  uint64_t nbytes() const { return nbytes_; }
  uint8_t* host() { return host_; }
  uint64_t alias() const { return alias_; }
  StreamHandle stream() const { return stream_; }

  void push_late() { api_.copy_async(device_, address_, alias_, nbytes_, stream_); }
  void push() {
    push_late();
    api_.synchronize_stream(device_, stream_);
  }
  void pull() {
    api_.copy_async(device_, alias_, address_, nbytes_, stream_);
    api_.synchronize_stream(device_, stream_);
  }

 private:
  DeviceApi& api_;
  int device_;
  uint64_t nbytes_;
  uint64_t address_;
  uint64_t alias_ = 0;
  uint8_t* host_;
  StreamHandle stream_;
};

// Mappings: blocks from places on one side to places on the other -----------------------------------------

constexpr uint64_t kPlaces = 5, kBlock = 24, kArea = (kPlaces + 2) * kBlock;  // a sentinel block at both ends

struct Mapping {
  std::vector<uint8_t> from, to;  // place by block; `to` has none twice
};

void next_short(std::vector<Mapping>& all, Mapping& mapping, size_t blocks) {
  if (mapping.from.size() == blocks) return all.push_back(mapping);
  for (uint8_t from = 0; from < kPlaces; ++from)
    for (uint8_t to = 0; to < kPlaces; ++to) {
      if (std::find(mapping.to.begin(), mapping.to.end(), to) != mapping.to.end()) continue;
      mapping.from.push_back(from);
      mapping.to.push_back(to);
      next_short(all, mapping, blocks);
      mapping.from.pop_back();
      mapping.to.pop_back();
    }
}

// Each mapping has an area of its own on both sides; all go in one copy.
void copy_mappings(std::span<const Mapping> mappings, DeviceCopier& copier, DeviceBytes& device,
                   DeviceBytes& pinned, CopyDirection direction, std::mt19937_64& random) {
  const bool to_device = direction == CopyDirection::kHostToDevice;
  DeviceBytes& target = to_device ? device : pinned;
  uint8_t* const source = to_device ? pinned.host() : device.host();
  for (uint64_t i = 0; i < mappings.size() * kArea; ++i) source[i] = static_cast<uint8_t>(random());
  if (!to_device) device.push();
  std::memset(target.host(), kUntouched, mappings.size() * kArea);
  if (to_device) device.push();
  std::vector<Run> runs;
  size_t fragments = 0;
  for (size_t m = 0; m < mappings.size(); ++m) {
    const uint64_t from = (to_device ? pinned.alias() : device.address()) + m * kArea + kBlock;
    const uint64_t to = (to_device ? device.address() : pinned.alias()) + m * kArea + kBlock;
    RunBuilder builder(runs);
    for (size_t block = 0; block < mappings[m].from.size(); ++block)
      builder.add(from + mappings[m].from[block] * kBlock, to + mappings[m].to[block] * kBlock, kBlock, 1, 2);
    builder.finish();
    fragments += mappings[m].from.size();
  }
  copier.submit(runs, fragments, direction, {}).wait();
  if (to_device) device.pull();
  Bytes expected(kArea);
  for (size_t m = 0; m < mappings.size(); ++m) {
    std::fill(expected.begin(), expected.end(), kUntouched);
    for (size_t block = 0; block < mappings[m].from.size(); ++block)
      std::memcpy(&expected[(mappings[m].to[block] + 1) * kBlock],
                  &source[m * kArea + (mappings[m].from[block] + 1) * kBlock], kBlock);
    expect(std::memcmp(expected.data(), target.host() + m * kArea, kArea) == 0,
           "mapping of " + std::to_string(mappings[m].from.size()) + " blocks");
  }
}

int mappings(size_t random_count) {
  const auto api = make_api();
  const auto copier = make_copier(api, 0);
  std::vector<Mapping> all;
  for (size_t blocks = 1; blocks <= kPlaces; ++blocks) {
    Mapping mapping;
    next_short(all, mapping, blocks);
  }
  const size_t every_short = all.size();
  std::mt19937_64 random(1);
  for (size_t i = 0; i < random_count; ++i) {
    Mapping mapping;
    std::vector<uint8_t> places(kPlaces);
    for (uint8_t place = 0; place < kPlaces; ++place) places[place] = place;
    std::shuffle(places.begin(), places.end(), random);
    for (size_t block = 0; block < 1 + random() % kPlaces; ++block) {
      mapping.from.push_back(static_cast<uint8_t>(random() % kPlaces));
      mapping.to.push_back(places[block]);
    }
    all.push_back(mapping);
  }
  constexpr size_t kTogether = 3000;
  DeviceBytes device(*api, 0, kTogether * kArea), pinned(*api, 0, kTogether * kArea);
  for (const auto direction : {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost})
    for (size_t start = 0; start < all.size(); start += kTogether)
      copy_mappings(std::span(all).subspan(start, std::min(kTogether, all.size() - start)), *copier, device,
                    pinned, direction, random);
  std::printf("short %zu random %zu wrong %llu\n", every_short, random_count,
              static_cast<unsigned long long>(wrong.load()));
  return wrong.load() == 0 ? 0 : 1;
}

// A pool with mixed memory ----------------------------------------------------------------------------------

struct DevicePool {
  explicit DevicePool(bool strict = true) : api(make_api()), pool(config(strict)) {
    pool.use_devices(api, {[this](int device) { return make_copier(api, device); },
                           [this](int, bool) { wanted.fetch_add(1); }});
    component = pool.component("checks");
  }
  static PoolConfig config(bool strict) {
    PoolConfig config;
    config.owner.capacity_bytes = 24u << 20;
    config.owner.entry_count = 4096;
    config.session_quota_bytes = config.owner.capacity_bytes;
    config.staging_bytes = 64u << 10;
    config.pin_chunk_bytes = 2u << 20;
    config.strict_registration = strict;
    config.deadline = std::chrono::seconds(60);
    return config;
  }
  std::shared_ptr<DeviceApi> api;
  Pool pool;
  Component component;
  std::atomic<int> wanted{0};
};

struct Key {
  explicit Key(Pool& pool, const std::string& name) : name(name), view(this->name) {
    pool.digest({&view, 1}, &digest);
  }
  std::string name;
  std::string_view view;
  Hash128 digest;
};

// The memory of one thread: of the host and of both devices, in three places that batches choose from.
class Places {
 public:
  Places(DevicePool& rig, uint64_t nbytes, bool registered)
      : rig_(rig), nbytes_(nbytes), registered_(registered), host_(nbytes, kUntouched),
        first_(*rig.api, 0, nbytes), second_(*rig.api, 1, nbytes) {
    if (registered)
      for (const uint64_t base : {base_of(0), base_of(1), base_of(2)}) rig.pool.add_region(base, nbytes, false);
  }
  ~Places() {
    if (registered_)
      for (const uint64_t base : {base_of(0), base_of(1), base_of(2)}) rig_.pool.remove_region(base);
  }
  uint64_t base_of(int place) const {
    return place == 0 ? reinterpret_cast<uint64_t>(host_.data()) : place == 1 ? first_.address() : second_.address();
  }
  uint8_t* host_of(int place) { return place == 0 ? host_.data() : place == 1 ? first_.host() : second_.host(); }
  void push() {
    first_.push();
    second_.push();
  }
  void pull() {
    first_.pull();
    second_.pull();
  }
  void wipe() {
    for (int place = 0; place < 3; ++place) std::memset(host_of(place), kUntouched, nbytes_);
    push();
  }

 private:
  DevicePool& rig_;
  uint64_t nbytes_;
  bool registered_;
  Bytes host_;
  DeviceBytes first_, second_;
};

// One batch: objects of random sizes, cut into random ranges that lie in random places, all different.
struct Batch {
  std::vector<uint64_t> addresses, sizes, offsets, starts{0}, object_bytes;
  std::vector<int> place;
  std::vector<uint64_t> at;  // in the place

  RangeBatch ranges() const {
    return {addresses.data(), sizes.data(), offsets.data(), starts.data(), object_bytes.size(), addresses.size()};
  }
};

Batch random_batch(std::mt19937_64& random, const Places& places, uint64_t nbytes, size_t objects, int kinds,
                   const std::vector<uint64_t>* known_sizes) {
  Batch batch;
  uint64_t used[3] = {0, 0, 0};
  for (size_t i = 0; i < objects; ++i) {
    const uint64_t size = known_sizes ? (*known_sizes)[i] : 1 + random() % (random() % 8 == 0 ? 200'000 : 3000);
    uint64_t offset = 0;
    int place = -1;
    while (offset < size) {
      if (place < 0 || random() % 2) place = static_cast<int>(random() % 3);
      if (kinds == 1) place = 1;
      const uint64_t piece = std::min(size - offset, 1 + random() % (size / 3 + 1));
      const uint64_t gap = random() % 3 ? 0 : random() % 40;
      batch.place.push_back(place);
      batch.at.push_back(used[place] + gap);
      batch.addresses.push_back(places.base_of(place) + used[place] + gap);
      batch.sizes.push_back(piece);
      batch.offsets.push_back(offset);
      used[place] += gap + piece;
      if (used[place] > nbytes) std::abort();
      offset += piece;
    }
    batch.starts.push_back(batch.addresses.size());
    batch.object_bytes.push_back(size);
  }
  return batch;
}

uint8_t byte_of(uint64_t object, uint64_t position) {
  return static_cast<uint8_t>((object * 0x9e3779b97f4a7c15u + position * 0xbf58476d1ce4e5b9u) >> 53);
}

void one_round(DevicePool& rig, Places& places, uint64_t nbytes, std::mt19937_64& random, uint64_t& number) {
  Pool& pool = rig.pool;
  const size_t objects = 1 + random() % 6;
  const int kinds = random() % 4 == 0 ? 1 : 3;
  const Batch source = random_batch(random, places, nbytes, objects, kinds, nullptr);
  std::vector<Key> keys;
  std::vector<Hash128> digests;
  std::vector<std::string_view> views;
  const uint64_t first = number;
  for (size_t i = 0; i < objects; ++i) keys.emplace_back(pool, "object" + std::to_string(number++));
  for (const Key& key : keys) {
    digests.push_back(key.digest);
    views.push_back(std::string_view(key.name));
  }
  for (size_t i = 0; i < objects; ++i)
    for (uint64_t r = source.starts[i]; r < source.starts[i + 1]; ++r)
      for (uint64_t b = 0; b < source.sizes[r]; ++b)
        places.host_of(source.place[r])[source.at[r] + b] = byte_of(first + i, source.offsets[r] + b);
  places.push();
  std::vector<Status> answers(objects);
  pool.put_ranges(rig.component, digests, views, source.object_bytes.data(), source.ranges(), answers.data());
  for (const Status answer : answers) expect(answer == Status::kOk, "a put that has room: status " + std::to_string(static_cast<int>(answer)));
  places.wipe();
  const Batch target = random_batch(random, places, nbytes, objects, kinds, &source.object_bytes);
  if (random() % 2) {
    pool.get_ranges(rig.component, digests, target.ranges(), answers.data());
  } else {
    const auto session = pool.pin({&rig.component, 1}, digests, true);
    pool.get_session_ranges(*session, 0, 0, target.ranges(), answers.data());
    session->close();
  }
  places.pull();
  std::vector<Bytes> expected(3, Bytes(nbytes, kUntouched));
  for (size_t i = 0; i < objects; ++i) {
    expect(answers[i] == Status::kOk, "a get of what was just put: status " + std::to_string(static_cast<int>(answers[i])));
    for (uint64_t r = target.starts[i]; r < target.starts[i + 1]; ++r)
      for (uint64_t b = 0; b < target.sizes[r]; ++b)
        expected[static_cast<size_t>(target.place[r])][target.at[r] + b] = byte_of(first + i, target.offsets[r] + b);
  }
  for (int place = 0; place < 3; ++place)
    expect(std::memcmp(expected[static_cast<size_t>(place)].data(), places.host_of(place), nbytes) == 0,
           "bytes in place " + std::to_string(place) + " of round from object " + std::to_string(first));
  std::vector<uint8_t> removed(objects);
  pool.remove({&rig.component, 1}, digests, reinterpret_cast<bool*>(removed.data()));
}

int mixed(size_t rounds, uint64_t seed) {
  constexpr uint64_t kNbytes = 1'500'000;
  uint64_t staged = 0, pinned = 0;
  for (const bool strict : {true, false}) {
    DevicePool rig(strict);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        std::mt19937_64 random(seed * 16 + t + (strict ? 8 : 0));
        Places places(rig, kNbytes, strict);
        uint64_t number = t << 40;
        for (size_t round = 0; round < rounds / 8; ++round) {
          one_round(rig, places, kNbytes, random, number);
          // From now on less is staged. Two ask for it at once, as a first registration and a first put do.
          if (t < 2 && round == rounds / 24) rig.pool.pin_arena(0, t == 0);
        }
      });
    for (std::thread& thread : threads) thread.join();
    expect(strict == (rig.wanted.load() > 0) || rig.wanted.load() > 0, "nobody was asked to pin the arena");
    staged += rig.pool.stats().devices.staged_bytes;
    pinned += rig.pool.stats().devices.pinned_bytes;
    rig.pool.close();
  }
  expect(staged != 0, "nothing was staged");
  expect(pinned >= 2 * (24u << 20), "the arena is not pinned");
  std::printf("rounds %zu staged %llu wrong %llu\n", rounds, static_cast<unsigned long long>(staged),
              static_cast<unsigned long long>(wrong.load()));
  return wrong.load() == 0 ? 0 : 1;
}

// Order -----------------------------------------------------------------------------------------------------

// The caller's stream writes the page late; a put that names the stream (or an event behind it) stores the new
// bytes. A get into memory that the caller's stream still reads comes after that.
void check_order(bool by_event, bool pinned) {
  constexpr uint64_t kNbytes = 40'000;
  DevicePool rig;
  Pool& pool = rig.pool;
  DeviceBytes pages(*rig.api, 0, kNbytes), copies(*rig.api, 0, kNbytes);
  pool.add_region(pages.address(), kNbytes, false);
  if (pinned) pool.pin_arena(0, true);
  const EventHandle event = rig.api->create_event(0);
  const auto order = [&]() -> CopyOrder {
    if (!by_event) return {pages.stream(), nullptr};
    rig.api->record_event(0, event, pages.stream());
    return {nullptr, event};
  };
  const Key key(pool, "page");
  const std::string_view view(key.name);
  const uint64_t address = pages.address(), nbytes = kNbytes;
  const RangeBatch whole{&address, &nbytes, nullptr, nullptr, 1, 1};
  Status answer;

  std::memset(pages.host(), 1, kNbytes);
  pages.push();
  std::memset(pages.host(), 2, kNbytes);
  pages.push_late();
  pool.put_ranges(rig.component, {&key.digest, 1}, {&view, 1}, nullptr, whole, &answer, order());
  expect(answer == Status::kOk, "put");

  // The stream still has to copy the pages elsewhere when the get is asked to write over them.
  std::memset(pages.host(), 3, kNbytes);
  pages.push();
  rig.api->copy_async(0, copies.address(), pages.address(), kNbytes, pages.stream());
  pool.get_ranges(rig.component, {&key.digest, 1}, whole, &answer, order());
  expect(answer == Status::kOk, "get");
  rig.api->synchronize_stream(0, pages.stream());
  pages.pull();
  copies.pull();
  const std::string how = std::string(by_event ? " by event" : " by stream") + (pinned ? ", pinned" : ", staged");
  expect(std::all_of(pages.host(), pages.host() + kNbytes, [](uint8_t b) { return b == 2; }),
         "a put waited, and its get is complete" + how);
  expect(std::all_of(copies.host(), copies.host() + kNbytes, [](uint8_t b) { return b == 3; }),
         "a get waited" + how);
  rig.api->destroy_event(0, event);
}

// Host memory that the stream writes: the host's copy waits as well.
void check_host_order() {
  constexpr uint64_t kNbytes = 40'000;
  DevicePool rig;
  Pool& pool = rig.pool;
  DeviceBytes source(*rig.api, 0, kNbytes), target(*rig.api, 0, kNbytes);
  const uint64_t address = reinterpret_cast<uint64_t>(target.host()), nbytes = kNbytes;
  pool.add_region(address, nbytes, false);
  std::memset(source.host(), 2, kNbytes);
  source.push();
  std::memset(target.host(), 1, kNbytes);
  rig.api->copy_async(0, target.alias(), source.address(), kNbytes, target.stream());
  const Key key(pool, "page");
  const std::string_view view(key.name);
  const RangeBatch whole{&address, &nbytes, nullptr, nullptr, 1, 1};
  Status answer;
  pool.put_ranges(rig.component, {&key.digest, 1}, {&view, 1}, nullptr, whole, &answer, {target.stream(), nullptr});
  std::memset(target.host(), 1, kNbytes);
  pool.get_ranges(rig.component, {&key.digest, 1}, whole, &answer);
  expect(std::all_of(target.host(), target.host() + kNbytes, [](uint8_t b) { return b == 2; }),
         "a put of host memory waited");
}

// Pages in both devices and a stream of the second: no stream of the first can wait for it, the host does.
void check_order_of_two_devices() {
  constexpr uint64_t kNbytes = 40'000;
  DevicePool rig;
  Pool& pool = rig.pool;
  DeviceBytes first(*rig.api, 0, kNbytes), second(*rig.api, 1, kNbytes);
  for (DeviceBytes* pages : {&first, &second}) {
    pool.add_region(pages->address(), kNbytes, false);
    std::memset(pages->host(), 1, kNbytes);
    pages->push();
  }
  std::memset(second.host(), 2, kNbytes);
  second.push_late();
  const uint64_t addresses[] = {first.address(), second.address()}, sizes[] = {kNbytes, kNbytes};
  const uint64_t offsets[] = {0, kNbytes}, starts[] = {0, 2}, nbytes = 2 * kNbytes;
  const Key key(pool, "page");
  const std::string_view view(key.name);
  Status answer;
  pool.put_ranges(rig.component, {&key.digest, 1}, {&view, 1}, &nbytes, {addresses, sizes, offsets, starts, 1, 2},
                  &answer, {second.stream(), nullptr});
  expect(answer == Status::kOk, "put from two devices");
  Bytes host(nbytes);
  const uint64_t address = reinterpret_cast<uint64_t>(host.data());
  pool.add_region(address, nbytes, false);
  pool.get_ranges(rig.component, {&key.digest, 1}, {&address, &nbytes, nullptr, nullptr, 1, 1}, &answer);
  expect(std::all_of(host.begin(), host.begin() + kNbytes, [](uint8_t b) { return b == 1; }) &&
             std::all_of(host.begin() + kNbytes, host.end(), [](uint8_t b) { return b == 2; }),
         "a put from two devices waited");
}

int order() {
  for (const bool by_event : {false, true})
    for (const bool pinned : {false, true}) check_order(by_event, pinned);
  check_host_order();
  check_order_of_two_devices();
  std::printf("wrong %llu\n", static_cast<unsigned long long>(wrong.load()));
  return wrong.load() == 0 ? 0 : 1;
}

// Chunks ----------------------------------------------------------------------------------------------------

// Objects that fill nearly the whole arena, three to a chunk of 2 MiB and most of every third across a border. Those
// of one call are neighbours in the arena and apart in device memory.
class ChunkedObjects {
 public:
  explicit ChunkedObjects(DevicePool& rig) : rig_(rig), memory_(*rig.api, 0, kCount * kPitch) {
    rig.pool.add_region(memory_.address(), memory_.nbytes(), false);
    for (size_t i = 0; i < kCount; ++i) {
      keys_.emplace_back(rig.pool, "object" + std::to_string(i));
      addresses_.push_back(memory_.address() + i * kPitch + kBefore);
    }
    for (const Key& key : keys_) {
      digests_.push_back(key.digest);
      views_.push_back(std::string_view(key.name));
    }
  }

  void put(uint64_t version) {
    std::memset(memory_.host(), kUntouched, memory_.nbytes());
    lay(version);
    memory_.push();
    std::vector<Status> answers(kCount);
    rig_.pool.put_ranges(rig_.component, digests_, views_, nullptr, ranges(), answers.data());
    for (const Status answer : answers) expect(answer == Status::kOk, "a put that has room");
    version_ = version;
  }
  void check(const std::string& when) {
    std::memset(memory_.host(), kUntouched, memory_.nbytes());
    memory_.push();
    std::vector<Status> answers(kCount);
    rig_.pool.get_ranges(rig_.component, digests_, ranges(), answers.data());
    for (const Status answer : answers) expect(answer == Status::kOk, "a get of what is there");
    memory_.pull();
    const Bytes found(memory_.host(), memory_.host() + memory_.nbytes());
    std::memset(memory_.host(), kUntouched, memory_.nbytes());
    lay(version_);
    expect(std::memcmp(found.data(), memory_.host(), found.size()) == 0, "bytes " + when);
  }
  void remove() {
    std::vector<uint8_t> removed(kCount);
    rig_.pool.remove({&rig_.component, 1}, digests_, reinterpret_cast<bool*>(removed.data()));
  }

 private:
  static constexpr uint64_t kCount = 33, kNbytes = 700'001, kBefore = 7, kPitch = kNbytes + 32;

  void lay(uint64_t version) {
    for (size_t i = 0; i < kCount; ++i)
      for (uint64_t b = 0; b < kNbytes; ++b)
        memory_.host()[i * kPitch + kBefore + b] = byte_of(version * kCount + i, b);
  }
  RangeBatch ranges() const { return {addresses_.data(), sizes_.data(), nullptr, nullptr, kCount, kCount}; }

  DevicePool& rig_;
  DeviceBytes memory_;
  std::deque<Key> keys_;  // views are of their names
  std::vector<Hash128> digests_;
  std::vector<std::string_view> views_;
  std::vector<uint64_t> addresses_, sizes_ = std::vector<uint64_t>(kCount, kNbytes);
  uint64_t version_ = 0;
};

int chunks() {
  DevicePool rig;
  {
    ChunkedObjects objects(rig);
    objects.put(1);
    objects.check("with nothing pinned");
    bool refused = false;
    try {
      rig.pool.pin_arena(0, true);
    } catch (const DeviceError&) {
      refused = true;
    }
    const uint64_t pinned = rig.pool.stats().devices.pinned_bytes, staged = rig.pool.stats().devices.staged_bytes;
    expect(refused && pinned > 0 && pinned < (24u << 20), "four chunks are pinned: " + std::to_string(pinned));
    objects.check("with the first chunks pinned");
    objects.remove();
    objects.put(2);
    objects.check("that were put with the first chunks pinned");
    expect(rig.pool.stats().devices.staged_bytes > staged, "nothing was staged");
    rig.pool.pin_arena(0, true);
    objects.check("with all pinned");
    objects.remove();
    objects.put(3);
    objects.check("that were put with all pinned");
  }
  rig.pool.close();
  std::printf("wrong %llu\n", static_cast<unsigned long long>(wrong.load()));
  return wrong.load() == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 2 ? words[2] : "";
  if (count > 2) library = words[1];
  if (what == "mappings" && count == 4) return mappings(std::strtoull(words[3], nullptr, 10));
  if (what == "mixed" && count == 5)
    return mixed(std::strtoull(words[3], nullptr, 10), std::strtoull(words[4], nullptr, 10));
  if (what == "order" && count == 3) return order();
  if (what == "chunks" && count == 3) return chunks();
  std::fprintf(stderr, "usage: device_pool_checks LIBRARY mappings N | mixed N SEED | order | chunks\n");
  return 2;
}
