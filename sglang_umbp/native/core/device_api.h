// What the core asks of a device runtime (the CUDA driver, HIP). Each is loaded at run time by one file
// (cuda_api.cpp, hip_api.cpp), and what they have in common is in device_runtime.h; nothing is linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "region_table.h"

namespace umbp {

// Opaque handles of the runtime: CUstream or hipStream_t, CUevent, CUmodule, CUfunction. Null: none.
using StreamHandle = void*;
using EventHandle = void*;
using ModuleHandle = void*;
using FunctionHandle = void*;

// What the runtime knows of an address. kHost: memory it has not registered.
struct PointerInfo {
  MemoryKind kind = MemoryKind::kHost;
  int32_t device = -1;        // the device of device memory; -1 for host memory
  uint64_t device_alias = 0;  // the address as the device sees it; 0 where it cannot
  uint64_t base = 0;          // the allocation that holds the address, 0 + 0 bytes where it cannot be told
  uint64_t nbytes = 0;
};

struct DeviceProperties {
  std::string name;
  int multiprocessors = 0;
  int major = 0;              // CUDA: compute capability; HIP: 0
  int minor = 0;
  std::string architecture;   // what the run-time compiler is told: "sm_90", "gfx942"
  std::string pci_bus_id;     // "0000:3b:00.0"
};

// A launch of one block shape; `parameters` are pointers to each argument, as cuLaunchKernel takes them.
struct Launch {
  FunctionHandle function;
  unsigned grid;
  unsigned block;
  unsigned shared_bytes;
  void** parameters;
};

enum class CopyDirection : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// Thread-safe. Every call makes the device's primary context current in the calling thread where the
// runtime needs that, and leaves it so. Throws DeviceError that names the call, the runtime's code and its text.
// No call uses the legacy default stream; a null StreamHandle is refused where one is required.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;
  DeviceApi() = default;
  DeviceApi(const DeviceApi&) = delete;
  DeviceApi& operator=(const DeviceApi&) = delete;

  virtual const char* name() const = 0;     // "cuda", "hip"
  virtual std::string version() const = 0;  // of driver or runtime, for logs: "12.8", "7.2.53211"
  virtual int device_count() = 0;
  virtual DeviceProperties properties(int device) = 0;

  virtual PointerInfo pointer(uint64_t address) = 0;

  // Registers host memory for every device; returns the address of `base` as devices see it. read_only:
  // the map does not allow writing (devices may only read it); throws where the runtime cannot.
  // Memory that is registered already, by whomever, throws: see PinnedMemory for what is idempotent.
  virtual uint64_t register_host(int device, uint64_t base, uint64_t nbytes, bool read_only) = 0;
  virtual void unregister_host(uint64_t base) = 0;

  virtual uint64_t allocate_device(int device, uint64_t nbytes) = 0;
  virtual void free_device(int device, uint64_t address) = 0;
  // Pinned host memory that devices may address; `alias` gets its address as `device` sees it.
  virtual void* allocate_pinned(int device, uint64_t nbytes, uint64_t* alias) = 0;
  virtual void free_pinned(void* memory) = 0;

  // Non-blocking with regard to the legacy default stream. high_priority: before other streams' work.
  virtual StreamHandle create_stream(int device, bool high_priority) = 0;
  virtual void destroy_stream(int device, StreamHandle stream) = 0;
  virtual void synchronize_stream(int device, StreamHandle stream) = 0;
  virtual bool is_stream_done(int device, StreamHandle stream) = 0;
  virtual EventHandle create_event(int device) = 0;  // without timing
  virtual void destroy_event(int device, EventHandle event) = 0;
  virtual void record_event(int device, EventHandle event, StreamHandle stream) = 0;
  virtual void wait_event(int device, StreamHandle stream, EventHandle event) = 0;  // the stream waits
  virtual bool is_event_done(int device, EventHandle event) = 0;
  virtual void synchronize_event(int device, EventHandle event) = 0;

  virtual void copy_async(int device, uint64_t dst, uint64_t src, uint64_t nbytes, StreamHandle stream) = 0;
  // How many descriptors one call of copy_batch_async may have; 0: the runtime has no batched call, and
  // copy_batch_async must not be called.
  virtual size_t max_batch() const = 0;
  // All copies of one batch go in one direction, between host memory that is pinned and device memory.
  virtual void copy_batch_async(int device, std::span<const uint64_t> dst, std::span<const uint64_t> src,
                                std::span<const uint64_t> nbytes, CopyDirection direction,
                                StreamHandle stream) = 0;

  // image: what the run-time compiler made (cubin, PTX, code object), zero-terminated where it is text.
  virtual ModuleHandle load_module(int device, std::span<const std::byte> image) = 0;
  virtual void unload_module(int device, ModuleHandle module) = 0;
  virtual FunctionHandle find_function(ModuleHandle module, const char* name) = 0;
  virtual void allow_shared_bytes(FunctionHandle function, unsigned shared_bytes) = 0;  // beyond 48 KiB
  virtual void launch(int device, const Launch& launch, StreamHandle stream) = 0;
};

// path: of the shared library ("libcuda.so.1"; for HIP what hip-python resolves). Throws DeviceError: not
// there, a symbol missing (its name), no device, or the runtime refuses to start.
std::unique_ptr<DeviceApi> load_cuda(const std::string& path);
std::unique_ptr<DeviceApi> load_hip(const std::string& path);

}  // namespace umbp
