// libamdhip64.so.7 for machines without one: the calls that the core makes, over the emulated devices.
#include <utility>

#include "fake_engine.h"

using fake::Engine;

const char* const fake::kLibraryDefaults = "version=70253211,separate_aliases=1";

namespace {

constexpr int64_t kAttributesVersion = 71300000;
constexpr size_t kMaxBatch = 8192;

thread_local int current = 0;
thread_local int last_error = 0;  // until somebody asks

struct Function {
  std::string name;
};
std::mutex functions_mutex;
std::map<std::string, std::unique_ptr<Function>> functions;

Engine& engine() { return Engine::get(); }

int device_count() { return static_cast<int>(engine().knob("devices")); }

int begin(const char* name) {
  engine().note(name);
  return engine().sticky();
}

int end(int code) {
  if (code != fake::kOk) last_error = code;
  return code;
}

int find_stream(const char* name, void* handle, std::shared_ptr<fake::Stream>* stream, bool here = true) {
  if (reinterpret_cast<uintptr_t>(handle) <= 2)
    return engine().refuse(fake::kInvalidHandle, std::string(name) + " on the legacy default stream");
  *stream = engine().stream_of(handle);
  if (*stream == nullptr) return engine().refuse(fake::kInvalidHandle, std::string(name) + ": no such stream");
  if (here && (*stream)->device != current)
    return engine().refuse(fake::kInvalidHandle, std::string(name) + ": stream of another device");
  return fake::kOk;
}

bool is_known(const void* dst, const void* src, size_t nbytes) {
  return engine().is_known(reinterpret_cast<uint64_t>(dst), nbytes) &&
         engine().is_known(reinterpret_cast<uint64_t>(src), nbytes);
}

fake::Operation copy(const void* dst, const void* src, size_t nbytes) {
  return engine().copy(reinterpret_cast<uint64_t>(dst), reinterpret_cast<uint64_t>(src), nbytes);
}

struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  int is_managed;
  unsigned flags;
};

struct CopyAttributes {
  int source_order;
  int source[2];
  int destination[2];
  unsigned flags;
};

// Before 7.13 attributes are refused; each has its own entry of `first`.
int check_attributes(const CopyAttributes* attributes, const size_t* first, size_t number, size_t count) {
  if (number == 0) {
    if (engine().knob("needs_attributes") == 0) return fake::kOk;
    return engine().refuse(fake::kInvalidValue, "hipMemcpyBatchAsync without attributes");
  }
  if (engine().knob("version") < kAttributesVersion)
    return engine().refuse(fake::kInvalidValue, "hipMemcpyBatchAsync with attributes");
  if (attributes == nullptr || first == nullptr || number > count || first[0] != 0)
    return engine().refuse(fake::kInvalidValue, "hipMemcpyBatchAsync: attributes");
  for (size_t i = 0; i < number; ++i)
    if (attributes[i].source_order != 1 && attributes[i].source_order != 3)
      return engine().refuse(fake::kInvalidValue, "hipMemcpyBatchAsync: order of an attribute");
  return fake::kOk;
}

int submit_batch(void** dst, void** src, const size_t* nbytes, size_t count, const CopyAttributes* attributes,
                 const size_t* first, size_t number, size_t* failed, void* handle) {
  engine().note("descriptors", count);
  if (count > kMaxBatch) {
    engine().set_sticky(fake::kIllegalAddress);  // nothing of the process's device work is of use from here on
    return engine().refuse(fake::kIllegalAddress, "hipMemcpyBatchAsync of more than 8,192 copies");
  }
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipMemcpyBatchAsync", handle, &stream)) return code;
  if (count == 0 || dst == nullptr || src == nullptr || nbytes == nullptr)
    return engine().refuse(fake::kInvalidValue, "hipMemcpyBatchAsync of nothing");
  if (const int code = check_attributes(attributes, first, number, count)) return code;
  for (size_t i = 0; i < count; ++i) {
    if (nbytes[i] != 0 && is_known(dst[i], src[i], nbytes[i])) continue;
    if (failed != nullptr) *failed = i;
    return engine().refuse(fake::kInvalidValue, "hipMemcpyBatchAsync of memory that is not registered");
  }
  for (size_t i = 0; i < count; ++i) engine().submit(stream, copy(dst[i], src[i], nbytes[i]));
  return fake::kOk;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API hipInit(unsigned flags) {
  engine().note("hipInit");
  return end(flags != 0 ? fake::kInvalidValue : device_count() == 0 ? fake::kNoDevice : fake::kOk);
}

API hipRuntimeGetVersion(int* version) {
  *version = static_cast<int>(engine().knob("version"));
  return fake::kOk;
}

API hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }

extern "C" __attribute__((visibility("default"))) const char* hipGetErrorName(int code) {
  switch (code) {
    case fake::kInvalidValue: return "hipErrorInvalidValue";
    case fake::kOutOfMemory: return "hipErrorOutOfMemory";
    case fake::kNoDevice: return "hipErrorNoDevice";
    case fake::kIllegalAddress: return "hipErrorIllegalAddress";
    case fake::kAlreadyRegistered: return "hipErrorHostMemoryAlreadyRegistered";
    default: return "hipErrorUnknown";
  }
}

extern "C" __attribute__((visibility("default"))) const char* hipGetErrorString(int) { return "emulated"; }

API hipGetLastError() { return std::exchange(last_error, 0); }
API hipPeekAtLastError() { return last_error; }

API hipGetDeviceCount(int* count) {
  *count = device_count();
  return end(*count == 0 ? fake::kNoDevice : fake::kOk);
}

API hipSetDevice(int device) {
  engine().note("hipSetDevice");
  if (device < 0 || device >= device_count()) return end(fake::kInvalidDevice);
  current = device;
  return fake::kOk;
}

API hipGetDevice(int* device) {
  *device = current;
  return fake::kOk;
}

API hipDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, length, "Emulated Instinct %d", device);
  return fake::kOk;
}

API hipDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, length, "0000:%02x:00.0", 0xc1 + device);
  return fake::kOk;
}

API hipDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute != 63) return end(fake::kInvalidValue);
  *value = 304;
  return fake::kOk;
}

API hipGetDevicePropertiesR0600(char* properties, int device) {
  if (device < 0 || device >= device_count()) return end(fake::kInvalidDevice);
  std::memset(properties, 0, 1472);
  std::snprintf(properties, 256, "Emulated Instinct %d", device);
  std::snprintf(properties + 1160, 256, "gfx942:sramecc+:xnack-");
  return fake::kOk;
}

API hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 1;
  *greatest = -1;
  return fake::kOk;
}

API hipPointerGetAttributes(PointerAttributes* found, const void* pointer) {
  if (const int code = begin("hipPointerGetAttributes")) return end(code);
  const auto address = reinterpret_cast<uint64_t>(pointer);
  *found = {};
  uint64_t base, nbytes;
  const int device = engine().device_of(address, &base, &nbytes);
  fake::Registration known;
  if (device >= 0) {
    found->type = 2, found->device = device;
    found->device_pointer = const_cast<void*>(pointer);
    return fake::kOk;
  }
  if (!engine().find_registration(address, &known))
    return engine().knob("unknown_is_error") != 0 ? end(fake::kInvalidValue) : static_cast<int>(fake::kOk);
  const uint64_t offset = address - (address - known.base < known.nbytes ? known.base : known.alias);
  found->type = 1;
  found->device_pointer = reinterpret_cast<void*>(known.alias + offset);
  found->host_pointer = reinterpret_cast<void*>(known.base + offset);
  return fake::kOk;
}

// By the device's addresses only.
API hipMemGetAddressRange(void** base, size_t* nbytes, void* pointer) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  uint64_t start = 0, size = 0;
  fake::Registration known;
  if (engine().device_of(address, &start, &size) < 0) {
    if (!engine().find_registration(address, &known) || address - known.alias >= known.nbytes)
      return end(fake::kInvalidValue);
    start = known.alias, size = known.nbytes;
  }
  *base = reinterpret_cast<void*>(start);
  *nbytes = size;
  return fake::kOk;
}

API hipHostRegister(void* base, size_t nbytes, unsigned flags) {
  if (const int code = begin("hipHostRegister")) return end(code);
  if ((flags & ~3u) != 0) return end(engine().refuse(fake::kInvalidValue, "hipHostRegister: flags"));
  return end(engine().add_registration(reinterpret_cast<uint64_t>(base), nbytes, false));
}

API hipHostUnregister(void* base) {
  if (const int code = begin("hipHostUnregister")) return end(code);
  return end(engine().remove_registration(reinterpret_cast<uint64_t>(base), false));
}

API hipHostGetDevicePointer(void** alias, void* host, unsigned flags) {
  fake::Registration known;
  const auto address = reinterpret_cast<uint64_t>(host);
  if (flags != 0 || !engine().find_registration(address, &known)) return end(fake::kInvalidValue);
  const uint64_t offset = address - (address - known.base < known.nbytes ? known.base : known.alias);
  *alias = reinterpret_cast<void*>(known.alias + offset);
  return fake::kOk;
}

API hipMalloc(void** memory, size_t nbytes) {
  if (const int code = begin("hipMalloc")) return end(code);
  if (nbytes == 0) return end(fake::kInvalidValue);
  *memory = reinterpret_cast<void*>(engine().allocate(current, nbytes));
  return end(*memory == nullptr ? fake::kOutOfMemory : fake::kOk);
}

API hipFree(void* memory) {
  if (const int code = begin("hipFree")) return end(code);
  return end(engine().release(reinterpret_cast<uint64_t>(memory)) ? fake::kOk : fake::kInvalidValue);
}

API hipHostMalloc(void** memory, size_t nbytes, unsigned flags) {
  if (const int code = begin("hipHostMalloc")) return end(code);
  if (nbytes == 0 || (flags & ~7u) != 0) return end(fake::kInvalidValue);
  *memory = engine().allocate_host(nbytes);
  return end(*memory == nullptr ? fake::kOutOfMemory : fake::kOk);
}

API hipHostFree(void* memory) {
  if (const int code = begin("hipHostFree")) return end(code);
  return end(engine().free_host(reinterpret_cast<uint64_t>(memory)));
}

API hipStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (const int code = begin("hipStreamCreateWithPriority")) return end(code);
  if (flags != 1)
    return end(engine().refuse(fake::kInvalidValue, "a stream that waits for the legacy default stream"));
  if (priority < 0) engine().note("high_priority_streams");
  *stream = engine().create_stream(current);
  return fake::kOk;
}

API hipStreamDestroy(void* stream) {
  if (const int code = begin("hipStreamDestroy")) return end(code);
  return end(engine().destroy_stream(stream));
}

API hipStreamSynchronize(void* handle) {
  if (const int code = begin("hipStreamSynchronize")) return end(code);
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipStreamSynchronize", handle, &stream)) return end(code);
  return end(engine().synchronize(stream, stream->submitted));
}

API hipStreamQuery(void* handle) {
  if (const int code = begin("hipStreamQuery")) return end(code);
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipStreamQuery", handle, &stream)) return end(code);
  return end(engine().query(stream, stream->submitted));
}

API hipStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
  if (const int code = begin("hipStreamWaitEvent")) return end(code);
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipStreamWaitEvent", handle, &stream, false)) return end(code);
  const fake::Event* event = engine().event_of(event_handle);
  if (event == nullptr || flags != 0) return end(fake::kInvalidHandle);
  return end(engine().make_wait(stream, *event));
}

API hipEventCreateWithFlags(void** event, unsigned flags) {
  if (const int code = begin("hipEventCreateWithFlags")) return end(code);
  if ((flags & 2) == 0) return end(engine().refuse(fake::kInvalidValue, "an event with timing"));
  *event = engine().create_event();
  return fake::kOk;
}

API hipEventDestroy(void* event) {
  if (const int code = begin("hipEventDestroy")) return end(code);
  return end(engine().destroy_event(event));
}

API hipEventRecord(void* event_handle, void* handle) {
  if (const int code = begin("hipEventRecord")) return end(code);
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipEventRecord", handle, &stream)) return end(code);
  fake::Event* event = engine().event_of(event_handle);
  return end(event == nullptr ? fake::kInvalidHandle : engine().record(event, stream));
}

API hipEventQuery(void* handle) {
  if (const int code = begin("hipEventQuery")) return end(code);
  const fake::Event* event = engine().event_of(handle);
  if (event == nullptr) return end(fake::kInvalidHandle);
  return end(event->stream == nullptr ? fake::kOk : engine().query(event->stream, event->position));
}

API hipEventSynchronize(void* handle) {
  if (const int code = begin("hipEventSynchronize")) return end(code);
  const fake::Event* event = engine().event_of(handle);
  if (event == nullptr) return end(fake::kInvalidHandle);
  return end(event->stream == nullptr ? fake::kOk : engine().synchronize(event->stream, event->position));
}

API hipMemcpyAsync(void* dst, const void* src, size_t nbytes, int kind, void* handle) {
  if (const int code = begin("hipMemcpyAsync")) return end(code);
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipMemcpyAsync", handle, &stream)) return end(code);
  if (kind < 0 || kind > 4 || !is_known(dst, src, nbytes))
    return end(engine().refuse(fake::kInvalidValue, "hipMemcpyAsync of memory that is not registered"));
  engine().submit(stream, copy(dst, src, nbytes));
  return fake::kOk;
}

API hipMemcpyBatchAsync(void** dst, void** src, size_t* nbytes, size_t count, CopyAttributes* attributes,
                        size_t* first, size_t number, size_t* failed, void* handle) {
  if (const int code = begin("hipMemcpyBatchAsync")) return end(code);
  return end(submit_batch(dst, src, nbytes, count, attributes, first, number, failed, handle));
}

API hipModuleLoadData(void** module, const void* image) {
  if (const int code = begin("hipModuleLoadData")) return end(code);
  if (image == nullptr || *static_cast<const char*>(image) == 0)
    return end(engine().refuse(fake::kInvalidImage, "an empty image"));
  *module = new int;
  return fake::kOk;
}

API hipModuleUnload(void* module) {
  if (const int code = begin("hipModuleUnload")) return end(code);
  delete static_cast<int*>(module);
  return fake::kOk;
}

API hipModuleGetFunction(void** function, void* module, const char* name) {
  if (const int code = begin("hipModuleGetFunction")) return end(code);
  if (module == nullptr || !fake::has_kernel(name, false)) return end(fake::kNotFound);
  std::lock_guard lock(functions_mutex);
  auto& known = functions[name];
  if (!known) known = std::make_unique<Function>(Function{name});
  *function = known.get();
  return fake::kOk;
}

// A launch finds what was left of an earlier error, as launches that ask for the last error do.
API hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void* handle, void** parameters,
                          void** extra) {
  if (const int code = begin("hipModuleLaunchKernel")) return end(code);
  if (last_error != 0) return engine().refuse(last_error, "a launch after an error that nobody asked for");
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("hipModuleLaunchKernel", handle, &stream)) return end(code);
  const bool one_dimension = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && extra == nullptr;
  if (function == nullptr || !one_dimension || grid_x == 0 || block_x == 0 || block_x > 1024 ||
      shared_bytes > 64 * 1024)
    return end(engine().refuse(fake::kInvalidValue, "shape of a launch"));
  const std::string& name = static_cast<Function*>(function)->name;
  engine().note("kernel:" + name);
  engine().note("blocks", grid_x);
  engine().submit(stream, {fake::bind_kernel(name, {grid_x, block_x, shared_bytes}, parameters), nullptr, 0});
  return fake::kOk;
}
