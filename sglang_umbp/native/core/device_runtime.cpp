#include "device_runtime.h"

#include <algorithm>

#include "errors.h"

namespace umbp {
namespace {

// HIP has CUDA's numbers.
constexpr RuntimeCode kNotReady = 600;
constexpr unsigned kPortable = 1, kMapped = 2;  // of host memory
constexpr unsigned kNonBlocking = 1;            // of streams
constexpr unsigned kBlockingSync = 1, kNoTiming = 2;  // of events
constexpr int kSourceInStreamOrder = 1;
constexpr int kUsualPriority = 0;  // the lowest one of CUDA; ROCm has lower ones, too

}  // namespace

void DeviceRuntime::start(const std::string& path, int most) {
  call(entries_.init, 0u);
  call(entries_.version, &version_);
  call(entries_.device_count, &devices_);
  if (devices_ == 0) throw DeviceError(path + " has no device");
  devices_ = std::min(devices_, most);
}

DeviceProperties DeviceRuntime::common_properties(int device, int multiprocessors) const {
  check_device(device);
  char name[256] = {}, bus_id[32] = {};
  call(entries_.device_name, name, static_cast<int>(sizeof name), device);
  call(entries_.device_bus_id, bus_id, static_cast<int>(sizeof bus_id), device);
  return {name, attribute(device, multiprocessors), 0, 0, "", bus_id};
}

int DeviceRuntime::attribute(int device, int which) const {
  int value = 0;
  call(entries_.device_attribute, &value, which, device);
  return value;
}

// Host memory --------------------------------------------------------------------------------------------

uint64_t DeviceRuntime::register_host(int device, uint64_t base, uint64_t nbytes, bool read_only) {
  enter(device);
  const unsigned flags = kPortable | kMapped | (read_only ? read_only_flag(device) : 0);
  check(entries_.host_register.function(base, nbytes, flags), entries_.host_register.name, base, nbytes);
  return alias_or_undo(base, entries_.host_unregister);
}

void DeviceRuntime::unregister_host(uint64_t base) {
  enter_any();
  call(entries_.host_unregister, base);
}

void* DeviceRuntime::allocate_pinned(int device, uint64_t nbytes, uint64_t* alias) {
  enter(device);
  uint64_t memory = 0;
  check(entries_.host_allocate.function(&memory, nbytes, kPortable | kMapped), entries_.host_allocate.name, 0, nbytes);
  *alias = alias_or_undo(memory, entries_.host_free);
  return reinterpret_cast<void*>(memory);
}

void DeviceRuntime::free_pinned(void* memory) {
  enter_any();
  call(entries_.host_free, reinterpret_cast<uint64_t>(memory));
}

uint64_t DeviceRuntime::alias_or_undo(uint64_t base, const Entry<RuntimeCode(uint64_t)>& undo) const {
  uint64_t alias = 0;
  const RuntimeCode code = entries_.host_alias.function(&alias, base, 0);
  if (code == kRuntimeSuccess) return alias;
  undo.function(base);
  fail(code, entries_.host_alias.name);
}

// Device memory ------------------------------------------------------------------------------------------

uint64_t DeviceRuntime::allocate_device(int device, uint64_t nbytes) {
  enter(device);
  uint64_t address = 0;
  check(entries_.allocate.function(&address, nbytes), entries_.allocate.name, 0, nbytes);
  return address;
}

void DeviceRuntime::free_device(int device, uint64_t address) {
  enter(device);
  call(entries_.free, address);
}

// Streams and events -------------------------------------------------------------------------------------

StreamHandle DeviceRuntime::create_stream(int device, bool high_priority) {
  enter(device);
  int least = 0, greatest = 0;
  call(entries_.priority_range, &least, &greatest);
  StreamHandle stream = nullptr;
  call(entries_.stream_create, &stream, kNonBlocking, high_priority ? greatest : kUsualPriority);
  return stream;
}

void DeviceRuntime::destroy_stream(int device, StreamHandle stream) {
  enter_stream(device, stream);
  call(entries_.stream_destroy, stream);
}

void DeviceRuntime::synchronize_stream(int device, StreamHandle stream) {
  enter_stream(device, stream);
  call(entries_.stream_synchronize, stream);
}

bool DeviceRuntime::is_stream_done(int device, StreamHandle stream) {
  enter_stream(device, stream);
  return is_done(entries_.stream_query.function(stream), entries_.stream_query.name);
}

EventHandle DeviceRuntime::create_event(int device) {
  enter(device);
  EventHandle event = nullptr;
  call(entries_.event_create, &event, kNoTiming | kBlockingSync);
  return event;
}

void DeviceRuntime::destroy_event(int device, EventHandle event) {
  enter(device);
  call(entries_.event_destroy, event);
}

void DeviceRuntime::record_event(int device, EventHandle event, StreamHandle stream) {
  enter_stream(device, stream);
  call(entries_.event_record, event, stream);
}

void DeviceRuntime::wait_event(int device, StreamHandle stream, EventHandle event) {
  enter_stream(device, stream);
  call(entries_.stream_wait, stream, event, 0u);
}

bool DeviceRuntime::is_event_done(int device, EventHandle event) {
  enter(device);
  return is_done(entries_.event_query.function(event), entries_.event_query.name);
}

void DeviceRuntime::synchronize_event(int device, EventHandle event) {
  enter(device);
  call(entries_.event_synchronize, event);
}

bool DeviceRuntime::is_done(RuntimeCode code, const std::string& name) const {
  if (code == kRuntimeSuccess) return true;
  if (code != kNotReady) fail(code, name);
  forget_error();  // "not ready" is remembered as an error, too
  return false;
}

// Copies and kernels -------------------------------------------------------------------------------------

RuntimeCode DeviceRuntime::submit_batch(std::span<const uint64_t> dst, std::span<const uint64_t> src,
                                        std::span<const uint64_t> nbytes, bool with_attributes, StreamHandle stream,
                                        size_t* failed) const {
  static_assert(sizeof(size_t) == sizeof(uint64_t));
  CopyAttributes attributes{kSourceInStreamOrder, {0, 0}, {0, 0}, 0};
  size_t first = 0;
  // The runtimes only read these arrays, whatever their prototypes say.
  auto* to = const_cast<uint64_t*>(dst.data());
  auto* from = const_cast<uint64_t*>(src.data());
  auto* sizes = reinterpret_cast<size_t*>(const_cast<uint64_t*>(nbytes.data()));
  const auto submit = entries_.copy_batch.function;
  if (!with_attributes) return submit(to, from, sizes, dst.size(), nullptr, nullptr, 0, failed, stream);
  return submit(to, from, sizes, dst.size(), &attributes, &first, 1, failed, stream);
}

ModuleHandle DeviceRuntime::load_module(int device, std::span<const std::byte> image) {
  enter(device);
  ModuleHandle module = nullptr;
  call(entries_.module_load, &module, image.data());
  return module;
}

void DeviceRuntime::unload_module(int device, ModuleHandle module) {
  enter(device);
  call(entries_.module_unload, module);
}

FunctionHandle DeviceRuntime::find_function(ModuleHandle module, const char* name) {
  enter_any();
  FunctionHandle function = nullptr;
  const RuntimeCode code = entries_.module_function.function(&function, module, name);
  if (code != kRuntimeSuccess) fail(code, entries_.module_function.name + " " + name);
  return function;
}

void DeviceRuntime::launch(int device, const Launch& what, StreamHandle stream) {
  enter_stream(device, stream);
  call(entries_.launch, what.function, what.grid, 1u, 1u, what.block, 1u, 1u, what.shared_bytes, stream,
       what.parameters, nullptr);
}

// Which device, and errors -------------------------------------------------------------------------------

void DeviceRuntime::check_device(int device) const {
  if (device < 0 || device >= devices_)
    throw DeviceError("device " + std::to_string(device) + " is none of " + std::to_string(devices_));
}

void DeviceRuntime::enter_stream(int device, StreamHandle stream) {
  if (stream == nullptr) throw DeviceError("a stream is needed: the legacy default stream is not used");
  enter(device);
}

void DeviceRuntime::fail(RuntimeCode code, const std::string& name, uint64_t address, uint64_t nbytes) const {
  forget_error();
  const ErrorText error = describe(code);
  std::string message = name;
  if (nbytes != 0) message += " (address " + std::to_string(address) + ", " + std::to_string(nbytes) + " bytes)";
  message += ": error " + std::to_string(code);
  if (error.name != nullptr) message += std::string(" ") + error.name;
  if (error.text != nullptr) message += std::string(", ") + error.text;
  throw DeviceError(message);
}

}  // namespace umbp
