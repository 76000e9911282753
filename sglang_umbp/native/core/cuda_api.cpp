// The CUDA driver API, by its C ABI: nothing of the toolkit is needed to compile this.
#include <array>
#include <atomic>
#include <mutex>

#include "device_api.h"
#include "device_library.h"
#include "errors.h"

namespace umbp {
namespace {

using Result = int;  // CUresult
using Context = void*;
using DevicePointer = unsigned long long;

constexpr Result kSuccess = 0, kNotInitialized = 3, kDeinitialized = 4, kInvalidContext = 201, kNotReady = 600;
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kReadOnlyRegister = 113;  // device attributes
constexpr int kMemoryType = 2, kDeviceAddress = 3, kIsManaged = 8, kOrdinal = 9;         // pointer attributes
constexpr int kRangeStart = 11, kRangeSize = 12;
constexpr unsigned kTypeHost = 1, kTypeDevice = 2;
constexpr unsigned kPortable = 1, kDeviceMap = 2, kReadOnly = 8;
constexpr unsigned kNonBlocking = 1, kNoTiming = 2, kBlockingSync = 1;
constexpr int kMaxSharedBytes = 8;  // function attribute
constexpr int kBatchVersion = 12080;
constexpr size_t kMaxBatch = size_t{1} << 20;  // the driver names no limit
constexpr int kSourceInStreamOrder = 1;

struct CopyAttributes {
  int source_order;
  struct {
    int type, id;
  } source, destination;
  unsigned flags;
};

using BatchCopy = Result(DevicePointer*, DevicePointer*, size_t*, size_t, CopyAttributes*, size_t*, size_t, size_t*,
                         StreamHandle);

// The driver's functions, named as their symbols are without the version at the end.
struct Driver {
  explicit Driver(const DeviceLibrary& library) {
    library.bind(init, "cuInit");
    library.bind(driver_version, "cuDriverGetVersion");
    library.bind(error_name, "cuGetErrorName");
    library.bind(error_string, "cuGetErrorString");
    library.bind(device_count, "cuDeviceGetCount");
    library.bind(device_name, "cuDeviceGetName");
    library.bind(device_bus_id, "cuDeviceGetPCIBusId");
    library.bind(device_attribute, "cuDeviceGetAttribute");
    library.bind(context_retain, "cuDevicePrimaryCtxRetain");
    library.bind(context_release, "cuDevicePrimaryCtxRelease_v2");
    library.bind(context_state, "cuDevicePrimaryCtxGetState");
    library.bind(context_set, "cuCtxSetCurrent");
    library.bind(context_get, "cuCtxGetCurrent");
    library.bind(priority_range, "cuCtxGetStreamPriorityRange");
    library.bind(pointer_attributes, "cuPointerGetAttributes");
    library.bind(host_register, "cuMemHostRegister_v2");
    library.bind(host_unregister, "cuMemHostUnregister");
    library.bind(host_alias, "cuMemHostGetDevicePointer_v2");
    library.bind(allocate, "cuMemAlloc_v2");
    library.bind(free, "cuMemFree_v2");
    library.bind(host_allocate, "cuMemHostAlloc");
    library.bind(host_free, "cuMemFreeHost");
    library.bind(stream_create, "cuStreamCreateWithPriority");
    library.bind(stream_destroy, "cuStreamDestroy_v2");
    library.bind(stream_synchronize, "cuStreamSynchronize");
    library.bind(stream_query, "cuStreamQuery");
    library.bind(stream_wait, "cuStreamWaitEvent");
    library.bind(event_create, "cuEventCreate");
    library.bind(event_destroy, "cuEventDestroy_v2");
    library.bind(event_record, "cuEventRecord");
    library.bind(event_query, "cuEventQuery");
    library.bind(event_synchronize, "cuEventSynchronize");
    library.bind(copy, "cuMemcpyAsync");
    library.bind(module_load, "cuModuleLoadData");
    library.bind(module_unload, "cuModuleUnload");
    library.bind(module_function, "cuModuleGetFunction");
    library.bind(function_attribute, "cuFuncSetAttribute");
    library.bind(launch, "cuLaunchKernel");
    batch = find_batch(library);
  }

  // Only drivers from 12.8 have it, and with these parameters only under this version.
  static BatchCopy* find_batch(const DeviceLibrary& library) {
    using Find = Result(const char*, void**, int, uint64_t, int*);
    auto* find = reinterpret_cast<Find*>(library.find("cuGetProcAddress_v2"));
    void* found = nullptr;
    int status = 0;
    if (find == nullptr || find("cuMemcpyBatchAsync", &found, kBatchVersion, 0, &status) != kSuccess) return nullptr;
    return reinterpret_cast<BatchCopy*>(found);
  }

  Result (*init)(unsigned);
  Result (*driver_version)(int*);
  Result (*error_name)(Result, const char**);
  Result (*error_string)(Result, const char**);
  Result (*device_count)(int*);
  Result (*device_name)(char*, int, int);
  Result (*device_bus_id)(char*, int, int);
  Result (*device_attribute)(int*, int, int);
  Result (*context_retain)(Context*, int);
  Result (*context_release)(int);
  Result (*context_state)(int, unsigned*, int*);
  Result (*context_set)(Context);
  Result (*context_get)(Context*);
  Result (*priority_range)(int*, int*);
  Result (*pointer_attributes)(unsigned, int*, void**, DevicePointer);
  Result (*host_register)(void*, size_t, unsigned);
  Result (*host_unregister)(void*);
  Result (*host_alias)(DevicePointer*, void*, unsigned);
  Result (*allocate)(DevicePointer*, size_t);
  Result (*free)(DevicePointer);
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
  Result (*copy)(DevicePointer, DevicePointer, size_t, StreamHandle);
  BatchCopy* batch;
  Result (*module_load)(ModuleHandle*, const void*);
  Result (*module_unload)(ModuleHandle);
  Result (*module_function)(FunctionHandle*, ModuleHandle, const char*);
  Result (*function_attribute)(FunctionHandle, int, int);
  Result (*launch)(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle,
                   void**, void**);
};

void* to_pointer(uint64_t address) { return reinterpret_cast<void*>(address); }


class CudaApi final : public DeviceApi {
 public:
  explicit CudaApi(const std::string& path) : driver_(DeviceLibrary(path)) {
    check(driver_.init(0), "cuInit");
    check(driver_.device_count(&devices_), "cuDeviceGetCount");
    if (devices_ == 0) throw DeviceError(path + " has no device");
    if (devices_ > static_cast<int>(contexts_.size())) devices_ = static_cast<int>(contexts_.size());
  }
  ~CudaApi() override {
    for (int device = 0; device < devices_; ++device)
      if (contexts_[device].load() != nullptr) driver_.context_release(device);
  }

  const char* name() const override { return "cuda"; }
  std::string version() const override {
    int version = 0;
    check(driver_.driver_version(&version), "cuDriverGetVersion");
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
  int device_count() override { return devices_; }

  DeviceProperties properties(int device) override {
    check_device(device);
    char name[256] = {}, bus_id[32] = {};
    check(driver_.device_name(name, sizeof name, device), "cuDeviceGetName");
    check(driver_.device_bus_id(bus_id, sizeof bus_id, device), "cuDeviceGetPCIBusId");
    DeviceProperties found{name, attribute(device, kMultiprocessors), attribute(device, kMajor),
                           attribute(device, kMinor), "", bus_id};
    found.architecture = "sm_" + std::to_string(found.major) + std::to_string(found.minor);
    return found;
  }

  PointerInfo pointer(uint64_t address) override {
    if (!enter_any()) return {};  // no context at all: nothing is device memory or pinned
    unsigned type = 0, managed = 0;
    DevicePointer alias = 0, base = 0;
    int ordinal = -1;
    size_t nbytes = 0;
    int wanted[] = {kMemoryType, kDeviceAddress, kIsManaged, kOrdinal, kRangeStart, kRangeSize};
    void* values[] = {&type, &alias, &managed, &ordinal, &base, &nbytes};
    const Result result = driver_.pointer_attributes(6, wanted, values, address);
    if (result == kInvalidContext || result == kNotInitialized || result == kDeinitialized) return {};
    check(result, "cuPointerGetAttributes");
    // Managed memory is copied by the host: it may be anywhere.
    if (managed != 0 || (type != kTypeHost && type != kTypeDevice)) return {MemoryKind::kHost, -1, 0, base, nbytes};
    if (type == kTypeDevice) return {MemoryKind::kDevice, ordinal, alias, base, nbytes};
    return {MemoryKind::kPinnedHost, -1, alias, base, nbytes};
  }

  uint64_t register_host(int device, uint64_t base, uint64_t nbytes, bool read_only) override {
    enter(device);
    if (read_only && attribute(device, kReadOnlyRegister) == 0)
      throw DeviceError("cuMemHostRegister: device " + std::to_string(device) + " cannot read a read-only map");
    const unsigned flags = kPortable | kDeviceMap | (read_only ? kReadOnly : 0);
    check(driver_.host_register(to_pointer(base), nbytes, flags), "cuMemHostRegister", base, nbytes);
    DevicePointer alias = 0;
    const Result result = driver_.host_alias(&alias, to_pointer(base), 0);
    if (result == kSuccess) return alias;
    driver_.host_unregister(to_pointer(base));
    fail(result, "cuMemHostGetDevicePointer");
  }
  void unregister_host(uint64_t base) override {
    enter_any();
    check(driver_.host_unregister(to_pointer(base)), "cuMemHostUnregister");
  }

  uint64_t allocate_device(int device, uint64_t nbytes) override {
    enter(device);
    DevicePointer address = 0;
    check(driver_.allocate(&address, nbytes), "cuMemAlloc", 0, nbytes);
    return address;
  }
  void free_device(int device, uint64_t address) override {
    enter(device);
    check(driver_.free(address), "cuMemFree");
  }
  void* allocate_pinned(int device, uint64_t nbytes, uint64_t* alias) override {
    enter(device);
    void* memory = nullptr;
    check(driver_.host_allocate(&memory, nbytes, kPortable | kDeviceMap), "cuMemHostAlloc", 0, nbytes);
    DevicePointer seen = 0;
    const Result result = driver_.host_alias(&seen, memory, 0);
    if (result != kSuccess) {
      driver_.host_free(memory);
      fail(result, "cuMemHostGetDevicePointer");
    }
    *alias = seen;
    return memory;
  }
  void free_pinned(void* memory) override {
    enter_any();
    check(driver_.host_free(memory), "cuMemFreeHost");
  }

  StreamHandle create_stream(int device, bool high_priority) override {
    enter(device);
    int least = 0, greatest = 0;
    check(driver_.priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange");
    StreamHandle stream = nullptr;
    check(driver_.stream_create(&stream, kNonBlocking, high_priority ? greatest : least),
          "cuStreamCreateWithPriority");
    return stream;
  }
  void destroy_stream(int device, StreamHandle stream) override {
    enter(device, stream);
    check(driver_.stream_destroy(stream), "cuStreamDestroy");
  }
  void synchronize_stream(int device, StreamHandle stream) override {
    enter(device, stream);
    check(driver_.stream_synchronize(stream), "cuStreamSynchronize");
  }
  bool is_stream_done(int device, StreamHandle stream) override {
    enter(device, stream);
    return is_done(driver_.stream_query(stream), "cuStreamQuery");
  }

  EventHandle create_event(int device) override {
    enter(device);
    EventHandle event = nullptr;
    check(driver_.event_create(&event, kNoTiming | kBlockingSync), "cuEventCreate");
    return event;
  }
  void destroy_event(int device, EventHandle event) override {
    enter(device);
    check(driver_.event_destroy(event), "cuEventDestroy");
  }
  void record_event(int device, EventHandle event, StreamHandle stream) override {
    enter(device, stream);
    check(driver_.event_record(event, stream), "cuEventRecord");
  }
  void wait_event(int device, StreamHandle stream, EventHandle event) override {
    enter(device, stream);
    check(driver_.stream_wait(stream, event, 0), "cuStreamWaitEvent");
  }
  bool is_event_done(int device, EventHandle event) override {
    enter(device);
    return is_done(driver_.event_query(event), "cuEventQuery");
  }
  void synchronize_event(int device, EventHandle event) override {
    enter(device);
    check(driver_.event_synchronize(event), "cuEventSynchronize");
  }

  void copy_async(int device, uint64_t dst, uint64_t src, uint64_t nbytes, StreamHandle stream) override {
    enter(device, stream);
    check(driver_.copy(dst, src, nbytes, stream), "cuMemcpyAsync", dst, nbytes);
  }
  size_t max_batch() const override { return driver_.batch == nullptr ? 0 : kMaxBatch; }
  void copy_batch_async(int device, std::span<const uint64_t> dst, std::span<const uint64_t> src,
                        std::span<const uint64_t> nbytes, CopyDirection, StreamHandle stream) override {
    static_assert(sizeof(DevicePointer) == sizeof(uint64_t) && sizeof(size_t) == sizeof(uint64_t));
    if (driver_.batch == nullptr) throw DeviceError("cuMemcpyBatchAsync: this driver is older than 12.8");
    enter(device, stream);
    CopyAttributes attributes{kSourceInStreamOrder, {0, 0}, {0, 0}, 0};
    size_t first = 0, failed = 0;
    // The driver reads these arrays only, whatever its prototype says.
    auto* sizes = reinterpret_cast<size_t*>(const_cast<uint64_t*>(nbytes.data()));
    const Result result = driver_.batch(writable(dst), writable(src), sizes, dst.size(), &attributes, &first, 1,
                                        &failed, stream);
    if (result == kSuccess) return;
    if (failed < dst.size()) fail(result, "cuMemcpyBatchAsync", dst[failed], nbytes[failed]);
    fail(result, "cuMemcpyBatchAsync of " + std::to_string(dst.size()) + " copies");
  }

  ModuleHandle load_module(int device, std::span<const std::byte> image) override {
    enter(device);
    ModuleHandle module = nullptr;
    check(driver_.module_load(&module, image.data()), "cuModuleLoadData");
    return module;
  }
  void unload_module(int device, ModuleHandle module) override {
    enter(device);
    check(driver_.module_unload(module), "cuModuleUnload");
  }
  FunctionHandle find_function(ModuleHandle module, const char* name) override {
    enter_any();
    FunctionHandle function = nullptr;
    check(driver_.module_function(&function, module, name), std::string("cuModuleGetFunction ") + name);
    return function;
  }
  void allow_shared_bytes(FunctionHandle function, unsigned shared_bytes) override {
    enter_any();
    check(driver_.function_attribute(function, kMaxSharedBytes, static_cast<int>(shared_bytes)),
          "cuFuncSetAttribute");
  }
  void launch(int device, const Launch& what, StreamHandle stream) override {
    enter(device, stream);
    check(driver_.launch(what.function, what.grid, 1, 1, what.block, 1, 1, what.shared_bytes, stream, what.parameters,
                         nullptr),
          "cuLaunchKernel");
  }

 private:
  static DevicePointer* writable(std::span<const uint64_t> addresses) {
    return reinterpret_cast<DevicePointer*>(const_cast<uint64_t*>(addresses.data()));
  }

  [[noreturn]] void fail(Result result, const std::string& call, uint64_t address = 0, uint64_t nbytes = 0) const {
    const char *name = nullptr, *text = nullptr;
    driver_.error_name(result, &name);
    driver_.error_string(result, &text);
    std::string message = call;
    if (nbytes != 0) message += " (address " + std::to_string(address) + ", " + std::to_string(nbytes) + " bytes)";
    message += ": error " + std::to_string(result);
    if (name != nullptr) message += std::string(" ") + name;
    if (text != nullptr) message += std::string(", ") + text;
    throw DeviceError(message);
  }
  void check(Result result, const std::string& call, uint64_t address = 0, uint64_t nbytes = 0) const {
    if (result != kSuccess) fail(result, call, address, nbytes);
  }
  void check(Result result, const char* call, uint64_t address = 0, uint64_t nbytes = 0) const {
    if (result != kSuccess) fail(result, call, address, nbytes);
  }
  bool is_done(Result result, const char* call) const {
    if (result == kNotReady) return false;
    check(result, call);
    return true;
  }
  int attribute(int device, int which) const {
    int value = 0;
    check(driver_.device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  }

  void check_device(int device) const {
    if (device < 0 || device >= devices_)
      throw DeviceError("device " + std::to_string(device) + " is none of " + std::to_string(devices_));
  }
  // The primary context is the one that every library of the process shares.
  Context context(int device) {
    check_device(device);
    Context known = contexts_[device].load(std::memory_order_acquire);
    if (known != nullptr) return known;
    std::lock_guard lock(retaining_);
    known = contexts_[device].load(std::memory_order_acquire);
    if (known != nullptr) return known;
    check(driver_.context_retain(&known, device), "cuDevicePrimaryCtxRetain");
    contexts_[device].store(known, std::memory_order_release);
    return known;
  }
  void enter(int device) {
    const Context wanted = context(device);
    Context current = nullptr;
    check(driver_.context_get(&current), "cuCtxGetCurrent");
    if (current != wanted) check(driver_.context_set(wanted), "cuCtxSetCurrent");
  }
  void enter(int device, StreamHandle stream) {
    if (stream == nullptr) throw DeviceError("a stream is needed: the legacy default stream is not used");
    enter(device);
  }
  // A context, whatever its device. None is made: a primary context costs hundreds of MB of a device that
  // this process may have no business with. False: no device has one.
  bool enter_any() {
    Context current = nullptr;
    check(driver_.context_get(&current), "cuCtxGetCurrent");
    if (current != nullptr) return true;
    for (int device = 0; device < devices_; ++device) {
      unsigned flags = 0;
      int active = 0;
      check(driver_.context_state(device, &flags, &active), "cuDevicePrimaryCtxGetState");
      if (active == 0) continue;
      enter(device);
      return true;
    }
    return false;
  }

  Driver driver_;
  int devices_ = 0;
  std::mutex retaining_;
  std::array<std::atomic<Context>, 64> contexts_{};
};

}  // namespace

std::unique_ptr<DeviceApi> load_cuda(const std::string& path) { return std::make_unique<CudaApi>(path); }

}  // namespace umbp
