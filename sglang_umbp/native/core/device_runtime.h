// What the CUDA driver and HIP have in common: the same calls under other names, over one table of entries.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <utility>

#include "device_api.h"
#include "device_library.h"

namespace umbp {

using RuntimeCode = int;  // CUresult, hipError_t

constexpr RuntimeCode kRuntimeSuccess = 0;

// CUmemcpyAttributes, hipMemcpyAttributes.
struct CopyAttributes {
  int source_order;
  struct {
    int type, id;
  } source, destination;
  unsigned flags;
};

// Addresses are integers here also where the C prototype has a pointer: they travel alike.
struct RuntimeEntries {
  Entry<RuntimeCode(unsigned)> init;
  Entry<RuntimeCode(int*)> version;
  Entry<RuntimeCode(int*)> device_count;
  Entry<RuntimeCode(char*, int, int)> device_name;
  Entry<RuntimeCode(char*, int, int)> device_bus_id;
  Entry<RuntimeCode(int*, int, int)> device_attribute;
  Entry<RuntimeCode(int*, int*)> priority_range;
  Entry<RuntimeCode(uint64_t, size_t, unsigned)> host_register;
  Entry<RuntimeCode(uint64_t)> host_unregister;
  Entry<RuntimeCode(uint64_t*, uint64_t, unsigned)> host_alias;
  Entry<RuntimeCode(uint64_t*, size_t)> allocate;
  Entry<RuntimeCode(uint64_t)> free;
  Entry<RuntimeCode(uint64_t*, size_t, unsigned)> host_allocate;
  Entry<RuntimeCode(uint64_t)> host_free;
  Entry<RuntimeCode(StreamHandle*, unsigned, int)> stream_create;
  Entry<RuntimeCode(StreamHandle)> stream_destroy;
  Entry<RuntimeCode(StreamHandle)> stream_synchronize;
  Entry<RuntimeCode(StreamHandle)> stream_query;
  Entry<RuntimeCode(StreamHandle, EventHandle, unsigned)> stream_wait;
  Entry<RuntimeCode(EventHandle*, unsigned)> event_create;
  Entry<RuntimeCode(EventHandle)> event_destroy;
  Entry<RuntimeCode(EventHandle, StreamHandle)> event_record;
  Entry<RuntimeCode(EventHandle)> event_query;
  Entry<RuntimeCode(EventHandle)> event_synchronize;
  // Of many copies (dst, src, nbytes, count, ...); null where the runtime is too old.
  Entry<RuntimeCode(uint64_t*, uint64_t*, size_t*, size_t, CopyAttributes*, size_t*, size_t, size_t*, StreamHandle)>
      copy_batch;
  Entry<RuntimeCode(ModuleHandle*, const void*)> module_load;
  Entry<RuntimeCode(ModuleHandle)> module_unload;
  Entry<RuntimeCode(FunctionHandle*, ModuleHandle, const char*)> module_function;
  Entry<RuntimeCode(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle,
                    void**, void**)>
      launch;
};

// A runtime over its table. What derives from it binds the table, calls start() when its constructor is done with
// that, and has what only its own runtime does.
class DeviceRuntime : public DeviceApi {
 public:
  int device_count() override { return devices_; }

  uint64_t register_host(int device, uint64_t base, uint64_t nbytes, bool read_only) override;
  void unregister_host(uint64_t base) override;

  uint64_t allocate_device(int device, uint64_t nbytes) override;
  void free_device(int device, uint64_t address) override;
  void* allocate_pinned(int device, uint64_t nbytes, uint64_t* alias) override;
  void free_pinned(void* memory) override;

  StreamHandle create_stream(int device, bool high_priority) override;
  void destroy_stream(int device, StreamHandle stream) override;
  void synchronize_stream(int device, StreamHandle stream) override;
  bool is_stream_done(int device, StreamHandle stream) override;
  EventHandle create_event(int device) override;
  void destroy_event(int device, EventHandle event) override;
  void record_event(int device, EventHandle event, StreamHandle stream) override;
  void wait_event(int device, StreamHandle stream, EventHandle event) override;
  bool is_event_done(int device, EventHandle event) override;
  void synchronize_event(int device, EventHandle event) override;

  ModuleHandle load_module(int device, std::span<const std::byte> image) override;
  void unload_module(int device, ModuleHandle module) override;
  FunctionHandle find_function(ModuleHandle module, const char* name) override;
  void launch(int device, const Launch& launch, StreamHandle stream) override;

 protected:
  explicit DeviceRuntime(RuntimeEntries entries) : entries_(std::move(entries)) {}

  // Starts the runtime and asks for its version and devices, of which more than `most` are not used. Throws
  // DeviceError also where there is none; `path` is for that message.
  void start(const std::string& path, int most = std::numeric_limits<int>::max());

  // ---- what each runtime has of its own

  // Makes the device current in this thread. Throws DeviceError: there is no such device (see check_device).
  virtual void enter(int device) = 0;
  // For a call that is of no device in particular: makes some device current if that is needed. False: none can be.
  virtual bool enter_any() = 0;
  // The name and the text of a code; null where the runtime has none.
  struct ErrorText {
    const char* name;
    const char* text;
  };
  virtual ErrorText describe(RuntimeCode code) const = 0;
  // Takes back the error that the runtime remembers for whoever asks next, where it remembers any.
  virtual void forget_error() const {}
  // What the registration of a map that may only be read needs. Throws DeviceError: this device has no such thing.
  virtual unsigned read_only_flag(int device) = 0;

  // ---- for those

  const RuntimeEntries& entries() const { return entries_; }
  int version_number() const { return version_; }
  void check_device(int device) const;
  // enter(), for a call that names a stream. Throws DeviceError: it is null.
  void enter_stream(int device, StreamHandle stream);

  // Calls an entry. Throws DeviceError that names it.
  template <class Function, class... Arguments>
  void call(const Entry<Function>& entry, Arguments... arguments) const {
    const RuntimeCode code = entry.function(arguments...);
    if (code != kRuntimeSuccess) fail(code, entry.name);
  }
  // nbytes: 0: the message has no address.
  [[noreturn]] void fail(RuntimeCode code, const std::string& name, uint64_t address = 0, uint64_t nbytes = 0) const;
  void check(RuntimeCode code, const std::string& name, uint64_t address, uint64_t nbytes) const {
    if (code != kRuntimeSuccess) fail(code, name, address, nbytes);
  }

  // How messages name a call that has so many copies.
  static std::string batch_of(const std::string& name, size_t copies) {
    return name + " of " + std::to_string(copies) + " copies";
  }

  int attribute(int device, int which) const;
  // Name, address on the bus, and how many multiprocessors, by the number of that attribute.
  DeviceProperties common_properties(int device, int multiprocessors) const;
  // failed: which copy was refused, where the runtime says so.
  RuntimeCode submit_batch(std::span<const uint64_t> dst, std::span<const uint64_t> src,
                           std::span<const uint64_t> nbytes, bool with_attributes, StreamHandle stream,
                           size_t* failed) const;

 private:
  bool is_done(RuntimeCode code, const std::string& name) const;
  // Where devices see memory that was pinned just now; where they do not, `undo` gives it back, and it throws.
  uint64_t alias_or_undo(uint64_t base, const Entry<RuntimeCode(uint64_t)>& undo) const;

  RuntimeEntries entries_;
  int version_ = 0;
  int devices_ = 0;
};

}  // namespace umbp
