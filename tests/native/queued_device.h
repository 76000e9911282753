// A device runtime inside the program. Nothing that is put into a stream happens before somebody waits for it or
// asks often enough, so that a wait that is missing shows. Every call can be made to fail. One lock for everything.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device_api.h"
#include "device_kernels.h"
#include "errors.h"

namespace umbp {

class QueuedDevice : public DeviceApi {
 public:
  size_t most_descriptors = 8192;
  int compute_major = 9;
  unsigned questions = 3;  // how often a stream or an event is asked for before it is done
  int fails_at = -1;       // the number of the call that throws, counted down

  // What is alive, and streams that went with work in them; 0 when everything was waited for and given back.
  size_t alive() {
    const std::lock_guard guard(lock_);
    return streams_.size() + events_.size() + pinned_.size() + device_.size() + modules_ + orphans_;
  }
  std::vector<std::string> log() {
    const std::lock_guard guard(lock_);
    return log_;
  }
  void clear_log() {
    const std::lock_guard guard(lock_);
    log_.clear();
  }
  // Work of somebody else's in a stream.
  void put(StreamHandle stream, std::function<void()> work) {
    const std::lock_guard guard(lock_);
    at(stream).queue.push_back(std::move(work));
  }

  const char* name() const override { return "queued"; }
  std::string version() const override { return "1"; }
  int device_count() override { return 1; }
  DeviceProperties properties(int) override {
    DeviceProperties found;
    found.major = compute_major;
    return found;
  }
  PointerInfo pointer(uint64_t) override { return {}; }
  uint64_t register_host(int, uint64_t base, uint64_t, bool) override { return base; }
  void unregister_host(uint64_t) override {}

  uint64_t allocate_device(int, uint64_t nbytes) override {
    const auto guard = enter("allocate_device");
    auto memory = std::make_unique<std::byte[]>(nbytes);
    const auto address = reinterpret_cast<uint64_t>(memory.get());
    device_[address] = std::move(memory);
    return address;
  }
  void free_device(int, uint64_t address) override {
    const std::lock_guard guard(lock_);
    device_.erase(address);
  }
  void* allocate_pinned(int, uint64_t nbytes, uint64_t* alias) override {
    const auto guard = enter("allocate_pinned");
    auto memory = std::make_unique<std::byte[]>(nbytes);
    void* address = memory.get();
    *alias = reinterpret_cast<uint64_t>(address);
    pinned_[address] = std::move(memory);
    return address;
  }
  void free_pinned(void* memory) override {
    const std::lock_guard guard(lock_);
    pinned_.erase(memory);
  }

  StreamHandle create_stream(int, bool) override {
    const auto guard = enter("create_stream");
    auto made = std::make_unique<Stream>();
    StreamHandle handle = made.get();
    streams_[handle] = std::move(made);
    return handle;
  }
  void destroy_stream(int, StreamHandle stream) override {
    const std::lock_guard guard(lock_);
    if (!at(stream).queue.empty()) ++orphans_;
    streams_.erase(stream);
  }
  void synchronize_stream(int, StreamHandle stream) override {
    const auto guard = enter("synchronize_stream");
    at(stream).run_all();
  }
  bool is_stream_done(int, StreamHandle stream) override {
    const auto guard = enter("is_stream_done", false);
    Stream& asked = at(stream);
    if (++asked.asked < questions) return false;
    asked.asked = 0;
    asked.run_all();
    return true;
  }
  EventHandle create_event(int) override {
    const auto guard = enter("create_event");
    auto made = std::make_unique<Event>();
    EventHandle handle = made.get();
    events_[handle] = std::move(made);
    return handle;
  }
  void destroy_event(int, EventHandle event) override {
    const std::lock_guard guard(lock_);
    events_.erase(event);
  }
  void record_event(int, EventHandle event, StreamHandle stream) override {
    const auto guard = enter("record_event");
    Event& marked = at_event(event);
    marked.stream = &at(stream);
    marked.position = marked.stream->done + marked.stream->queue.size();
    marked.asked = 0;
  }
  void wait_event(int, StreamHandle stream, EventHandle event) override {
    const auto guard = enter("wait_event");
    const Event marked = at_event(event);  // as it is now: it may be recorded again
    at(stream).queue.push_back([marked] { marked.run(); });
  }
  bool is_event_done(int, EventHandle event) override {
    const auto guard = enter("is_event_done", false);
    Event& marked = at_event(event);
    if (++marked.asked < questions) return false;
    marked.run();
    return true;
  }
  void synchronize_event(int, EventHandle event) override {
    const auto guard = enter("synchronize_event");
    at_event(event).run();
  }

  void copy_async(int, uint64_t dst, uint64_t src, uint64_t nbytes, StreamHandle stream) override {
    const auto guard = enter("copy_async");
    at(stream).queue.push_back([=] { copy(dst, src, nbytes); });
  }
  size_t max_batch() const override { return most_descriptors; }
  void copy_batch_async(int, std::span<const uint64_t> dst, std::span<const uint64_t> src,
                        std::span<const uint64_t> nbytes, CopyDirection direction, StreamHandle stream) override {
    const auto guard = enter("copy_batch_async");
    if (dst.size() > most_descriptors || dst.empty() || direction == CopyDirection::kDeviceToDevice) {
      throw DeviceError("a batch that the runtime cannot take");
    }
    std::vector<Run> runs;
    for (size_t i = 0; i < dst.size(); ++i) runs.push_back({src[i], dst[i], nbytes[i]});
    at(stream).queue.push_back([runs] {
      for (const Run& run : runs) copy(run.dst, run.src, run.nbytes);
    });
  }

  ModuleHandle load_module(int, std::span<const std::byte>) override {
    const auto guard = enter("load_module");
    ++modules_;
    return this;
  }
  void unload_module(int, ModuleHandle) override {
    const std::lock_guard guard(lock_);
    --modules_;
  }
  FunctionHandle find_function(ModuleHandle, const char* name) override {
    const auto guard = enter("find_function");
    return const_cast<char*>(name);
  }
  void allow_shared_bytes(FunctionHandle, unsigned) override { const auto guard = enter("allow_shared_bytes"); }
  void launch(int, const Launch& launch, StreamHandle stream) override {
    const std::string name = static_cast<const char*>(launch.function);
    const auto guard = enter(name + " " + std::to_string(launch.grid));
    check_launch(name, launch);
    if (name == kSmallKernel) {
      const auto plan = *static_cast<const SmallCopyPlan*>(launch.parameters[0]);
      if (plan.segments == 0 || plan.segments > kSmallSegments || plan.share == 0 || plan.share > kMostShare) {
        throw DeviceError("an argument that the kernel cannot take");
      }
      at(stream).queue.push_back([plan] { run_small(plan); });
    } else if (name == kEvenKernel) {
      const auto pieces = *static_cast<const uint64_t*>(launch.parameters[0]);
      const auto even = *static_cast<const EvenCopy*>(launch.parameters[1]);
      const auto cut = *static_cast<const CopyCut*>(launch.parameters[2]);
      check_cut(name, cut);
      at(stream).queue.push_back([=] {
        const auto* plan = reinterpret_cast<const EvenCopyPiece*>(pieces);
        std::vector<CopyPiece> listed;
        for (size_t i = 0; i < cut.count; ++i) listed.push_back(piece_of(even, plan[i]));
        run_plan(listed.data(), cut);
      });
    } else {
      const auto pieces = *static_cast<const uint64_t*>(launch.parameters[0]);
      const auto cut = *static_cast<const CopyCut*>(launch.parameters[1]);
      check_cut(name, cut);
      const bool bulk = name == kBulkKernel;
      at(stream).queue.push_back([=] {
        const auto* plan = reinterpret_cast<const CopyPiece*>(pieces);
        if (bulk) check_alignment(plan, cut.count);
        run_plan(plan, cut);
      });
    }
  }

 private:
  struct Stream {
    std::deque<std::function<void()>> queue;
    uint64_t done = 0;
    unsigned asked = 0;

    void run_to(uint64_t position) {
      while (done < position && !queue.empty()) {
        auto work = std::move(queue.front());
        queue.pop_front();
        ++done;
        work();
      }
    }
    void run_all() { run_to(UINT64_MAX); }
  };
  struct Event {
    Stream* stream = nullptr;
    uint64_t position = 0;
    unsigned asked = 0;

    void run() const {
      if (stream != nullptr) stream->run_to(position);
    }
  };

  std::unique_lock<std::mutex> enter(const std::string& call, bool logged = true) {
    std::unique_lock guard(lock_);
    if (logged) log_.push_back(call);
    if (fails_at >= 0 && fails_at-- == 0) throw DeviceError(call + " fails");
    return guard;
  }
  Stream& at(StreamHandle stream) {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) throw DeviceError("no such stream");
    return *found->second;
  }
  Event& at_event(EventHandle event) {
    const auto found = events_.find(event);
    if (found == events_.end()) throw DeviceError("no such event");
    return *found->second;
  }
  static void copy(uint64_t dst, uint64_t src, uint64_t nbytes) {
    std::memcpy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), nbytes);
  }
  // As the kernel: each part by its number.
  static void run_small(const SmallCopyPlan& plan) {
    for (uint32_t w = 0; w < plan.parts; ++w) {
      uint32_t s = plan.segments - 1;
      while (plan.segment[s].first_part > w) --s;
      const CopySegment& segment = plan.segment[s];
      const uint32_t of_segment = w - segment.first_part;
      const CopyPiece piece = piece_of(segment.even, plan.pieces[segment.first_piece + of_segment / segment.parts]);
      const uint64_t offset = uint64_t{of_segment % segment.parts} * segment.part_bytes;
      if (offset >= piece.nbytes) continue;
      copy(piece.dst + offset, piece.src + offset, std::min<uint64_t>(segment.part_bytes, piece.nbytes - offset));
    }
  }
  static void check_launch(const std::string& name, const Launch& launch) {
    const bool bulk = name == kBulkKernel;
    const unsigned threads = bulk ? kBulkThreads : name == kSmallKernel ? kSmallThreads : kPlainThreads;
    if (launch.grid == 0 || launch.grid > kMostBlocks || launch.block != threads ||
        launch.shared_bytes != (bulk ? kBulkSharedBytes : 0)) {
      throw DeviceError("a launch of another shape than the kernel's");
    }
  }
  static void check_cut(const std::string& name, const CopyCut& cut) {
    const bool bulk = name == kBulkKernel;
    if (cut.count == 0 || cut.parts == 0 || cut.part_bytes == 0 || cut.part_bytes % kPartUnit != 0 ||
        cut.share == 0 || cut.share > kMostShare || uint64_t{cut.count} * cut.parts > kMaxParts ||
        cut.part_bytes > (bulk ? kBulkPartBytes : kPlainPartBytes)) {
      throw DeviceError("a cut that the kernel cannot take");
    }
  }
  static void check_alignment(const CopyPiece* pieces, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if ((pieces[i].src | pieces[i].dst | pieces[i].nbytes) % kBulkAlignment != 0) {
        throw DeviceError("a bulk copy that is not aligned");
      }
    }
  }
  // As device_kernels.h says: what no part reaches stays as it was.
  static void run_plan(const CopyPiece* pieces, const CopyCut& cut) {
    for (uint64_t w = 0; w < uint64_t{cut.count} * cut.parts; ++w) {
      const CopyPiece& piece = pieces[w / cut.parts];
      const uint64_t offset = w % cut.parts * cut.part_bytes;
      if (offset >= piece.nbytes) continue;
      copy(piece.dst + offset, piece.src + offset, std::min<uint64_t>(cut.part_bytes, piece.nbytes - offset));
    }
  }

  std::mutex lock_;
  std::vector<std::string> log_;
  std::map<StreamHandle, std::unique_ptr<Stream>> streams_;
  std::map<EventHandle, std::unique_ptr<Event>> events_;
  std::map<void*, std::unique_ptr<std::byte[]>> pinned_;
  std::map<uint64_t, std::unique_ptr<std::byte[]>> device_;
  size_t modules_ = 0;
  size_t orphans_ = 0;
};

}  // namespace umbp
