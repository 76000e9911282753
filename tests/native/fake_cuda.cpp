// libcuda.so.1 for machines without one: the calls that the core makes, over the emulated devices.
#include <atomic>
#include <functional>

#include "fake_calls.h"
#include "fake_controls.h"

using fake::Call;
using fake::CopyAttributes;
using fake::engine;
using fake::is_device;

const char* const fake::kLibraryDefaults =
    "version=12080,least_priority=0,greatest_priority=-5,max_shared_bytes=232448";

namespace {

struct Context {
  int device;
};
Context contexts[fake::kMaxDevices];
std::atomic<int> retained[fake::kMaxDevices];
std::atomic<bool> initialized{false};
thread_local Context* current = nullptr;

// A call that needs a context, and fails while there is an error that stays.
template <class Step, class... Arguments>
int run(const char* name, Step step, Arguments... arguments) {
  engine().notes.note(name);
  if (!initialized) return fake::kNotInitialized;
  if (current == nullptr) return Call{name, -1}.refuse(fake::kInvalidContext, "no context");
  if (const int code = engine().streams.sticky()) return code;
  return std::invoke(step, Call{name, current->device}, arguments...);
}

int find_attribute(const fake::Place& place, int attribute, void* value) {
  switch (attribute) {
    case 2: *static_cast<int*>(value) = place.kind; break;
    case 3: *static_cast<uint64_t*>(value) = place.alias; break;
    case 8: *static_cast<int*>(value) = 0; break;  // is it managed
    case 9: *static_cast<int*>(value) = place.kind == fake::Place::kHost ? 0 : place.device; break;
    case 11: *static_cast<uint64_t*>(value) = place.base; break;
    case 12: *static_cast<size_t*>(value) = place.nbytes; break;
    default: return fake::kInvalidValue;
  }
  return fake::kOk;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

// ---- the driver and its devices

API cuInit(unsigned flags) {
  engine().notes.note("cuInit");
  if (flags != 0) return fake::kInvalidValue;
  if (engine().device_count() == 0) return fake::kNoDevice;
  for (int i = 0; i < fake::kMaxDevices; ++i) contexts[i].device = i;
  initialized = true;
  return fake::kOk;
}

API cuDriverGetVersion(int* version) {
  *version = static_cast<int>(engine().notes.knob("version"));
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
  *count = engine().device_count();
  return initialized ? fake::kOk : fake::kNotInitialized;
}

API cuDeviceGet(int* device, int ordinal) {
  if (!is_device(ordinal)) return fake::kInvalidDevice;
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
  if (!is_device(device)) return fake::kInvalidDevice;
  switch (attribute) {
    case 16: *value = 132; break;  // multiprocessors
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 113: *value = engine().notes.knob("no_read_only") == 0; break;  // read-only registration
    default: return fake::kInvalidValue;
  }
  return fake::kOk;
}

// ---- contexts

API cuDevicePrimaryCtxRetain(Context** context, int device) {
  engine().notes.note("cuDevicePrimaryCtxRetain");
  if (!initialized) return fake::kNotInitialized;
  if (!is_device(device)) return fake::kInvalidDevice;
  ++retained[device];
  *context = &contexts[device];
  return fake::kOk;
}

API cuDevicePrimaryCtxRelease_v2(int device) {
  engine().notes.note("cuDevicePrimaryCtxRelease");
  return --retained[device] < 0 ? fake::kInvalidContext : fake::kOk;
}

API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!is_device(device)) return fake::kInvalidDevice;
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

// ---- memory

API cuPointerGetAttributes(unsigned number, int* attributes, void** values, uint64_t address) {
  return run("cuPointerGetAttributes", [=](const Call&) {
    const fake::Place place = engine().addresses.look_up(address);
    for (unsigned i = 0; i < number; ++i)
      if (const int code = find_attribute(place, attributes[i], values[i])) return code;
    return static_cast<int>(fake::kOk);
  });
}

API cuMemHostRegister_v2(uint64_t base, size_t nbytes, unsigned flags) {
  return run("cuMemHostRegister", [=](const Call& call) {
    if ((flags & ~0xfu) != 0) return static_cast<int>(fake::kInvalidValue);
    const bool read_only = (flags & 8) != 0;
    if (read_only && engine().notes.knob("no_read_only") != 0)
      return call.refuse(fake::kNotSupported, "a read-only map");
    const int code = call.register_host(base, nbytes, read_only);
    if (code == fake::kAlreadyRegistered) engine().streams.set_sticky(code);
    return code;
  });
}

API cuMemHostUnregister(uint64_t base) { return run("cuMemHostUnregister", &Call::unregister_host, base); }

API cuMemHostGetDevicePointer_v2(uint64_t* alias, uint64_t address, unsigned flags) {
  return run("cuMemHostGetDevicePointer", &Call::host_alias, alias, address, flags);
}

API cuMemAlloc_v2(uint64_t* address, size_t nbytes) { return run("cuMemAlloc", &Call::allocate, address, nbytes); }

API cuMemFree_v2(uint64_t address) { return run("cuMemFree", &Call::release, address); }

API cuMemHostAlloc(uint64_t* memory, size_t nbytes, unsigned flags) {
  return run("cuMemHostAlloc", &Call::allocate_host, memory, nbytes, flags);
}

API cuMemFreeHost(uint64_t memory) { return run("cuMemFreeHost", &Call::free_host, memory); }

// ---- streams and events

API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return run("cuCtxGetStreamPriorityRange", &Call::priority_range, least, greatest);
}

API cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return run("cuStreamCreateWithPriority", &Call::create_stream, stream, flags, priority);
}

API cuStreamDestroy_v2(void* stream) { return run("cuStreamDestroy", &Call::destroy_stream, stream); }

API cuStreamSynchronize(void* stream) { return run("cuStreamSynchronize", &Call::synchronize_stream, stream); }

API cuStreamQuery(void* stream) { return run("cuStreamQuery", &Call::query_stream, stream); }

API cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return run("cuStreamWaitEvent", &Call::wait_event, stream, event, flags);
}

API cuEventCreate(void** event, unsigned flags) { return run("cuEventCreate", &Call::create_event, event, flags); }

API cuEventDestroy_v2(void* event) { return run("cuEventDestroy", &Call::destroy_event, event); }

API cuEventRecord(void* event, void* stream) { return run("cuEventRecord", &Call::record_event, event, stream); }

API cuEventQuery(void* event) { return run("cuEventQuery", &Call::query_event, event); }

API cuEventSynchronize(void* event) { return run("cuEventSynchronize", &Call::synchronize_event, event); }

// ---- copies

API cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void* stream) {
  return run("cuMemcpyAsync", &Call::copy, dst, src, nbytes, stream);
}

// As of driver 12.8; found through cuGetProcAddress only.
static int batch_12080(uint64_t* dst, uint64_t* src, size_t* nbytes, size_t count, CopyAttributes* attributes,
                       size_t* first, size_t number, size_t* failed, void* stream) {
  return run("cuMemcpyBatchAsync", [=](const Call& call) {
    *failed = SIZE_MAX;
    if (const int code = call.check_attributes(attributes, first, number, count)) return code;
    return call.copy_batch(dst, src, nbytes, count, failed, stream);
  });
}

API cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  (void)flags;
  const bool there = std::string(name) == "cuMemcpyBatchAsync" && version == 12080 &&
                     engine().notes.knob("version") >= 12080;
  *function = there ? reinterpret_cast<void*>(&batch_12080) : nullptr;
  if (status != nullptr) *status = there ? 0 : 1;
  return there ? fake::kOk : fake::kNotFound;
}

// ---- kernels

API cuModuleLoadData(void** module, const void* image) {
  return run("cuModuleLoadData", &Call::load_module, module, image);
}

API cuModuleUnload(void* module) { return run("cuModuleUnload", &Call::unload_module, module); }

API cuModuleGetFunction(void** function, void* module, const char* name) {
  return run("cuModuleGetFunction", &Call::find_function, function, module, name);
}

API cuFuncSetAttribute(void* function, int attribute, int value) {
  return run("cuFuncSetAttribute", [=](const Call&) {
    const bool fits = value >= 0 && value <= engine().notes.knob("max_shared_bytes");
    return function != nullptr && attribute == 8 && fits ? fake::kOk : fake::kInvalidValue;
  });
}

API cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                   void** extra) {
  return run("cuLaunchKernel", &Call::launch, function, fake::Grid{grid_x, grid_y, grid_z},
             fake::Grid{block_x, block_y, block_z}, shared_bytes, stream, parameters, extra);
}
