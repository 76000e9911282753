// libcuda.so.1 for machines without one: the calls that the core makes, over the emulated devices.
#include "fake_engine.h"

using fake::Engine;

const char* const fake::kLibraryDefaults = "version=12080";

namespace {

struct Context {
  int device;
};
Context contexts[fake::kMaxDevices];
std::atomic<int> retained[fake::kMaxDevices];
std::atomic<bool> initialized{false};
thread_local Context* current = nullptr;

struct Module {};
struct Function {
  std::string name;
};
std::mutex functions_mutex;
std::map<std::string, std::unique_ptr<Function>> functions;

Engine& engine() { return Engine::get(); }

int device_count() { return static_cast<int>(engine().knob("devices")); }

// What every call that needs a context checks first.
int begin(const char* name) {
  engine().note(name);
  if (!initialized) return fake::kNotInitialized;
  if (current == nullptr) return engine().refuse(fake::kInvalidContext, std::string(name) + " without a context");
  return engine().sticky();
}

// The stream of a call that must have one of the current context; the legacy default stream is refused.
int find_stream(const char* name, void* handle, std::shared_ptr<fake::Stream>* stream, bool here = true) {
  if (reinterpret_cast<uintptr_t>(handle) <= 2)
    return engine().refuse(fake::kInvalidHandle, std::string(name) + " on the legacy default stream");
  *stream = engine().stream_of(handle);
  if (*stream == nullptr) return engine().refuse(fake::kInvalidHandle, std::string(name) + ": no such stream");
  if (here && (*stream)->device != current->device)
    return engine().refuse(fake::kInvalidHandle, std::string(name) + ": stream of another context");
  return fake::kOk;
}

bool is_known(uint64_t dst, uint64_t src, uint64_t nbytes) {
  return engine().is_known(dst, nbytes) && engine().is_known(src, nbytes);
}

struct Location {
  int type;
  int id;
};
struct CopyAttributes {
  int source_order;
  Location source;
  Location destination;
  unsigned flags;
};

int check_attributes(const CopyAttributes* attributes, const size_t* first, size_t number, size_t count) {
  if (number == 0 || attributes == nullptr || first == nullptr || number > count || first[0] != 0)
    return engine().refuse(fake::kInvalidValue, "cuMemcpyBatchAsync: attributes");
  for (size_t i = 0; i < number; ++i) {
    const bool ordered = attributes[i].source_order == 1 || attributes[i].source_order == 3;
    if (!ordered || (i > 0 && first[i] <= first[i - 1]) || first[i] >= count)
      return engine().refuse(fake::kInvalidValue, "cuMemcpyBatchAsync: order of an attribute");
  }
  return fake::kOk;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API cuInit(unsigned flags) {
  engine().note("cuInit");
  if (flags != 0) return fake::kInvalidValue;
  if (device_count() == 0) return fake::kNoDevice;
  for (int i = 0; i < fake::kMaxDevices; ++i) contexts[i].device = i;
  initialized = true;
  return fake::kOk;
}

API cuDriverGetVersion(int* version) {
  *version = static_cast<int>(engine().knob("version"));
  return fake::kOk;
}

API cuGetErrorName(int code, const char** name) {
  switch (code) {
    case fake::kInvalidValue: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case fake::kOutOfMemory: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case fake::kNoDevice: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case fake::kInvalidContext: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case fake::kInvalidHandle: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case fake::kNotFound: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case fake::kIllegalAddress: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case fake::kAlreadyRegistered: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; break;
    default: *name = nullptr; return fake::kInvalidValue;
  }
  return fake::kOk;
}

API cuGetErrorString(int code, const char** text) {
  *text = "emulated";
  return code < 1000 ? fake::kOk : fake::kInvalidValue;
}

API cuDeviceGetCount(int* count) {
  *count = device_count();
  return initialized ? fake::kOk : fake::kNotInitialized;
}

API cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return fake::kInvalidDevice;
  *device = ordinal;
  return fake::kOk;
}

API cuDeviceGetName(char* name, int length, int device) {
  std::snprintf(name, length, "Emulated GPU %d", device);
  return fake::kOk;
}

API cuDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, length, "0000:%02X:00.0", 0x3b + device);
  return fake::kOk;
}

API cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= device_count()) return fake::kInvalidDevice;
  switch (attribute) {
    case 16: *value = 132; break;  // multiprocessors
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 113: *value = engine().knob("no_read_only") == 0; break;  // read-only registration
    default: return fake::kInvalidValue;
  }
  return fake::kOk;
}

API cuDevicePrimaryCtxRetain(Context** context, int device) {
  engine().note("cuDevicePrimaryCtxRetain");
  if (!initialized) return fake::kNotInitialized;
  if (device < 0 || device >= device_count()) return fake::kInvalidDevice;
  ++retained[device];
  *context = &contexts[device];
  return fake::kOk;
}

API cuDevicePrimaryCtxRelease_v2(int device) {
  engine().note("cuDevicePrimaryCtxRelease");
  return --retained[device] < 0 ? fake::kInvalidContext : fake::kOk;
}

API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (device < 0 || device >= device_count()) return fake::kInvalidDevice;
  *flags = 0;
  *active = retained[device] > 0;
  return fake::kOk;
}

API cuCtxSetCurrent(Context* context) {
  current = context;
  return fake::kOk;
}

API cuCtxGetCurrent(Context** context) {
  *context = current;
  return fake::kOk;
}

API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return begin("cuCtxGetStreamPriorityRange");
}

API cuPointerGetAttributes(unsigned number, int* attributes, void** values, uint64_t address) {
  if (const int code = begin("cuPointerGetAttributes")) return code;
  uint64_t base = 0, nbytes = 0;
  const int device = engine().device_of(address, &base, &nbytes);
  fake::Registration known;
  const bool host = device < 0 && engine().find_registration(address, &known);
  if (host) base = known.base, nbytes = known.nbytes;
  for (unsigned i = 0; i < number; ++i) {
    const bool is_alias = host && address - known.base >= known.nbytes;
    const uint64_t offset = address - (is_alias ? known.alias : base);
    switch (attributes[i]) {
      case 2: *static_cast<int*>(values[i]) = device >= 0 ? 2 : host ? 1 : 0; break;
      case 3: *static_cast<uint64_t*>(values[i]) = device >= 0 ? address : host ? known.alias + offset : 0; break;
      case 8: *static_cast<int*>(values[i]) = 0; break;
      case 9: *static_cast<int*>(values[i]) = device >= 0 ? device : host ? 0 : -2; break;
      case 11: *static_cast<uint64_t*>(values[i]) = base; break;
      case 12: *static_cast<size_t*>(values[i]) = nbytes; break;
      default: return fake::kInvalidValue;
    }
  }
  return fake::kOk;
}

API cuMemHostRegister_v2(void* base, size_t nbytes, unsigned flags) {
  if (const int code = begin("cuMemHostRegister")) return code;
  if ((flags & ~0xfu) != 0) return fake::kInvalidValue;
  const bool read_only = (flags & 8) != 0;
  if (read_only && engine().knob("no_read_only") != 0)
    return engine().refuse(fake::kNotSupported, "read-only registration");
  const int code = engine().add_registration(reinterpret_cast<uint64_t>(base), nbytes, read_only);
  if (code == fake::kAlreadyRegistered) engine().set_sticky(code);
  return code;
}

API cuMemHostUnregister(void* base) {
  if (const int code = begin("cuMemHostUnregister")) return code;
  return engine().remove_registration(reinterpret_cast<uint64_t>(base), false);
}

API cuMemHostGetDevicePointer_v2(uint64_t* alias, void* address, unsigned flags) {
  if (const int code = begin("cuMemHostGetDevicePointer")) return code;
  fake::Registration known;
  const auto at = reinterpret_cast<uint64_t>(address);
  if (flags != 0 || !engine().find_registration(at, &known)) return fake::kInvalidValue;
  *alias = known.alias + (at - known.base);
  return fake::kOk;
}

API cuMemAlloc_v2(uint64_t* address, size_t nbytes) {
  if (const int code = begin("cuMemAlloc")) return code;
  if (nbytes == 0) return fake::kInvalidValue;
  *address = engine().allocate(current->device, nbytes);
  return *address == 0 ? fake::kOutOfMemory : fake::kOk;
}

API cuMemFree_v2(uint64_t address) {
  if (const int code = begin("cuMemFree")) return code;
  return engine().release(address) ? fake::kOk : fake::kInvalidValue;
}

API cuMemHostAlloc(void** memory, size_t nbytes, unsigned flags) {
  if (const int code = begin("cuMemHostAlloc")) return code;
  if (nbytes == 0 || (flags & ~7u) != 0) return fake::kInvalidValue;
  *memory = engine().allocate_host(nbytes);
  return *memory == nullptr ? fake::kOutOfMemory : fake::kOk;
}

API cuMemFreeHost(void* memory) {
  if (const int code = begin("cuMemFreeHost")) return code;
  return engine().free_host(reinterpret_cast<uint64_t>(memory));
}

API cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (const int code = begin("cuStreamCreateWithPriority")) return code;
  if (flags != 1) return engine().refuse(fake::kInvalidValue, "a stream that waits for the legacy default stream");
  if (priority < -5 || priority > 0) return fake::kInvalidValue;
  if (priority < 0) engine().note("high_priority_streams");
  *stream = engine().create_stream(current->device);
  return fake::kOk;
}

API cuStreamDestroy_v2(void* stream) {
  if (const int code = begin("cuStreamDestroy")) return code;
  return engine().destroy_stream(stream);
}

API cuStreamSynchronize(void* handle) {
  if (const int code = begin("cuStreamSynchronize")) return code;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuStreamSynchronize", handle, &stream)) return code;
  return engine().synchronize(stream, stream->submitted);
}

API cuStreamQuery(void* handle) {
  if (const int code = begin("cuStreamQuery")) return code;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuStreamQuery", handle, &stream)) return code;
  return engine().query(stream, stream->submitted);
}

API cuStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
  if (const int code = begin("cuStreamWaitEvent")) return code;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuStreamWaitEvent", handle, &stream, false)) return code;
  const fake::Event* event = engine().event_of(event_handle);
  if (event == nullptr || flags != 0) return fake::kInvalidHandle;
  return engine().make_wait(stream, *event);
}

API cuEventCreate(void** event, unsigned flags) {
  if (const int code = begin("cuEventCreate")) return code;
  if ((flags & 2) == 0) return engine().refuse(fake::kInvalidValue, "an event with timing");
  *event = engine().create_event();
  return fake::kOk;
}

API cuEventDestroy_v2(void* event) {
  if (const int code = begin("cuEventDestroy")) return code;
  return engine().destroy_event(event);
}

API cuEventRecord(void* event_handle, void* handle) {
  if (const int code = begin("cuEventRecord")) return code;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuEventRecord", handle, &stream)) return code;
  fake::Event* event = engine().event_of(event_handle);
  return event == nullptr ? fake::kInvalidHandle : engine().record(event, stream);
}

API cuEventQuery(void* handle) {
  if (const int code = begin("cuEventQuery")) return code;
  const fake::Event* event = engine().event_of(handle);
  if (event == nullptr) return fake::kInvalidHandle;
  return event->stream == nullptr ? fake::kOk : engine().query(event->stream, event->position);
}

API cuEventSynchronize(void* handle) {
  if (const int code = begin("cuEventSynchronize")) return code;
  const fake::Event* event = engine().event_of(handle);
  if (event == nullptr) return fake::kInvalidHandle;
  return event->stream == nullptr ? fake::kOk : engine().synchronize(event->stream, event->position);
}

API cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void* handle) {
  if (const int code = begin("cuMemcpyAsync")) return code;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuMemcpyAsync", handle, &stream)) return code;
  if (!is_known(dst, src, nbytes))
    return engine().refuse(fake::kInvalidValue, "cuMemcpyAsync of memory that is not registered");
  engine().submit(stream, engine().copy(dst, src, nbytes));
  return fake::kOk;
}

// As of driver 12.8; found through cuGetProcAddress only.
static int batch_12080(uint64_t* dst, uint64_t* src, size_t* nbytes, size_t count, CopyAttributes* attributes,
                       size_t* first, size_t number, size_t* failed, void* handle) {
  if (const int code = begin("cuMemcpyBatchAsync")) return code;
  engine().note("descriptors", count);
  *failed = SIZE_MAX;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuMemcpyBatchAsync", handle, &stream)) return code;
  if (count == 0) return engine().refuse(fake::kInvalidValue, "cuMemcpyBatchAsync of nothing");
  if (const int code = check_attributes(attributes, first, number, count)) return code;
  for (size_t i = 0; i < count; ++i) {
    if (nbytes[i] != 0 && is_known(dst[i], src[i], nbytes[i])) continue;
    *failed = i;
    return engine().refuse(fake::kInvalidValue, "cuMemcpyBatchAsync of memory that is not registered");
  }
  for (size_t i = 0; i < count; ++i) engine().submit(stream, engine().copy(dst[i], src[i], nbytes[i]));
  return fake::kOk;
}

API cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  (void)flags;
  int driver;
  cuDriverGetVersion(&driver);
  const bool there = std::string(name) == "cuMemcpyBatchAsync" && version == 12080 && driver >= 12080;
  *function = there ? reinterpret_cast<void*>(&batch_12080) : nullptr;
  if (status != nullptr) *status = there ? 0 : 1;
  return there ? fake::kOk : fake::kNotFound;
}

API cuModuleLoadData(void** module, const void* image) {
  if (const int code = begin("cuModuleLoadData")) return code;
  if (image == nullptr || *static_cast<const char*>(image) == 0)
    return engine().refuse(fake::kInvalidImage, "an empty image");
  *module = new Module;
  return fake::kOk;
}

API cuModuleUnload(void* module) {
  if (const int code = begin("cuModuleUnload")) return code;
  delete static_cast<Module*>(module);
  return fake::kOk;
}

API cuModuleGetFunction(void** function, void* module, const char* name) {
  if (const int code = begin("cuModuleGetFunction")) return code;
  if (module == nullptr || !fake::has_kernel(name, engine().knob("no_bulk") == 0)) return fake::kNotFound;
  std::lock_guard lock(functions_mutex);
  auto& known = functions[name];
  if (!known) known = std::make_unique<Function>(Function{name});
  *function = known.get();
  return fake::kOk;
}

API cuFuncSetAttribute(void* function, int attribute, int value) {
  if (const int code = begin("cuFuncSetAttribute")) return code;
  return function == nullptr || attribute != 8 || value < 0 || value > 227 * 1024 ? fake::kInvalidValue : fake::kOk;
}

API cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* handle, void** parameters,
                   void** extra) {
  if (const int code = begin("cuLaunchKernel")) return code;
  std::shared_ptr<fake::Stream> stream;
  if (const int code = find_stream("cuLaunchKernel", handle, &stream)) return code;
  const bool one_dimension = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && extra == nullptr;
  if (function == nullptr || !one_dimension || grid_x == 0 || block_x == 0 || block_x > 1024 ||
      shared_bytes > 227 * 1024)
    return engine().refuse(fake::kInvalidValue, "shape of a launch");
  const std::string& name = static_cast<Function*>(function)->name;
  engine().note("kernel:" + name);
  engine().note("blocks", grid_x);
  engine().submit(stream, {fake::bind_kernel(name, {grid_x, block_x, shared_bytes}, parameters), nullptr, 0});
  return fake::kOk;
}
