// libamdhip64.so.7 for machines without one: the calls that the core makes, over the emulated devices.
#include <functional>
#include <utility>

#include "fake_calls.h"
#include "fake_controls.h"

using fake::Call;
using fake::CopyAttributes;
using fake::engine;
using fake::is_device;

const char* const fake::kLibraryDefaults =
    "version=70253211,separate_aliases=1,least_priority=1,greatest_priority=-1,max_shared_bytes=65536,no_bulk=1";

namespace {

constexpr int64_t kAttributesVersion = 71300000;
constexpr size_t kMaxBatch = 8192;

thread_local int current = 0;
thread_local int last_error = 0;  // until somebody asks

int end(int code) {
  if (code != fake::kOk) last_error = code;
  return code;
}

// A call that fails while there is an error that stays, and whose own error is remembered.
template <class Step, class... Arguments>
int run(const char* name, Step step, Arguments... arguments) {
  engine().notes.note(name);
  if (const int code = engine().streams.sticky()) return end(code);
  return end(std::invoke(step, Call{name, current}, arguments...));
}

struct PointerAttributes {
  int type;
  int device;
  uint64_t device_pointer;
  uint64_t host_pointer;
  int is_managed;
  unsigned flags;
};

// Before 7.13 attributes are refused.
int check_attributes(const Call& call, const CopyAttributes* attributes, const size_t* first, size_t number,
                     size_t count) {
  if (number == 0) {
    if (engine().notes.knob("needs_attributes") == 0) return fake::kOk;
    return call.refuse(fake::kInvalidValue, "no attributes");
  }
  if (engine().notes.knob("version") < kAttributesVersion) return call.refuse(fake::kInvalidValue, "attributes");
  return call.check_attributes(attributes, first, number, count);
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

// ---- the runtime and its devices

API hipInit(unsigned flags) {
  engine().notes.note("hipInit");
  return end(flags != 0 ? fake::kInvalidValue : engine().device_count() == 0 ? fake::kNoDevice : fake::kOk);
}

API hipRuntimeGetVersion(int* version) {
  *version = static_cast<int>(engine().notes.knob("version"));
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
  *count = engine().device_count();
  return end(*count == 0 ? fake::kNoDevice : fake::kOk);
}

API hipSetDevice(int device) {
  engine().notes.note("hipSetDevice");
  if (!is_device(device)) return end(fake::kInvalidDevice);
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
  if (!is_device(device)) return end(fake::kInvalidDevice);
  std::memset(properties, 0, 1472);
  std::snprintf(properties, 256, "Emulated Instinct %d", device);
  std::snprintf(properties + 1160, 256, "gfx942:sramecc+:xnack-");
  return fake::kOk;
}

// ---- memory

API hipPointerGetAttributes(PointerAttributes* found, uint64_t address) {
  return run("hipPointerGetAttributes", [=](const Call&) {
    *found = {};
    const fake::Place place = engine().addresses.look_up(address);
    if (place.kind == fake::Place::kUnknown)
      return engine().notes.knob("unknown_is_error") != 0 ? fake::kInvalidValue : fake::kOk;
    found->type = place.kind;
    found->device_pointer = place.alias;
    if (place.kind == fake::Place::kDevice) found->device = place.device;
    if (place.kind == fake::Place::kHost) found->host_pointer = place.base + place.offset;
    return fake::kOk;
  });
}

// By the device's addresses only.
API hipMemGetAddressRange(uint64_t* base, size_t* nbytes, uint64_t address) {
  const fake::Place place = engine().addresses.look_up(address);
  if (place.kind == fake::Place::kUnknown || place.alias != address) return end(fake::kInvalidValue);
  *base = address - place.offset;
  *nbytes = place.nbytes;
  return fake::kOk;
}

API hipHostRegister(uint64_t base, size_t nbytes, unsigned flags) {
  return run("hipHostRegister", [=](const Call& call) {
    if ((flags & ~3u) != 0) return call.refuse(fake::kInvalidValue, "flags");
    return call.register_host(base, nbytes, false);
  });
}

API hipHostUnregister(uint64_t base) { return run("hipHostUnregister", &Call::unregister_host, base); }

API hipHostGetDevicePointer(uint64_t* alias, uint64_t host, unsigned flags) {
  return run("hipHostGetDevicePointer", &Call::host_alias, alias, host, flags);
}

API hipMalloc(uint64_t* memory, size_t nbytes) { return run("hipMalloc", &Call::allocate, memory, nbytes); }

API hipFree(uint64_t memory) { return run("hipFree", &Call::release, memory); }

API hipHostMalloc(uint64_t* memory, size_t nbytes, unsigned flags) {
  return run("hipHostMalloc", &Call::allocate_host, memory, nbytes, flags);
}

API hipHostFree(uint64_t memory) { return run("hipHostFree", &Call::free_host, memory); }

// ---- streams and events

API hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return run("hipDeviceGetStreamPriorityRange", &Call::priority_range, least, greatest);
}

API hipStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return run("hipStreamCreateWithPriority", &Call::create_stream, stream, flags, priority);
}

API hipStreamDestroy(void* stream) { return run("hipStreamDestroy", &Call::destroy_stream, stream); }

API hipStreamSynchronize(void* stream) { return run("hipStreamSynchronize", &Call::synchronize_stream, stream); }

API hipStreamQuery(void* stream) { return run("hipStreamQuery", &Call::query_stream, stream); }

API hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return run("hipStreamWaitEvent", &Call::wait_event, stream, event, flags);
}

API hipEventCreateWithFlags(void** event, unsigned flags) {
  return run("hipEventCreateWithFlags", &Call::create_event, event, flags);
}

API hipEventDestroy(void* event) { return run("hipEventDestroy", &Call::destroy_event, event); }

API hipEventRecord(void* event, void* stream) { return run("hipEventRecord", &Call::record_event, event, stream); }

API hipEventQuery(void* event) { return run("hipEventQuery", &Call::query_event, event); }

API hipEventSynchronize(void* event) { return run("hipEventSynchronize", &Call::synchronize_event, event); }

// ---- copies

API hipMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, int kind, void* stream) {
  return run("hipMemcpyAsync", [=](const Call& call) {
    if (kind < 0 || kind > 4) return call.refuse(fake::kInvalidValue, "kind of a copy");
    return call.copy(dst, src, nbytes, stream);
  });
}

API hipMemcpyBatchAsync(uint64_t* dst, uint64_t* src, size_t* nbytes, size_t count, CopyAttributes* attributes,
                        size_t* first, size_t number, size_t* failed, void* stream) {
  return run("hipMemcpyBatchAsync", [=](const Call& call) {
    if (count > kMaxBatch) {
      engine().streams.set_sticky(fake::kIllegalAddress);  // no device work of the process is of use from here on
      return call.refuse(fake::kIllegalAddress, "more than 8,192 copies");
    }
    if (const int code = check_attributes(call, attributes, first, number, count)) return code;
    return call.copy_batch(dst, src, nbytes, count, failed, stream);
  });
}

// ---- kernels

API hipModuleLoadData(void** module, const void* image) {
  return run("hipModuleLoadData", &Call::load_module, module, image);
}

API hipModuleUnload(void* module) { return run("hipModuleUnload", &Call::unload_module, module); }

API hipModuleGetFunction(void** function, void* module, const char* name) {
  return run("hipModuleGetFunction", &Call::find_function, function, module, name);
}

// A launch finds what was left of an earlier error, as launches that ask for the last error do.
API hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                          void** extra) {
  return run("hipModuleLaunchKernel", [=](const Call& call) {
    if (last_error != 0) return call.refuse(last_error, "after an error that nobody asked for");
    return call.launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream,
                       parameters, extra);
  });
}
