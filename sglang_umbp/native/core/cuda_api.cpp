// The CUDA driver API, by its C ABI: nothing of the toolkit is needed to compile this. What it does as HIP does is in
// device_runtime.cpp; contexts, pointer attributes and read-only registrations are its own.
#include <array>
#include <atomic>
#include <mutex>

#include "device_runtime.h"
#include "errors.h"

namespace umbp {
namespace {

using Context = void*;

constexpr RuntimeCode kNotInitialized = 3, kDeinitialized = 4, kInvalidContext = 201;
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kReadOnlyRegister = 113;  // device attributes
constexpr int kMemoryType = 2, kDeviceAddress = 3, kIsManaged = 8, kOrdinal = 9;         // pointer attributes
constexpr int kRangeStart = 11, kRangeSize = 12;
constexpr unsigned kTypeHost = 1, kTypeDevice = 2;
constexpr unsigned kReadOnly = 8;   // of a registration
constexpr int kMaxSharedBytes = 8;  // function attribute
constexpr int kBatchVersion = 12080;
constexpr size_t kMaxBatch = size_t{1} << 20;  // the driver names no limit
constexpr int kMaxDevices = 64;

// Only drivers from 12.8 have it, and with these parameters only under this version.
void find_copy_batch(const DeviceLibrary& library, RuntimeEntries& entries) {
  using Find = RuntimeCode(const char*, void**, int, uint64_t, int*);
  auto* const find = reinterpret_cast<Find*>(library.find("cuGetProcAddress_v2"));
  void* found = nullptr;
  int status = 0;
  entries.copy_batch.name = "cuMemcpyBatchAsync";
  if (find == nullptr || find("cuMemcpyBatchAsync", &found, kBatchVersion, 0, &status) != kRuntimeSuccess) return;
  entries.copy_batch.function = reinterpret_cast<decltype(entries.copy_batch.function)>(found);
}

RuntimeEntries bind_entries(const DeviceLibrary& library) {
  RuntimeEntries entries;
  library.bind(entries.init, "cuInit");
  library.bind(entries.version, "cuDriverGetVersion");
  library.bind(entries.device_count, "cuDeviceGetCount");
  library.bind(entries.device_name, "cuDeviceGetName");
  library.bind(entries.device_bus_id, "cuDeviceGetPCIBusId");
  library.bind(entries.device_attribute, "cuDeviceGetAttribute");
  library.bind(entries.priority_range, "cuCtxGetStreamPriorityRange");
  library.bind(entries.host_register, "cuMemHostRegister_v2");
  library.bind(entries.host_unregister, "cuMemHostUnregister");
  library.bind(entries.host_alias, "cuMemHostGetDevicePointer_v2");
  library.bind(entries.allocate, "cuMemAlloc_v2");
  library.bind(entries.free, "cuMemFree_v2");
  library.bind(entries.host_allocate, "cuMemHostAlloc");
  library.bind(entries.host_free, "cuMemFreeHost");
  library.bind(entries.stream_create, "cuStreamCreateWithPriority");
  library.bind(entries.stream_destroy, "cuStreamDestroy_v2");
  library.bind(entries.stream_synchronize, "cuStreamSynchronize");
  library.bind(entries.stream_query, "cuStreamQuery");
  library.bind(entries.stream_wait, "cuStreamWaitEvent");
  library.bind(entries.event_create, "cuEventCreate");
  library.bind(entries.event_destroy, "cuEventDestroy_v2");
  library.bind(entries.event_record, "cuEventRecord");
  library.bind(entries.event_query, "cuEventQuery");
  library.bind(entries.event_synchronize, "cuEventSynchronize");
  library.bind(entries.module_load, "cuModuleLoadData");
  library.bind(entries.module_unload, "cuModuleUnload");
  library.bind(entries.module_function, "cuModuleGetFunction");
  library.bind(entries.launch, "cuLaunchKernel");
  find_copy_batch(library, entries);
  return entries;
}

// What only CUDA has, or has in another form.
struct CudaEntries {
  explicit CudaEntries(const DeviceLibrary& library) {
    library.bind(error_name, "cuGetErrorName");
    library.bind(error_string, "cuGetErrorString");
    library.bind(context_retain, "cuDevicePrimaryCtxRetain");
    library.bind(context_release, "cuDevicePrimaryCtxRelease_v2");
    library.bind(context_state, "cuDevicePrimaryCtxGetState");
    library.bind(context_set, "cuCtxSetCurrent");
    library.bind(context_get, "cuCtxGetCurrent");
    library.bind(pointer_attributes, "cuPointerGetAttributes");
    library.bind(copy, "cuMemcpyAsync");
    library.bind(function_attribute, "cuFuncSetAttribute");
  }

  Entry<RuntimeCode(RuntimeCode, const char**)> error_name;
  Entry<RuntimeCode(RuntimeCode, const char**)> error_string;
  Entry<RuntimeCode(Context*, int)> context_retain;
  Entry<RuntimeCode(int)> context_release;
  Entry<RuntimeCode(int, unsigned*, int*)> context_state;
  Entry<RuntimeCode(Context)> context_set;
  Entry<RuntimeCode(Context*)> context_get;
  Entry<RuntimeCode(unsigned, int*, void**, uint64_t)> pointer_attributes;
  Entry<RuntimeCode(uint64_t, uint64_t, size_t, StreamHandle)> copy;
  Entry<RuntimeCode(FunctionHandle, int, int)> function_attribute;
};

class CudaApi final : public DeviceRuntime {
 public:
  explicit CudaApi(const DeviceLibrary& library) : DeviceRuntime(bind_entries(library)), cuda_(library) {
    start(library.path(), kMaxDevices);
  }
  ~CudaApi() override {
    for (int device = 0; device < kMaxDevices; ++device)
      if (contexts_[device].load() != nullptr) cuda_.context_release.function(device);
  }

  const char* name() const override { return "cuda"; }
  std::string version() const override {
    return std::to_string(version_number() / 1000) + "." + std::to_string(version_number() % 1000 / 10);
  }

  DeviceProperties properties(int device) override {
    DeviceProperties found = common_properties(device, kMultiprocessors);
    found.major = attribute(device, kMajor);
    found.minor = attribute(device, kMinor);
    found.architecture = "sm_" + std::to_string(found.major) + std::to_string(found.minor);
    return found;
  }

  PointerInfo pointer(uint64_t address) override {
    if (!enter_any()) return {};  // no context at all: nothing is device memory or pinned
    unsigned type = 0, managed = 0;
    uint64_t alias = 0, base = 0;
    int ordinal = -1;
    size_t nbytes = 0;
    int wanted[] = {kMemoryType, kDeviceAddress, kIsManaged, kOrdinal, kRangeStart, kRangeSize};
    void* values[] = {&type, &alias, &managed, &ordinal, &base, &nbytes};
    const RuntimeCode code = cuda_.pointer_attributes.function(6, wanted, values, address);
    if (code == kInvalidContext || code == kNotInitialized || code == kDeinitialized) return {};
    if (code != kRuntimeSuccess) fail(code, cuda_.pointer_attributes.name);
    // Managed memory is copied by the host: it may be anywhere.
    if (managed != 0 || (type != kTypeHost && type != kTypeDevice)) return {MemoryKind::kHost, -1, 0, base, nbytes};
    if (type == kTypeDevice) return {MemoryKind::kDevice, ordinal, alias, base, nbytes};
    return {MemoryKind::kPinnedHost, -1, alias, base, nbytes};
  }

  void copy_async(int device, uint64_t dst, uint64_t src, uint64_t nbytes, StreamHandle stream) override {
    enter_stream(device, stream);
    check(cuda_.copy.function(dst, src, nbytes, stream), cuda_.copy.name, dst, nbytes);
  }
  size_t max_batch() const override { return entries().copy_batch.function == nullptr ? 0 : kMaxBatch; }
  void copy_batch_async(int device, std::span<const uint64_t> dst, std::span<const uint64_t> src,
                        std::span<const uint64_t> nbytes, CopyDirection, StreamHandle stream) override {
    const std::string& name = entries().copy_batch.name;
    if (max_batch() == 0) throw DeviceError(name + ": this driver is older than 12.8");
    enter_stream(device, stream);
    size_t failed = 0;
    const RuntimeCode code = submit_batch(dst, src, nbytes, true, stream, &failed);
    if (code == kRuntimeSuccess) return;
    if (failed < dst.size()) fail(code, name, dst[failed], nbytes[failed]);
    fail(code, batch_of(name, dst.size()));
  }

  void allow_shared_bytes(FunctionHandle function, unsigned shared_bytes) override {
    enter_any();
    call(cuda_.function_attribute, function, kMaxSharedBytes, static_cast<int>(shared_bytes));
  }

 private:
  void enter(int device) override {
    const Context wanted = context(device);
    Context current = nullptr;
    call(cuda_.context_get, &current);
    if (current != wanted) call(cuda_.context_set, wanted);
  }
  // None is made: a primary context costs hundreds of MB of a device that this process may have no business with.
  // False: no device has one.
  bool enter_any() override {
    Context current = nullptr;
    call(cuda_.context_get, &current);
    if (current != nullptr) return true;
    for (int device = 0; device < device_count(); ++device) {
      unsigned flags = 0;
      int active = 0;
      call(cuda_.context_state, device, &flags, &active);
      if (active == 0) continue;
      enter(device);
      return true;
    }
    return false;
  }
  // The primary context is the one that every library of the process shares.
  Context context(int device) {
    check_device(device);
    Context known = contexts_[device].load(std::memory_order_acquire);
    if (known != nullptr) return known;
    std::lock_guard lock(retaining_);
    known = contexts_[device].load(std::memory_order_acquire);
    if (known != nullptr) return known;
    call(cuda_.context_retain, &known, device);
    contexts_[device].store(known, std::memory_order_release);
    return known;
  }

  ErrorText describe(RuntimeCode code) const override {
    ErrorText error{nullptr, nullptr};
    cuda_.error_name.function(code, &error.name);
    cuda_.error_string.function(code, &error.text);
    return error;
  }

  unsigned read_only_flag(int device) override {
    if (attribute(device, kReadOnlyRegister) == 0)
      throw DeviceError(entries().host_register.name + ": device " + std::to_string(device) +
                        " cannot read a read-only map");
    return kReadOnly;
  }

  CudaEntries cuda_;
  std::mutex retaining_;
  std::array<std::atomic<Context>, kMaxDevices> contexts_{};
};

}  // namespace

std::unique_ptr<DeviceApi> load_cuda(const std::string& path) {
  return std::make_unique<CudaApi>(DeviceLibrary(path));
}

}  // namespace umbp
