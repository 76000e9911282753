// The HIP runtime by its C ABI, as of ROCm 6 and later.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "device_api.h"
#include "device_library.h"
#include "errors.h"

namespace umbp {
namespace {

using Result = int;  // hipError_t

constexpr Result kSuccess = 0, kInvalidValue = 1, kNotReady = 600, kNotSupported = 801;
constexpr int kOldestVersion = 60000000;       // before it the kinds of memory had other numbers
constexpr int kAttributesVersion = 71300000;   // from here on a batch may have attributes
constexpr int kMultiprocessors = 63;           // device attribute
constexpr int kTypeHost = 1, kTypeDevice = 2;  // of memory
constexpr unsigned kPortable = 1, kMapped = 2;
constexpr unsigned kNonBlocking = 1, kBlockingSync = 1, kNoTiming = 2;
constexpr int kByAddress = 4;       // hipMemcpyDefault
constexpr size_t kMaxBatch = 8192;  // one more and the call faults
constexpr int kSourceInStreamOrder = 1;

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
  struct {
    int type, id;
  } source, destination;
  unsigned flags;
};

// hipDeviceProp_tR0600, of which one name is wanted.
struct Properties {
  char before[1160];
  char architecture[256];
  char after[4096];  // it is 1,472 bytes in all so far
};

using BatchCopy = Result(void**, void**, size_t*, size_t, CopyAttributes*, size_t*, size_t, size_t*, StreamHandle);

struct Runtime {
  explicit Runtime(const DeviceLibrary& library) {
    library.bind(init, "hipInit");
    library.bind(runtime_version, "hipRuntimeGetVersion");
    library.bind(error_name, "hipGetErrorName");
    library.bind(error_string, "hipGetErrorString");
    library.bind(last_error, "hipGetLastError");
    library.bind(device_count, "hipGetDeviceCount");
    library.bind(device_name, "hipDeviceGetName");
    library.bind(device_bus_id, "hipDeviceGetPCIBusId");
    library.bind(device_attribute, "hipDeviceGetAttribute");
    library.bind(device_properties, "hipGetDevicePropertiesR0600");
    library.bind(device_set, "hipSetDevice");
    library.bind(device_get, "hipGetDevice");
    library.bind(priority_range, "hipDeviceGetStreamPriorityRange");
    library.bind(pointer_attributes, "hipPointerGetAttributes");
    library.bind(address_range, "hipMemGetAddressRange");
    library.bind(host_register, "hipHostRegister");
    library.bind(host_unregister, "hipHostUnregister");
    library.bind(host_alias, "hipHostGetDevicePointer");
    library.bind(allocate, "hipMalloc");
    library.bind(free, "hipFree");
    library.bind(host_allocate, "hipHostMalloc");
    library.bind(host_free, "hipHostFree");
    library.bind(stream_create, "hipStreamCreateWithPriority");
    library.bind(stream_destroy, "hipStreamDestroy");
    library.bind(stream_synchronize, "hipStreamSynchronize");
    library.bind(stream_query, "hipStreamQuery");
    library.bind(stream_wait, "hipStreamWaitEvent");
    library.bind(event_create, "hipEventCreateWithFlags");
    library.bind(event_destroy, "hipEventDestroy");
    library.bind(event_record, "hipEventRecord");
    library.bind(event_query, "hipEventQuery");
    library.bind(event_synchronize, "hipEventSynchronize");
    library.bind(copy, "hipMemcpyAsync");
    library.bind(module_load, "hipModuleLoadData");
    library.bind(module_unload, "hipModuleUnload");
    library.bind(module_function, "hipModuleGetFunction");
    library.bind(launch, "hipModuleLaunchKernel");
    batch = reinterpret_cast<BatchCopy*>(library.find("hipMemcpyBatchAsync"));  // ROCm 7.1 and later
  }

  Result (*init)(unsigned);
  Result (*runtime_version)(int*);
  const char* (*error_name)(Result);
  const char* (*error_string)(Result);
  Result (*last_error)();
  Result (*device_count)(int*);
  Result (*device_name)(char*, int, int);
  Result (*device_bus_id)(char*, int, int);
  Result (*device_attribute)(int*, int, int);
  Result (*device_properties)(Properties*, int);
  Result (*device_set)(int);
  Result (*device_get)(int*);
  Result (*priority_range)(int*, int*);
  Result (*pointer_attributes)(PointerAttributes*, const void*);
  Result (*address_range)(void**, size_t*, void*);
  Result (*host_register)(void*, size_t, unsigned);
  Result (*host_unregister)(void*);
  Result (*host_alias)(void**, void*, unsigned);
  Result (*allocate)(void**, size_t);
  Result (*free)(void*);
  Result (*host_allocate)(void**, size_t, unsigned);
  Result (*host_free)(void*);
  Result (*stream_create)(StreamHandle*, unsigned, int);
  Result (*stream_destroy)(StreamHandle);
  Result (*stream_synchronize)(StreamHandle);
  Result (*stream_query)(StreamHandle);
  Result (*stream_wait)(StreamHandle, EventHandle, unsigned);
  Result (*event_create)(EventHandle*, unsigned);
  Result (*event_destroy)(EventHandle);
  Result (*event_record)(EventHandle, StreamHandle);
  Result (*event_query)(EventHandle);
  Result (*event_synchronize)(EventHandle);
  Result (*copy)(void*, const void*, size_t, int, StreamHandle);
  BatchCopy* batch;
  Result (*module_load)(ModuleHandle*, const void*);
  Result (*module_unload)(ModuleHandle);
  Result (*module_function)(FunctionHandle*, ModuleHandle, const char*);
  Result (*launch)(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle,
                   void**, void**);
};

void* to_pointer(uint64_t address) { return reinterpret_cast<void*>(address); }
uint64_t to_address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

class HipApi final : public DeviceApi {
 public:
  explicit HipApi(const std::string& path) : hip_(DeviceLibrary(path)) {
    check(hip_.init(0), "hipInit");
    check(hip_.runtime_version(&version_), "hipRuntimeGetVersion");
    if (version_ < kOldestVersion) throw DeviceError(path + ": HIP " + version() + " is older than 6.0");
    check(hip_.device_count(&devices_), "hipGetDeviceCount");
    if (devices_ == 0) throw DeviceError(path + " has no device");
    with_attributes_ = version_ >= kAttributesVersion;
  }

  const char* name() const override { return "hip"; }
  std::string version() const override {
    return std::to_string(version_ / 10000000) + "." + std::to_string(version_ / 100000 % 100) + "." +
           std::to_string(version_ % 100000);
  }
  int device_count() override { return devices_; }

  DeviceProperties properties(int device) override {
    check_device(device);
    char name[256] = {}, bus_id[32] = {};
    check(hip_.device_name(name, sizeof name, device), "hipDeviceGetName");
    check(hip_.device_bus_id(bus_id, sizeof bus_id, device), "hipDeviceGetPCIBusId");
    int multiprocessors = 0;
    check(hip_.device_attribute(&multiprocessors, kMultiprocessors, device), "hipDeviceGetAttribute");
    const auto all = std::make_unique<Properties>();
    check(hip_.device_properties(all.get(), device), "hipGetDeviceProperties");
    std::string architecture(all->architecture, strnlen(all->architecture, sizeof all->architecture));
    architecture.resize(std::min(architecture.find(':'), architecture.size()));  // "gfx942:sramecc+:xnack-"
    return {name, multiprocessors, 0, 0, architecture, bus_id};
  }

  PointerInfo pointer(uint64_t address) override {
    PointerAttributes found{};
    if (hip_.pointer_attributes(&found, to_pointer(address)) != kSuccess) {
      hip_.last_error();  // some versions answer so for memory that they do not know
      return {};
    }
    if (found.is_managed != 0 || (found.type != kTypeHost && found.type != kTypeDevice)) return {};
    PointerInfo info;
    info.kind = found.type == kTypeDevice ? MemoryKind::kDevice : MemoryKind::kPinnedHost;
    info.device = found.type == kTypeDevice ? found.device : -1;
    info.device_alias = found.type == kTypeDevice ? address : alias_of(address);
    // The range is the device's: for host memory only how far into it the address is can be used.
    void* base = nullptr;
    size_t nbytes = 0;
    if (hip_.address_range(&base, &nbytes, to_pointer(info.device_alias)) != kSuccess) {
      hip_.last_error();
      return info;
    }
    info.base = address - (info.device_alias - to_address(base));
    info.nbytes = nbytes;
    return info;
  }

  uint64_t register_host(int device, uint64_t base, uint64_t nbytes, bool read_only) override {
    if (read_only) throw DeviceError("hipHostRegister: HIP has no registration of read-only maps");
    enter(device);
    check(hip_.host_register(to_pointer(base), nbytes, kPortable | kMapped), "hipHostRegister", base, nbytes);
    try {
      return alias_of(base);
    } catch (const DeviceError&) {
      hip_.host_unregister(to_pointer(base));
      throw;
    }
  }
  void unregister_host(uint64_t base) override {
    check(hip_.host_unregister(to_pointer(base)), "hipHostUnregister", base, 0);
  }

  uint64_t allocate_device(int device, uint64_t nbytes) override {
    enter(device);
    void* memory = nullptr;
    check(hip_.allocate(&memory, nbytes), "hipMalloc", 0, nbytes);
    return to_address(memory);
  }
  void free_device(int device, uint64_t address) override {
    enter(device);
    check(hip_.free(to_pointer(address)), "hipFree");
  }
  void* allocate_pinned(int device, uint64_t nbytes, uint64_t* alias) override {
    enter(device);
    void* memory = nullptr;
    check(hip_.host_allocate(&memory, nbytes, kPortable | kMapped), "hipHostMalloc", 0, nbytes);
    try {
      *alias = alias_of(to_address(memory));
    } catch (const DeviceError&) {
      hip_.host_free(memory);
      throw;
    }
    return memory;
  }
  void free_pinned(void* memory) override { check(hip_.host_free(memory), "hipHostFree"); }

  StreamHandle create_stream(int device, bool high_priority) override {
    enter(device);
    int least = 0, greatest = 0;
    check(hip_.priority_range(&least, &greatest), "hipDeviceGetStreamPriorityRange");
    StreamHandle stream = nullptr;
    // 0 is the usual one; ROCm has lower ones, too.
    check(hip_.stream_create(&stream, kNonBlocking, high_priority ? greatest : 0), "hipStreamCreateWithPriority");
    return stream;
  }
  void destroy_stream(int device, StreamHandle stream) override {
    enter(device, stream);
    check(hip_.stream_destroy(stream), "hipStreamDestroy");
  }
  void synchronize_stream(int device, StreamHandle stream) override {
    enter(device, stream);
    check(hip_.stream_synchronize(stream), "hipStreamSynchronize");
  }
  bool is_stream_done(int device, StreamHandle stream) override {
    enter(device, stream);
    return is_done(hip_.stream_query(stream), "hipStreamQuery");
  }

  EventHandle create_event(int device) override {
    enter(device);
    EventHandle event = nullptr;
    check(hip_.event_create(&event, kNoTiming | kBlockingSync), "hipEventCreateWithFlags");
    return event;
  }
  void destroy_event(int device, EventHandle event) override {
    enter(device);
    check(hip_.event_destroy(event), "hipEventDestroy");
  }
  void record_event(int device, EventHandle event, StreamHandle stream) override {
    enter(device, stream);
    check(hip_.event_record(event, stream), "hipEventRecord");
  }
  void wait_event(int device, StreamHandle stream, EventHandle event) override {
    enter(device, stream);
    check(hip_.stream_wait(stream, event, 0), "hipStreamWaitEvent");
  }
  bool is_event_done(int device, EventHandle event) override {
    enter(device);
    return is_done(hip_.event_query(event), "hipEventQuery");
  }
  void synchronize_event(int device, EventHandle event) override {
    enter(device);
    check(hip_.event_synchronize(event), "hipEventSynchronize");
  }

  void copy_async(int device, uint64_t dst, uint64_t src, uint64_t nbytes, StreamHandle stream) override {
    enter(device, stream);
    check(hip_.copy(to_pointer(dst), to_pointer(src), nbytes, kByAddress, stream), "hipMemcpyAsync", dst, nbytes);
  }
  size_t max_batch() const override { return hip_.batch == nullptr ? 0 : kMaxBatch; }
  void copy_batch_async(int device, std::span<const uint64_t> dst, std::span<const uint64_t> src,
                        std::span<const uint64_t> nbytes, CopyDirection, StreamHandle stream) override {
    if (hip_.batch == nullptr) throw DeviceError("hipMemcpyBatchAsync: this HIP is older than 7.1");
    if (dst.size() > kMaxBatch)
      throw DeviceError("hipMemcpyBatchAsync of " + std::to_string(dst.size()) + " copies, at most " +
                        std::to_string(kMaxBatch));
    enter(device, stream);
    // Versions differ in whether they refuse attributes; until one way went well, what was refused is tried the other.
    const bool with = with_attributes_;
    const Result result = submit(dst, src, nbytes, with, stream);
    if (result == kSuccess) {
      settled_ = true;
      return;
    }
    if (!settled_ && (result == kInvalidValue || result == kNotSupported)) {
      hip_.last_error();
      if (submit(dst, src, nbytes, !with, stream) == kSuccess) {
        with_attributes_ = !with;
        settled_ = true;
        return;
      }
    }
    fail(result, "hipMemcpyBatchAsync of " + std::to_string(dst.size()) + " copies");
  }

  ModuleHandle load_module(int device, std::span<const std::byte> image) override {
    enter(device);
    ModuleHandle module = nullptr;
    check(hip_.module_load(&module, image.data()), "hipModuleLoadData");
    return module;
  }
  void unload_module(int device, ModuleHandle module) override {
    enter(device);
    check(hip_.module_unload(module), "hipModuleUnload");
  }
  FunctionHandle find_function(ModuleHandle module, const char* name) override {
    FunctionHandle function = nullptr;
    check(hip_.module_function(&function, module, name), std::string("hipModuleGetFunction ") + name);
    return function;
  }
  void allow_shared_bytes(FunctionHandle, unsigned) override {}  // all of a compute unit's are allowed
  void launch(int device, const Launch& what, StreamHandle stream) override {
    enter(device, stream);
    check(hip_.launch(what.function, what.grid, 1, 1, what.block, 1, 1, what.shared_bytes, stream, what.parameters,
                      nullptr),
          "hipModuleLaunchKernel");
  }

 private:
  Result submit(std::span<const uint64_t> dst, std::span<const uint64_t> src, std::span<const uint64_t> nbytes,
                bool with_attributes, StreamHandle stream) {
    CopyAttributes attributes{kSourceInStreamOrder, {0, 0}, {0, 0}, 0};
    size_t first = 0, failed = 0;
    static_assert(sizeof(void*) == sizeof(uint64_t) && sizeof(size_t) == sizeof(uint64_t));
    // The runtime reads these arrays only.
    auto** to = reinterpret_cast<void**>(const_cast<uint64_t*>(dst.data()));
    auto** from = reinterpret_cast<void**>(const_cast<uint64_t*>(src.data()));
    auto* sizes = reinterpret_cast<size_t*>(const_cast<uint64_t*>(nbytes.data()));
    if (!with_attributes) return hip_.batch(to, from, sizes, dst.size(), nullptr, nullptr, 0, &failed, stream);
    return hip_.batch(to, from, sizes, dst.size(), &attributes, &first, 1, &failed, stream);
  }

  uint64_t alias_of(uint64_t address) const {
    void* alias = nullptr;
    check(hip_.host_alias(&alias, to_pointer(address), 0), "hipHostGetDevicePointer", address, 0);
    return to_address(alias);
  }

  // HIP remembers the error until somebody asks, and whoever asks next would take it for their own.
  [[noreturn]] void fail(Result result, const std::string& call, uint64_t address = 0, uint64_t nbytes = 0) const {
    hip_.last_error();
    const char *name = hip_.error_name(result), *text = hip_.error_string(result);
    std::string message = call;
    if (nbytes != 0) message += " (address " + std::to_string(address) + ", " + std::to_string(nbytes) + " bytes)";
    message += ": error " + std::to_string(result);
    if (name != nullptr) message += std::string(" ") + name;
    if (text != nullptr) message += std::string(", ") + text;
    throw DeviceError(message);
  }
  void check(Result result, const std::string& call) const {
    if (result != kSuccess) fail(result, call);
  }
  void check(Result result, const char* call, uint64_t address = 0, uint64_t nbytes = 0) const {
    if (result != kSuccess) fail(result, call, address, nbytes);
  }
  bool is_done(Result result, const char* call) const {
    if (result == kNotReady) {
      hip_.last_error();  // "not ready" is remembered as an error, too
      return false;
    }
    check(result, call);
    return true;
  }

  void check_device(int device) const {
    if (device < 0 || device >= devices_)
      throw DeviceError("device " + std::to_string(device) + " is none of " + std::to_string(devices_));
  }
  void enter(int device) const {
    check_device(device);
    int current = -1;
    check(hip_.device_get(&current), "hipGetDevice");
    if (current != device) check(hip_.device_set(device), "hipSetDevice");
  }
  void enter(int device, StreamHandle stream) const {
    if (stream == nullptr) throw DeviceError("a stream is needed: the legacy default stream is not used");
    enter(device);
  }

  Runtime hip_;
  int devices_ = 0;
  int version_ = 0;
  std::atomic<bool> with_attributes_{false};
  std::atomic<bool> settled_{false};
};

}  // namespace

std::unique_ptr<DeviceApi> load_hip(const std::string& path) { return std::make_unique<HipApi>(path); }

}  // namespace umbp
