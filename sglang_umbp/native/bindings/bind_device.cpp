// The device runtimes, for who opens a copier or a pool, and a door to their calls for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "device_api.h"
#include "pinned_memory.h"
#include "released_gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace umbp {
namespace {

using Handle = uint64_t;  // of a stream, an event, a module, a function

void* to_pointer(Handle handle) { return reinterpret_cast<void*>(handle); }
Handle to_handle(const void* pointer) { return reinterpret_cast<Handle>(pointer); }

std::shared_ptr<DeviceApi> open_cuda(const std::string& path) {
  const ReleasedGil no_gil;
  return load_cuda(path);
}
std::shared_ptr<DeviceApi> open_hip(const std::string& path) {
  const ReleasedGil no_gil;
  return load_hip(path);
}

nb::dict properties(DeviceApi& api, int device) {
  const DeviceProperties found = api.properties(device);
  nb::dict d;
  d["name"] = found.name;
  d["multiprocessors"] = found.multiprocessors;
  d["major"] = found.major;
  d["minor"] = found.minor;
  d["architecture"] = found.architecture;
  d["pci_bus_id"] = found.pci_bus_id;
  return d;
}

const char* kind_name(MemoryKind kind) {
  constexpr const char* kNames[] = {"host", "pinned_host", "device"};
  return kNames[static_cast<int>(kind)];
}

nb::dict pointer(DeviceApi& api, uint64_t address) {
  const PointerInfo found = api.pointer(address);
  nb::dict d;
  d["kind"] = kind_name(found.kind);
  d["device"] = found.device;
  d["device_alias"] = found.device_alias;
  d["base"] = found.base;
  d["nbytes"] = found.nbytes;
  return d;
}

nb::tuple allocate_pinned(DeviceApi& api, int device, uint64_t nbytes) {
  uint64_t alias = 0;
  void* memory = api.allocate_pinned(device, nbytes, &alias);
  return nb::make_tuple(to_handle(memory), alias);
}

std::span<const uint64_t> to_span(const InputArray<uint64_t>& array) { return {array.data(), array.shape(0)}; }

void copy_batch(DeviceApi& api, int device, const InputArray<uint64_t>& dst, const InputArray<uint64_t>& src,
                const InputArray<uint64_t>& sizes, bool to_device, Handle stream) {
  check_length(dst, "dst", src.shape(0));
  check_length(sizes, "sizes", src.shape(0));
  const auto direction = to_device ? CopyDirection::kHostToDevice : CopyDirection::kDeviceToHost;
  const ReleasedGil no_gil;
  api.copy_batch_async(device, to_span(dst), to_span(src), to_span(sizes), direction, to_pointer(stream));
}

Handle load_module(DeviceApi& api, int device, const nb::bytes& image) {
  return to_handle(api.load_module(device, {static_cast<const std::byte*>(image.data()), image.size()}));
}

void launch(DeviceApi& api, int device, Handle function, unsigned grid, unsigned block, unsigned shared_bytes,
            const std::vector<uint64_t>& parameters, Handle stream) {
  std::vector<void*> pointers;
  for (const uint64_t& parameter : parameters) pointers.push_back(const_cast<uint64_t*>(&parameter));
  api.launch(device, {to_pointer(function), grid, block, shared_bytes, pointers.data()}, to_pointer(stream));
}

void bind_memory(nb::class_<DeviceApi>& api) {
  api.def("pointer", &pointer, "address"_a,
          "What the runtime knows of an address: kind ('host': nothing), device, device_alias, and the base and nbytes\n"
          "of the allocation that holds it (0: it cannot be told).")
      .def("register_host", &DeviceApi::register_host, "device"_a, "base"_a, "nbytes"_a, "read_only"_a = false,
           nb::call_guard<ReleasedGil>(), "Pins host memory in one call; its address as devices see it.")
      .def("unregister_host", &DeviceApi::unregister_host, "base"_a, nb::call_guard<ReleasedGil>())
      .def("allocate_device", &DeviceApi::allocate_device, "device"_a, "nbytes"_a, nb::call_guard<ReleasedGil>())
      .def("free_device", &DeviceApi::free_device, "device"_a, "address"_a, nb::call_guard<ReleasedGil>())
      .def("allocate_pinned", &allocate_pinned, "device"_a, "nbytes"_a, "Its address, and the same as devices see it.")
      .def(
          "free_pinned", [](DeviceApi& self, uint64_t address) { self.free_pinned(to_pointer(address)); },
          "address"_a, nb::call_guard<ReleasedGil>());
}

void bind_streams(nb::class_<DeviceApi>& api) {
  api.def(
         "create_stream", [](DeviceApi& self, int d, bool high) { return to_handle(self.create_stream(d, high)); },
         "device"_a, "high_priority"_a = false)
      .def(
          "destroy_stream", [](DeviceApi& self, int d, Handle s) { self.destroy_stream(d, to_pointer(s)); },
          "device"_a, "stream"_a, nb::call_guard<ReleasedGil>())
      .def(
          "synchronize_stream", [](DeviceApi& self, int d, Handle s) { self.synchronize_stream(d, to_pointer(s)); },
          "device"_a, "stream"_a, nb::call_guard<ReleasedGil>())
      .def(
          "is_stream_done", [](DeviceApi& self, int d, Handle s) { return self.is_stream_done(d, to_pointer(s)); },
          "device"_a, "stream"_a)
      .def(
          "create_event", [](DeviceApi& self, int d) { return to_handle(self.create_event(d)); }, "device"_a)
      .def(
          "destroy_event", [](DeviceApi& self, int d, Handle e) { self.destroy_event(d, to_pointer(e)); }, "device"_a,
          "event"_a)
      .def(
          "record_event",
          [](DeviceApi& self, int d, Handle e, Handle s) { self.record_event(d, to_pointer(e), to_pointer(s)); },
          "device"_a, "event"_a, "stream"_a)
      .def(
          "wait_event",
          [](DeviceApi& self, int d, Handle s, Handle e) { self.wait_event(d, to_pointer(s), to_pointer(e)); },
          "device"_a, "stream"_a, "event"_a, "The stream waits, not the caller.")
      .def(
          "is_event_done", [](DeviceApi& self, int d, Handle e) { return self.is_event_done(d, to_pointer(e)); },
          "device"_a, "event"_a)
      .def(
          "synchronize_event", [](DeviceApi& self, int d, Handle e) { self.synchronize_event(d, to_pointer(e)); },
          "device"_a, "event"_a, nb::call_guard<ReleasedGil>());
}

void bind_work(nb::class_<DeviceApi>& api) {
  api.def(
         "copy_async",
         [](DeviceApi& self, int d, uint64_t dst, uint64_t src, uint64_t nbytes, Handle s) {
           self.copy_async(d, dst, src, nbytes, to_pointer(s));
         },
         "device"_a, "dst"_a, "src"_a, "nbytes"_a, "stream"_a)
      .def_prop_ro("max_batch", &DeviceApi::max_batch, "Copies in one batched call; 0: it has none.")
      .def("copy_batch_async", &copy_batch, "device"_a, "dst"_a, "src"_a, "sizes"_a, "to_device"_a, "stream"_a)
      .def("load_module", &load_module, "device"_a, "image"_a)
      .def(
          "unload_module", [](DeviceApi& self, int d, Handle m) { self.unload_module(d, to_pointer(m)); }, "device"_a,
          "module"_a)
      .def(
          "find_function",
          [](DeviceApi& self, Handle m, const char* name) { return to_handle(self.find_function(to_pointer(m), name)); },
          "module"_a, "name"_a)
      .def(
          "allow_shared_bytes",
          [](DeviceApi& self, Handle f, unsigned nbytes) { self.allow_shared_bytes(to_pointer(f), nbytes); },
          "function"_a, "shared_bytes"_a)
      .def("launch", &launch, "device"_a, "function"_a, "grid"_a, "block"_a, "shared_bytes"_a, "parameters"_a,
           "stream"_a, "parameters: 64-bit integers, passed by value.");
}

void bind_pinned(nb::module_& m) {
  nb::class_<PinnedMemory>(m, "PinnedMemory",
                           "Host memory that devices may address, registered in chunks and counted; a door for tests. "
                           "Thread-safe.")
      .def(nb::init<std::shared_ptr<DeviceApi>, int, uint64_t>(), "api"_a, "device"_a,
           "chunk_bytes"_a = PinnedMemory::kChunkBytes)
      .def("pin", &PinnedMemory::pin, "base"_a, "nbytes"_a, "read_only"_a = false, "page_bytes"_a = 4096,
           nb::call_guard<ReleasedGil>(),
           "Pins the pages of a range; what is pinned already is counted once more. Raises DeviceError (nothing of this "
           "call\nstays pinned) or RegionError.")
      .def("unpin", &PinnedMemory::unpin, "base"_a, "nbytes"_a, nb::call_guard<ReleasedGil>(),
           "Undoes one pin of the same range. Raises RegionError: it is not pinned.")
      .def(
          "at",
          [](const PinnedMemory& self, uint64_t address) {
            const PinnedMemory::Piece piece = self.at(address);
            return nb::make_tuple(piece.nbytes, piece.alias);
          },
          "address"_a, "(nbytes, alias): how much from `address` on is one piece, and where devices see it; (0, 0).")
      .def_prop_ro("pinned_bytes", &PinnedMemory::pinned_bytes);
}

}  // namespace

void bind_device(nb::module_& m) {
  nb::class_<DeviceApi> api(m, "DeviceApi",
                            "A device runtime, loaded at run time. Its calls are a door for tests: addresses and "
                            "handles (integers) are\ntrusted. Every one may raise DeviceError. Thread-safe.");
  api.def_prop_ro("name", &DeviceApi::name, "'cuda' or 'hip'.")
      .def_prop_ro("version", &DeviceApi::version, "Of the driver or runtime: '12.8'.")
      .def_prop_ro("device_count", &DeviceApi::device_count)
      .def("properties", &properties, "device"_a,
           "name, multiprocessors, major, minor, architecture and pci_bus_id.");
  bind_memory(api);
  bind_streams(api);
  bind_work(api);
  bind_pinned(m);
  m.def("load_cuda", &open_cuda, "path"_a,
        "The CUDA driver in the shared library `path`. Raises DeviceError: it is not there, lacks a symbol (named), or "
        "has no device.");
  m.def("load_hip", &open_hip, "path"_a,
        "The HIP runtime in the shared library `path`, which hip-python resolves. Raises DeviceError as load_cuda.");
}

}  // namespace umbp
