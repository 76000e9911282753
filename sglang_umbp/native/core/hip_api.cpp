// The HIP runtime by its C ABI, as of ROCm 6 and later. What it does as CUDA does is in device_runtime.cpp; the current
// device, pointer attributes, remembered errors and what versions differ in is its own.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "device_runtime.h"
#include "errors.h"

namespace umbp {
namespace {

constexpr RuntimeCode kInvalidValue = 1, kNotSupported = 801;
constexpr int kOldestVersion = 60000000;       // before it the kinds of memory had other numbers
constexpr int kAttributesVersion = 71300000;   // from here on a batch may have attributes
constexpr int kMultiprocessors = 63;           // device attribute
constexpr int kTypeHost = 1, kTypeDevice = 2;  // of memory
constexpr int kByAddress = 4;                  // hipMemcpyDefault
constexpr size_t kMaxBatch = 8192;             // one more and the call faults

struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  int is_managed;
  unsigned flags;
};

// hipDeviceProp_tR0600, of which one name is wanted.
struct Properties {
  char before[1160];
  char architecture[256];
  char after[4096];  // it is 1,472 bytes in all so far
};

RuntimeEntries bind_entries(const DeviceLibrary& library) {
  RuntimeEntries entries;
  library.bind(entries.init, "hipInit");
  library.bind(entries.version, "hipRuntimeGetVersion");
  library.bind(entries.device_count, "hipGetDeviceCount");
  library.bind(entries.device_name, "hipDeviceGetName");
  library.bind(entries.device_bus_id, "hipDeviceGetPCIBusId");
  library.bind(entries.device_attribute, "hipDeviceGetAttribute");
  library.bind(entries.priority_range, "hipDeviceGetStreamPriorityRange");
  library.bind(entries.host_register, "hipHostRegister");
  library.bind(entries.host_unregister, "hipHostUnregister");
  library.bind(entries.host_alias, "hipHostGetDevicePointer");
  library.bind(entries.allocate, "hipMalloc");
  library.bind(entries.free, "hipFree");
  library.bind(entries.host_allocate, "hipHostMalloc");
  library.bind(entries.host_free, "hipHostFree");
  library.bind(entries.stream_create, "hipStreamCreateWithPriority");
  library.bind(entries.stream_destroy, "hipStreamDestroy");
  library.bind(entries.stream_synchronize, "hipStreamSynchronize");
  library.bind(entries.stream_query, "hipStreamQuery");
  library.bind(entries.stream_wait, "hipStreamWaitEvent");
  library.bind(entries.event_create, "hipEventCreateWithFlags");
  library.bind(entries.event_destroy, "hipEventDestroy");
  library.bind(entries.event_record, "hipEventRecord");
  library.bind(entries.event_query, "hipEventQuery");
  library.bind(entries.event_synchronize, "hipEventSynchronize");
  library.bind(entries.module_load, "hipModuleLoadData");
  library.bind(entries.module_unload, "hipModuleUnload");
  library.bind(entries.module_function, "hipModuleGetFunction");
  library.bind(entries.launch, "hipModuleLaunchKernel");
  entries.copy_batch.name = "hipMemcpyBatchAsync";  // ROCm 7.1 and later
  entries.copy_batch.function =
      reinterpret_cast<decltype(entries.copy_batch.function)>(library.find("hipMemcpyBatchAsync"));
  return entries;
}

// What only HIP has, or has in another form.
struct HipEntries {
  explicit HipEntries(const DeviceLibrary& library) {
    library.bind(error_name, "hipGetErrorName");
    library.bind(error_string, "hipGetErrorString");
    library.bind(last_error, "hipGetLastError");
    library.bind(device_properties, "hipGetDevicePropertiesR0600");
    library.bind(device_set, "hipSetDevice");
    library.bind(device_get, "hipGetDevice");
    library.bind(pointer_attributes, "hipPointerGetAttributes");
    library.bind(address_range, "hipMemGetAddressRange");
    library.bind(copy, "hipMemcpyAsync");
  }

  Entry<const char*(RuntimeCode)> error_name;
  Entry<const char*(RuntimeCode)> error_string;
  Entry<RuntimeCode()> last_error;
  Entry<RuntimeCode(Properties*, int)> device_properties;
  Entry<RuntimeCode(int)> device_set;
  Entry<RuntimeCode(int*)> device_get;
  Entry<RuntimeCode(PointerAttributes*, uint64_t)> pointer_attributes;
  Entry<RuntimeCode(uint64_t*, size_t*, uint64_t)> address_range;
  Entry<RuntimeCode(uint64_t, uint64_t, size_t, int, StreamHandle)> copy;
};

class HipApi final : public DeviceRuntime {
 public:
  explicit HipApi(const DeviceLibrary& library) : DeviceRuntime(bind_entries(library)), hip_(library) {
    start(library.path());
    if (version_number() < kOldestVersion)
      throw DeviceError(library.path() + ": HIP " + version() + " is older than 6.0");
    with_attributes_ = version_number() >= kAttributesVersion;
  }

  const char* name() const override { return "hip"; }
  std::string version() const override {
    const int number = version_number();
    return std::to_string(number / 10000000) + "." + std::to_string(number / 100000 % 100) + "." +
           std::to_string(number % 100000);
  }

  DeviceProperties properties(int device) override {
    DeviceProperties found = common_properties(device, kMultiprocessors);
    const auto all = std::make_unique<Properties>();
    call(hip_.device_properties, all.get(), device);
    found.architecture = std::string(all->architecture, strnlen(all->architecture, sizeof all->architecture));
    // "gfx942:sramecc+:xnack-"
    found.architecture.resize(std::min(found.architecture.find(':'), found.architecture.size()));
    return found;
  }

  PointerInfo pointer(uint64_t address) override {
    PointerAttributes found{};
    if (hip_.pointer_attributes.function(&found, address) != kRuntimeSuccess) {
      forget_error();  // some versions answer so for memory that they do not know
      return {};
    }
    if (found.is_managed != 0 || (found.type != kTypeHost && found.type != kTypeDevice)) return {};
    PointerInfo info;
    info.kind = found.type == kTypeDevice ? MemoryKind::kDevice : MemoryKind::kPinnedHost;
    info.device = found.type == kTypeDevice ? found.device : -1;
    info.device_alias = address;
    if (found.type == kTypeHost) call(entries().host_alias, &info.device_alias, address, 0u);
    // The range is the device's: for host memory only how far into it the address is can be used.
    uint64_t base = 0;
    size_t nbytes = 0;
    if (hip_.address_range.function(&base, &nbytes, info.device_alias) != kRuntimeSuccess) {
      forget_error();
      return info;
    }
    info.base = address - (info.device_alias - base);
    info.nbytes = nbytes;
    return info;
  }

  void copy_async(int device, uint64_t dst, uint64_t src, uint64_t nbytes, StreamHandle stream) override {
    enter_stream(device, stream);
    check(hip_.copy.function(dst, src, nbytes, kByAddress, stream), hip_.copy.name, dst, nbytes);
  }
  size_t max_batch() const override { return entries().copy_batch.function == nullptr ? 0 : kMaxBatch; }
  void copy_batch_async(int device, std::span<const uint64_t> dst, std::span<const uint64_t> src,
                        std::span<const uint64_t> nbytes, CopyDirection, StreamHandle stream) override {
    const std::string& name = entries().copy_batch.name;
    if (max_batch() == 0) throw DeviceError(name + ": this HIP is older than 7.1");
    if (dst.size() > kMaxBatch) throw DeviceError(batch_of(name, dst.size()) + ", at most " + std::to_string(kMaxBatch));
    enter_stream(device, stream);
    // Versions differ in whether they refuse attributes; until one way went well, what was refused is tried the other.
    const bool with = with_attributes_;
    size_t failed = 0;
    const RuntimeCode code = submit_batch(dst, src, nbytes, with, stream, &failed);
    if (code == kRuntimeSuccess) {
      settled_ = true;
      return;
    }
    if (!settled_ && (code == kInvalidValue || code == kNotSupported)) {
      forget_error();
      if (submit_batch(dst, src, nbytes, !with, stream, &failed) == kRuntimeSuccess) {
        with_attributes_ = !with;
        settled_ = true;
        return;
      }
    }
    fail(code, batch_of(name, dst.size()));
  }

  void allow_shared_bytes(FunctionHandle, unsigned) override {}  // all of a compute unit's are allowed

 private:
  void enter(int device) override {
    check_device(device);
    int current = -1;
    call(hip_.device_get, &current);
    if (current != device) call(hip_.device_set, device);
  }
  bool enter_any() override { return true; }  // every thread has a current device

  ErrorText describe(RuntimeCode code) const override {
    return {hip_.error_name.function(code), hip_.error_string.function(code)};
  }
  // HIP remembers an error until somebody asks, and whoever asks next would take it for their own.
  void forget_error() const override { hip_.last_error.function(); }

  unsigned read_only_flag(int) override {
    throw DeviceError(entries().host_register.name + ": HIP has no registration of read-only maps");
  }

  HipEntries hip_;
  std::atomic<bool> with_attributes_{false};
  std::atomic<bool> settled_{false};
};

}  // namespace

std::unique_ptr<DeviceApi> load_hip(const std::string& path) {
  return std::make_unique<HipApi>(DeviceLibrary(path));
}

}  // namespace umbp
