// What the emulated CUDA and HIP libraries have in common: devices whose memory the host cannot touch, streams
// whose work is done by another thread and only when somebody waits for it, and the rules that real
// runtimes enforce late, or by a crash, enforced at once.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fake_kernels.h"

namespace fake {

// Knobs that are another in this library: "name=value,...".
extern const char* const kLibraryDefaults;

// CUDA's numbers, which HIP shares.
enum Code : int {
  kOk = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotPermitted = 800,
  kNotSupported = 801,
};

constexpr uint64_t kDeviceBytes = uint64_t{8} << 30;
constexpr uint64_t kAliasBytes = uint64_t{1} << 40;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kAlignment = 512;
constexpr int kMaxDevices = 8;

// Its addresses are mapped without any access; the bytes are reached through a second map of the same file.
class DeviceMemory {
 public:
  DeviceMemory() : file_(memfd_create("fake-device", MFD_CLOEXEC)) {
    if (file_ < 0 || ftruncate(file_, kDeviceBytes) != 0) abort();
    base_ = map(PROT_NONE);
    bytes_ = reinterpret_cast<std::byte*>(map(PROT_READ | PROT_WRITE));
  }

  uint64_t allocate(uint64_t nbytes) {
    const uint64_t needed = (nbytes + 2 * kAlignment - 1) / kAlignment * kAlignment;  // a gap after each
    uint64_t at = base_;
    for (const auto& [start, size] : allocations_) {
      if (start - at >= needed) break;
      at = (start + size + 2 * kAlignment - 1) / kAlignment * kAlignment;
    }
    if (at + needed > base_ + kDeviceBytes) return 0;
    allocations_[at] = nbytes;
    return at;
  }

  bool release(uint64_t address) {
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return false;
    const uint64_t from = (address - base_ + kPage - 1) / kPage * kPage;
    const uint64_t to = (address - base_ + found->second) / kPage * kPage;
    if (to > from) fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from);
    allocations_.erase(found);
    return true;
  }

  // The allocation that holds `address`; false: none does.
  bool find(uint64_t address, uint64_t* base, uint64_t* nbytes) const {
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return false;
    const auto& [start, size] = *std::prev(after);
    if (address - start >= size) return false;
    *base = start;
    *nbytes = size;
    return true;
  }

  std::byte* bytes_at(uint64_t address) const { return bytes_ + (address - base_); }

 private:
  uint64_t map(int protection) const {
    void* at = mmap(nullptr, kDeviceBytes, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (at == MAP_FAILED) abort();
    return reinterpret_cast<uint64_t>(at);
  }

  int file_;
  uint64_t base_ = 0;
  std::byte* bytes_ = nullptr;
  std::map<uint64_t, uint64_t> allocations_;  // address: bytes
};

struct Registration {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  uint64_t alias = 0;
  bool read_only = false;
  bool allocated = false;  // by the runtime, instead of registered
};

struct Stream;

struct Event {
  std::shared_ptr<Stream> stream;  // of the last record; none: never recorded
  uint64_t position = 0;
};

struct Operation {
  Work work;                       // nothing: wait for `stream` to have done `position` operations
  std::shared_ptr<Stream> stream;
  uint64_t position = 0;
};

struct Stream : std::enable_shared_from_this<Stream> {
  int device = 0;
  uint64_t submitted = 0;
  uint64_t done = 0;
  uint64_t wanted = 0;  // operations that somebody waits for
  std::deque<Operation> queue;
};

class Engine {
 public:
  static Engine& get() {
    static auto* engine = new Engine;  // never destroyed: its thread runs until the process is gone
    return *engine;
  }

  // ---- knobs and counts: see tests/device_runtimes.py

  int64_t knob(const std::string& name) {
    std::lock_guard lock(mutex_);
    return knobs_[name];
  }
  void set_knob(const std::string& name, int64_t value) {
    std::lock_guard lock(mutex_);
    knobs_[name] = value;
  }
  uint64_t count(const std::string& name) {
    std::lock_guard lock(mutex_);
    return counts_[name];
  }
  void note(const std::string& name, uint64_t number = 1) {
    std::lock_guard lock(mutex_);
    counts_[name] += number;
    if (log_.is_open()) log_ << name << ' ' << number << std::endl;
  }
  // Why a call was refused, for a person who reads the log; the code.
  int refuse(int code, const std::string& why) {
    std::lock_guard lock(mutex_);
    refusal_ = why;
    ++counts_["refused"];
    if (log_.is_open()) log_ << "refused " << code << ' ' << why << std::endl;
    return code;
  }
  std::string last_refusal() {
    std::lock_guard lock(mutex_);
    return refusal_;
  }
  // Counts, knobs and the sticky error as at the start; work that nobody waited for is dropped.
  void reset() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !busy_; });
    for (const auto& stream : streams_) {
      stream->queue.clear();
      stream->done = stream->submitted;
    }
    counts_.clear();
    knobs_ = defaults_;
    refusal_.clear();
    sticky_ = kOk;
    changed_.notify_all();
  }
  uint64_t pending() {
    std::lock_guard lock(mutex_);
    uint64_t sum = 0;
    for (const auto& stream : streams_) sum += stream->queue.size();
    return sum;
  }
  int sticky() {
    std::lock_guard lock(mutex_);
    return sticky_;
  }
  void set_sticky(int code) {
    std::lock_guard lock(mutex_);
    if (sticky_ == kOk) sticky_ = code;
  }

  // ---- memory

  uint64_t allocate(int device, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    return memory(device).allocate(nbytes);
  }
  bool release(uint64_t address) {
    wait_for_all();  // as the real ones do
    std::lock_guard lock(mutex_);
    for (auto& memory : memories_)
      if (memory && memory->release(address)) return true;
    return false;
  }
  // The device that has allocated this address, or -1.
  int device_of(uint64_t address, uint64_t* base, uint64_t* nbytes) {
    std::lock_guard lock(mutex_);
    return find_device(address, base, nbytes);
  }
  // A copy that asks nobody: for the test itself, which sees what is there now.
  bool peek(uint64_t address, void* to, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    std::byte* at = device_bytes(address, nbytes);
    if (at != nullptr) std::memcpy(to, at, nbytes);
    return at != nullptr;
  }
  bool poke(uint64_t address, const void* from, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    std::byte* at = device_bytes(address, nbytes);
    if (at != nullptr) std::memcpy(at, from, nbytes);
    return at != nullptr;
  }

  int add_registration(uint64_t base, uint64_t nbytes, bool read_only) {
    if (base == 0 || nbytes == 0) return refuse(kInvalidValue, "registration of no memory");
    if (nbytes > static_cast<uint64_t>(knob("max_register_bytes")))
      return refuse(kInvalidValue, "registration larger than drivers take in one call");
    if (knob("hugepages") != 0 && (base % (2 << 20) != 0 || nbytes % (2 << 20) != 0))
      return refuse(kInvalidValue, "registration of hugepages in part");
    const int64_t failing = knob("fail_register_at");
    note("registrations");
    if (failing != 0 && count("registrations") == static_cast<uint64_t>(failing))
      return refuse(kOutOfMemory, "registration refused as the test asked");
    const int access = map_access(base, nbytes);
    if (access == 0) return refuse(kInvalidValue, "registration of memory that is not mapped");
    if (access == PROT_READ && !read_only)
      return refuse(kInvalidValue, "registration of a read-only map for writing");
    if (overlaps(base, nbytes)) return refuse(kAlreadyRegistered, "a page registered twice");
    put_registration({base, nbytes, 0, read_only, false});
    return kOk;
  }
  int remove_registration(uint64_t base, bool allocated) {
    std::lock_guard lock(mutex_);
    const auto found = registrations_.find(base);
    if (found == registrations_.end() || found->second.allocated != allocated) return kNotRegistered;
    aliases_.erase(found->second.alias);
    registrations_.erase(found);
    return kOk;
  }
  void* allocate_host(uint64_t nbytes) {
    void* at = mmap(nullptr, pages(nbytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    put_registration({reinterpret_cast<uint64_t>(at), nbytes, 0, false, true});
    return at;
  }
  int free_host(uint64_t base) {
    Registration known;
    if (!find_registration(base, &known) || !known.allocated || known.base != base) return kInvalidValue;
    wait_for_all();
    remove_registration(base, true);
    munmap(reinterpret_cast<void*>(base), pages(known.nbytes));
    return kOk;
  }
  // By host address or by alias.
  bool find_registration(uint64_t address, Registration* found) {
    std::lock_guard lock(mutex_);
    const Registration* known = registration_of(address, true);
    if (known != nullptr) *found = *known;
    return known != nullptr;
  }
  uint64_t registered() {
    std::lock_guard lock(mutex_);
    return registrations_.size();
  }
  uint64_t allocated_bytes_of_registrations() {
    std::lock_guard lock(mutex_);
    uint64_t sum = 0;
    for (const auto& [base, known] : registrations_) sum += known.nbytes;
    return sum;
  }
  // Whether an asynchronous copy may name this range: device memory, or host memory that is registered.
  bool is_known(uint64_t address, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    return resolve(address, nbytes, false, true) != nullptr;
  }

  // ---- streams and events

  Stream* create_stream(int device) {
    std::lock_guard lock(mutex_);
    auto stream = std::make_shared<Stream>();
    stream->device = device;
    streams_.insert(stream);
    return stream.get();
  }
  std::shared_ptr<Stream> stream_of(const void* handle) {
    std::lock_guard lock(mutex_);
    for (const auto& stream : streams_)
      if (stream.get() == handle) return stream;
    return nullptr;
  }
  int destroy_stream(const void* handle) {  // its work goes on
    const auto stream = stream_of(handle);
    if (stream == nullptr) return kInvalidHandle;
    want(stream, stream->submitted);
    std::lock_guard lock(mutex_);
    streams_.erase(stream);
    return kOk;
  }
  Event* create_event() {
    std::lock_guard lock(mutex_);
    return events_.emplace(std::make_unique<Event>()).first->get();
  }
  int destroy_event(const void* handle) {
    std::lock_guard lock(mutex_);
    for (const auto& event : events_) {
      if (event.get() != handle) continue;
      events_.erase(event);
      return kOk;
    }
    return kInvalidHandle;
  }
  Event* event_of(const void* handle) {
    std::lock_guard lock(mutex_);
    for (const auto& event : events_)
      if (event.get() == handle) return event.get();
    return nullptr;
  }
  int record(Event* event, const std::shared_ptr<Stream>& stream) {
    submit(stream, {[](const Memory&) {}, nullptr, 0});
    std::lock_guard lock(mutex_);
    event->stream = stream;
    event->position = stream->submitted;
    return kOk;
  }
  int make_wait(const std::shared_ptr<Stream>& stream, const Event& event) {
    if (event.stream != nullptr) submit(stream, {{}, event.stream, event.position});
    return kOk;
  }
  void submit(const std::shared_ptr<Stream>& stream, Operation operation) {
    std::lock_guard lock(mutex_);
    stream->queue.push_back(std::move(operation));
    ++stream->submitted;
    if (knobs_["eager"] == 0) return;
    stream->wanted = stream->submitted;
    changed_.notify_all();
  }
  int synchronize(const std::shared_ptr<Stream>& stream, uint64_t position) {
    want(stream, position);
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return stream->done >= position; });
    return sticky_;
  }
  // Asking is waiting: it sets the work going, and finds it done at a later time.
  int query(const std::shared_ptr<Stream>& stream, uint64_t position) {
    {
      std::lock_guard lock(mutex_);
      if (sticky_ != kOk) return sticky_;
      if (stream->done >= position) return kOk;
    }
    want(stream, position);
    return kNotReady;
  }
  void wait_for_all() {
    std::vector<std::shared_ptr<Stream>> all;
    {
      std::lock_guard lock(mutex_);
      all.assign(streams_.begin(), streams_.end());
    }
    for (const auto& stream : all) synchronize(stream, stream->submitted);
  }

  Operation copy(uint64_t dst, uint64_t src, uint64_t nbytes) {
    return {[this, dst, src, nbytes](const Memory&) {
              std::unique_lock lock(mutex_);
              std::byte* to = resolve(dst, nbytes, true, true);
              const std::byte* from = resolve(src, nbytes, false, true);
              if (to == nullptr || from == nullptr) throw Fault{};
              lock.unlock();  // a test that frees it meanwhile is to crash
              std::memmove(to, from, nbytes);
            },
            nullptr, 0};
  }

 private:
  Engine() {
    const char* log = std::getenv("UMBP_FAKE_LOG");
    if (log != nullptr) log_.open(log, std::ios::app);
    defaults_ = {{"devices", 2},         {"max_register_bytes", int64_t{256} << 30}, {"version", 0},
                 {"separate_aliases", 0}, {"eager", 0},                              {"late_us", 0}};
    read_defaults(kLibraryDefaults);
    const char* knobs = std::getenv("UMBP_FAKE_KNOBS");  // "eager=1,late_us=200"
    if (knobs != nullptr) read_defaults(knobs);
    knobs_ = defaults_;
    std::thread([this] { work(); }).detach();
  }

  // Only where they are asked for: a thread sanitizer does not always have so much room.
  static uint64_t reserve_aliases() {
    void* at = mmap(nullptr, kAliasBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return reinterpret_cast<uint64_t>(at);
  }

  void read_defaults(const std::string& text) {
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) abort();
      defaults_[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
    }
  }

  static uint64_t pages(uint64_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

  DeviceMemory& memory(int device) {
    auto& memory = memories_[device];
    if (!memory) memory = std::make_unique<DeviceMemory>();
    return *memory;
  }
  int find_device(uint64_t address, uint64_t* base, uint64_t* nbytes) const {
    for (int device = 0; device < kMaxDevices; ++device)
      if (memories_[device] && memories_[device]->find(address, base, nbytes)) return device;
    return -1;
  }
  std::byte* device_bytes(uint64_t address, uint64_t nbytes) const {
    uint64_t base, size;
    const int device = find_device(address, &base, &size);
    if (device < 0 || nbytes > size - (address - base)) return nullptr;
    return memories_[device]->bytes_at(address);
  }
  const Registration* registration_of(uint64_t address, bool by_host_address) const {
    const auto in = [address](const Registration* known, uint64_t base) {
      return known != nullptr && address - base < known->nbytes ? known : nullptr;
    };
    auto alias = aliases_.upper_bound(address);
    if (alias != aliases_.begin()) {
      const auto& [start, base] = *std::prev(alias);
      if (const auto* known = in(&registrations_.at(base), start)) return known;
    }
    if (!by_host_address) return nullptr;
    auto host = registrations_.upper_bound(address);
    if (host == registrations_.begin()) return nullptr;
    const auto& known = std::prev(host)->second;
    return in(&known, known.base);
  }
  // Copies may name host memory by its host address, kernels only by its alias.
  std::byte* resolve(uint64_t address, uint64_t nbytes, bool writes, bool by_host_address) const {
    if (std::byte* at = device_bytes(address, nbytes)) return at;
    const Registration* known = registration_of(address, by_host_address);
    if (known == nullptr || (writes && known->read_only)) return nullptr;
    const bool by_alias = address - known->alias < known->nbytes;
    const uint64_t offset = address - (by_alias ? known->alias : known->base);
    if (nbytes > known->nbytes - offset) return nullptr;
    return reinterpret_cast<std::byte*>(known->base + offset);
  }

  bool overlaps(uint64_t base, uint64_t nbytes) {
    std::lock_guard lock(mutex_);
    const uint64_t from = base / kPage * kPage, to = pages(base + nbytes);
    return std::any_of(registrations_.begin(), registrations_.end(), [&](const auto& entry) {
      const Registration& known = entry.second;
      return known.base / kPage * kPage < to && from < pages(known.base + known.nbytes);
    });
  }
  void put_registration(Registration known) {
    std::lock_guard lock(mutex_);
    known.alias = known.base;
    if (knobs_["separate_aliases"] != 0) {  // neighbours' aliases are no neighbours
      if (next_alias_ == 0) next_alias_ = reserve_aliases();
      known.alias = next_alias_ + known.base % kPage;
      next_alias_ += pages(known.nbytes + kPage) + 16 * kPage;
    }
    registrations_[known.base] = known;
    aliases_[known.alias] = known.base;
  }

  // PROT_READ, PROT_READ | PROT_WRITE, or 0 where a part is not mapped.
  static int map_access(uint64_t base, uint64_t nbytes) {
    std::ifstream maps("/proc/self/maps");
    uint64_t at = base;
    int access = PROT_READ | PROT_WRITE;
    for (std::string line; std::getline(maps, line) && at < base + nbytes;) {
      unsigned long from, to;
      char read, write;
      if (std::sscanf(line.c_str(), "%lx-%lx %c%c", &from, &to, &read, &write) != 4 || to <= at) continue;
      if (from > at || read != 'r') return 0;
      if (write != 'w') access = PROT_READ;
      at = to;
    }
    return at < base + nbytes ? 0 : access;
  }

  void want(const std::shared_ptr<Stream>& stream, uint64_t position) {
    std::lock_guard lock(mutex_);
    stream->wanted = std::max(stream->wanted, position);
    if (stream->done < stream->wanted) wanted_.insert(stream);
    changed_.notify_all();
  }

  std::shared_ptr<Stream> next_wanted() {
    for (const auto& stream : streams_)
      if (stream->done < stream->wanted) return stream;
    for (auto at = wanted_.begin(); at != wanted_.end();) {
      if ((*at)->done < (*at)->wanted) return *at;
      at = wanted_.erase(at);
    }
    return nullptr;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::shared_ptr<Stream> stream;
      changed_.wait(lock, [&] { return (stream = next_wanted()) != nullptr; });
      busy_ = true;
      run(lock, *stream, stream->wanted);
      busy_ = false;
      idle_.notify_all();
    }
  }
  void run(std::unique_lock<std::mutex>& lock, Stream& stream, uint64_t position) {
    while (stream.done < position && !stream.queue.empty()) {
      const Operation operation = std::move(stream.queue.front());
      stream.queue.pop_front();
      if (operation.stream != nullptr)
        run(lock, *operation.stream, operation.position);
      else if (sticky_ == kOk)
        run_one(lock, operation.work);
      ++stream.done;
      finished_.notify_all();
    }
  }
  void run_one(std::unique_lock<std::mutex>& lock, const Work& work) {
    const int64_t late_us = knobs_["late_us"];
    lock.unlock();
    if (late_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(late_us));
    bool faulted = false;
    try {
      work([this](uint64_t address, uint64_t nbytes, bool writes) {
        std::lock_guard guard(mutex_);
        std::byte* at = resolve(address, nbytes, writes, false);
        if (at == nullptr) throw Fault{};
        return at;
      });
    } catch (const Fault&) {
      faulted = true;
    }
    lock.lock();
    if (faulted) sticky_ = kIllegalAddress;
  }

  std::mutex mutex_;
  std::condition_variable changed_, finished_, idle_;
  bool busy_ = false;
  std::map<std::string, int64_t> knobs_, defaults_;
  std::map<std::string, uint64_t> counts_;
  std::string refusal_;
  std::ofstream log_;
  int sticky_ = kOk;
  std::unique_ptr<DeviceMemory> memories_[kMaxDevices];
  std::map<uint64_t, Registration> registrations_;  // by host base
  std::map<uint64_t, uint64_t> aliases_;            // alias: host base
  uint64_t next_alias_ = 0;
  std::set<std::shared_ptr<Stream>> streams_, wanted_;
  std::set<std::unique_ptr<Event>> events_;
};

}  // namespace fake

// What a test calls in either library.
extern "C" {
__attribute__((used, visibility("default"))) void fake_set(const char* knob, int64_t value) {
  fake::Engine::get().set_knob(knob, value);
}
__attribute__((used, visibility("default"))) uint64_t fake_count(const char* name) {
  return fake::Engine::get().count(name);
}
__attribute__((used, visibility("default"))) void fake_reset() { fake::Engine::get().reset(); }
__attribute__((used, visibility("default"))) uint64_t fake_pending() { return fake::Engine::get().pending(); }
__attribute__((used, visibility("default"))) uint64_t fake_registered() {
  return fake::Engine::get().registered();
}
__attribute__((used, visibility("default"))) int fake_last_refusal(char* text, uint64_t nbytes) {
  return std::snprintf(text, nbytes, "%s", fake::Engine::get().last_refusal().c_str());
}
__attribute__((used, visibility("default"))) int fake_peek(uint64_t address, void* to, uint64_t nbytes) {
  return fake::Engine::get().peek(address, to, nbytes);
}
__attribute__((used, visibility("default"))) int fake_poke(uint64_t address, const void* from, uint64_t nbytes) {
  return fake::Engine::get().poke(address, from, nbytes);
}
// A kernel of the test's that writes these bytes when its turn has come; they are copied now.
__attribute__((used, visibility("default"))) int fake_queue_write(void* stream, uint64_t address, const void* from,
                                                                  uint64_t nbytes) {
  auto& engine = fake::Engine::get();
  const auto known = engine.stream_of(stream);
  if (known == nullptr) return fake::kInvalidHandle;
  const auto* first = static_cast<const std::byte*>(from);
  engine.submit(known, {[bytes = std::vector<std::byte>(first, first + nbytes), address](const fake::Memory& memory) {
                          std::memcpy(memory(address, bytes.size(), true), bytes.data(), bytes.size());
                        },
                        nullptr, 0});
  return fake::kOk;
}
// What the work of a stream finds at this address when its turn has come is kept at `to` (which must stay).
__attribute__((used, visibility("default"))) int fake_queue_read(void* stream, void* to, uint64_t address,
                                                                 uint64_t nbytes) {
  auto& engine = fake::Engine::get();
  const auto known = engine.stream_of(stream);
  if (known == nullptr) return fake::kInvalidHandle;
  engine.submit(known, {[=](const fake::Memory& memory) {
                          std::memcpy(to, memory(address, nbytes, false), nbytes);
                        },
                        nullptr, 0});
  return fake::kOk;
}
}
