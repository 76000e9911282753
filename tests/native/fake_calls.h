// The calls that the emulated CUDA and HIP libraries answer alike. Each has the arguments of cuXxx and hipXxx, with
// addresses as integers, and returns a code.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fake_engine.h"

namespace fake {

inline Engine& engine() { return Engine::get(); }

inline bool is_device(int device) { return device >= 0 && device < engine().device_count(); }

struct CopyAttributes {
  int source_order;
  int source[2];
  int destination[2];
  unsigned flags;
};

struct Grid {
  unsigned x, y, z;
};

struct Function {
  std::string name;
};

// One call by its name, of a thread whose current device is this one.
struct Call {
  const char* name;
  int device;

  int refuse(int code, const std::string& why) const {
    return engine().notes.refuse(code, std::string(name) + ": " + why);
  }

  // ---- memory

  int register_host(uint64_t base, size_t nbytes, bool read_only) const {
    return engine().addresses.register_host(base, nbytes, read_only);
  }
  int unregister_host(uint64_t base) const { return engine().addresses.unregister_host(base); }
  int host_alias(uint64_t* alias, uint64_t address, unsigned flags) const {
    const Place place = engine().addresses.look_up(address);
    if (flags != 0 || place.kind != Place::kHost) return kInvalidValue;
    if (engine().notes.knob("no_alias") != 0) return refuse(kNotSupported, "as the test asked");
    *alias = place.alias;
    return kOk;
  }
  int allocate(uint64_t* address, size_t nbytes) const {
    if (nbytes == 0) return kInvalidValue;
    *address = engine().addresses.allocate(device, nbytes);
    return *address == 0 ? kOutOfMemory : kOk;
  }
  int release(uint64_t address) const { return engine().free_device(address); }
  int allocate_host(uint64_t* memory, size_t nbytes, unsigned flags) const {
    if (nbytes == 0 || (flags & ~7u) != 0) return kInvalidValue;
    *memory = engine().addresses.allocate_host(nbytes);
    return *memory == 0 ? kOutOfMemory : kOk;
  }
  int free_host(uint64_t memory) const { return engine().free_host(memory); }

  // ---- streams and events

  int priority_range(int* least, int* greatest) const {
    *least = static_cast<int>(engine().notes.knob("least_priority"));
    *greatest = static_cast<int>(engine().notes.knob("greatest_priority"));
    return kOk;
  }
  int create_stream(void** stream, unsigned flags, int priority) const {
    if (flags != 1) return refuse(kInvalidValue, "a stream that waits for the legacy default stream");
    int least = 0, greatest = 0;
    priority_range(&least, &greatest);
    if (priority < greatest || priority > least) return kInvalidValue;
    if (priority < 0) engine().notes.note("high_priority_streams");
    *stream = engine().streams.create_stream(device);
    return kOk;
  }
  int destroy_stream(void* stream) const { return engine().streams.destroy_stream(stream); }
  int synchronize_stream(void* handle) const {
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream)) return code;
    return engine().streams.synchronize(stream);
  }
  int query_stream(void* handle) const {
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream)) return code;
    return engine().streams.query(stream);
  }
  int wait_event(void* handle, void* event, unsigned flags) const {
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream, false)) return code;
    return flags != 0 ? kInvalidHandle : engine().streams.make_wait(stream, event);
  }

  int create_event(void** event, unsigned flags) const {
    if ((flags & 2) == 0) return refuse(kInvalidValue, "an event with timing");
    *event = engine().streams.create_event();
    return kOk;
  }
  int destroy_event(void* event) const { return engine().streams.destroy_event(event); }
  int record_event(void* event, void* handle) const {
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream)) return code;
    return engine().streams.record(event, stream);
  }
  int query_event(void* event) const { return engine().streams.query_event(event); }
  int synchronize_event(void* event) const { return engine().streams.synchronize_event(event); }

  // ---- copies

  int copy(uint64_t dst, uint64_t src, size_t nbytes, void* handle) const {
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream)) return code;
    if (!engine().may_copy(dst, src, nbytes)) return refuse(kInvalidValue, "memory that is not registered");
    engine().streams.submit(stream, engine().copy(dst, src, nbytes));
    return kOk;
  }
  // failed: the copy that was refused, else as it was.
  int copy_batch(const uint64_t* dst, const uint64_t* src, const size_t* nbytes, size_t count, size_t* failed,
                 void* handle) const {
    engine().notes.note("descriptors", count);
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream)) return code;
    if (count == 0) return refuse(kInvalidValue, "no copies");
    for (size_t i = 0; i < count; ++i) {
      if (nbytes[i] != 0 && engine().may_copy(dst[i], src[i], nbytes[i])) continue;
      if (failed != nullptr) *failed = i;
      return refuse(kInvalidValue, "memory that is not registered");
    }
    for (size_t i = 0; i < count; ++i) engine().streams.submit(stream, engine().copy(dst[i], src[i], nbytes[i]));
    return kOk;
  }
  // Attributes of a batch, each of which holds from its entry of `first` on.
  int check_attributes(const CopyAttributes* attributes, const size_t* first, size_t number, size_t count) const {
    if (number == 0 || attributes == nullptr || first == nullptr || number > count || first[0] != 0)
      return refuse(kInvalidValue, "attributes");
    for (size_t i = 0; i < number; ++i) {
      const bool ordered = attributes[i].source_order == 1 || attributes[i].source_order == 3;
      if (!ordered || (i > 0 && first[i] <= first[i - 1]) || first[i] >= count)
        return refuse(kInvalidValue, "order of an attribute");
    }
    return kOk;
  }

  // ---- kernels

  int load_module(void** module, const void* image) const {
    if (image == nullptr || *static_cast<const char*>(image) == 0) return refuse(kInvalidImage, "an empty image");
    *module = new int;
    return kOk;
  }
  int unload_module(void* module) const {
    delete static_cast<int*>(module);
    return kOk;
  }
  int find_function(void** function, void* module, const char* wanted) const {
    static std::mutex mutex;
    static std::map<std::string, std::unique_ptr<Function>> functions;
    if (module == nullptr || !has_kernel(wanted, engine().notes.knob("no_bulk") == 0)) return kNotFound;
    std::lock_guard lock(mutex);
    auto& known = functions[wanted];
    if (!known) known = std::make_unique<Function>(Function{wanted});
    *function = known.get();
    return kOk;
  }
  int launch(void* function, const Grid& grid, const Grid& block, unsigned shared_bytes, void* handle,
             void** parameters, void** extra) const {
    std::shared_ptr<Stream> stream;
    if (const int code = find_stream(handle, &stream)) return code;
    const bool one_dimension = grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1;
    if (function == nullptr || !one_dimension || extra != nullptr || grid.x == 0 || block.x == 0 || block.x > 1024 ||
        shared_bytes > engine().notes.knob("max_shared_bytes"))
      return refuse(kInvalidValue, "shape of a launch");
    const std::string& kernel = static_cast<Function*>(function)->name;
    engine().notes.note("kernel:" + kernel);
    engine().notes.note("blocks", grid.x);
    engine().streams.submit(stream, bind_kernel(kernel, {grid.x, block.x, shared_bytes}, parameters));
    return kOk;
  }

 private:
  // The stream of a call that must have one, `here`: of the current device; the legacy default stream is refused.
  int find_stream(void* handle, std::shared_ptr<Stream>* stream, bool here = true) const {
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return refuse(kInvalidHandle, "the legacy default stream");
    *stream = engine().streams.stream_of(handle);
    if (*stream == nullptr) return refuse(kInvalidHandle, "no such stream");
    if (here && (*stream)->device != device) return refuse(kInvalidHandle, "stream of another device");
    return kOk;
  }
};

}  // namespace fake
