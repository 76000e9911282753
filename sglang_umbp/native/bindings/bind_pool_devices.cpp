// A pool's devices: the runtime it was given, and what of Python it calls back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "device_api.h"
#include "device_copier.h"
#include "errors.h"
#include "pool.h"
#include "released_gil.h"

namespace nb = nanobind;

namespace umbp {
namespace {

// A Python object that threads without the GIL may let go of.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            if (!Py_IsInitialized()) return;
            const nb::gil_scoped_acquire gil;
            delete held;
          }};
}

// The copier of a device, which keeps its Python object alive. What the maker raises, the pool's caller gets.
std::shared_ptr<DeviceCopier> make_copier(const nb::object& maker, int device) {
  const nb::gil_scoped_acquire gil;
  nb::object made = maker(device);
  auto* copier = nb::cast<DeviceCopier*>(made);
  if (copier == nullptr) throw DeviceError("there is no copier for device " + std::to_string(device));
  return {shared(std::move(made)), copier};
}

void use_devices(Pool& pool, std::shared_ptr<DeviceApi> api, nb::object maker, nb::object wanted) {
  DeviceHooks hooks;
  hooks.make_copier = [held = shared(std::move(maker))](int device) {
    return make_copier(*held, device);
  };
  if (!wanted.is_none())
    hooks.arena_wanted = [held = shared(std::move(wanted))](int device, bool writing) {
      const nb::gil_scoped_acquire gil;
      try {
        (*held)(device, writing);
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("pinning the arena");
      }
    };
  const ReleasedGil no_gil;
  pool.use_devices(std::move(api), std::move(hooks));
}

}  // namespace

void bind_pool_devices(nb::module_& m) {
  nb::borrow<nb::class_<Pool>>(m.attr("Pool"))
      .def("use_devices", &use_devices, nb::arg("api"), nb::arg("make_copier"),
           nb::arg("arena_wanted") = nb::none(),
           nb::sig("def use_devices(self, api: DeviceApi, make_copier: collections.abc.Callable[[int], DeviceCopier], "
                   "arena_wanted: collections.abc.Callable[[int, bool], None] | None = None) -> None"),
           "Batches may name device memory from now on. Raises UmbpError if the pool has a runtime already.\n\n"
           "make_copier(device) is called when memory of that device first comes up. "
           "arena_wanted(device, writing), once each:\n"
           "it is time to call ``pin_arena`` with the same arguments, in another thread.")
      .def_prop_ro("has_devices", &Pool::has_devices, "Whether it has a device runtime.")
      .def("pin_arena", &Pool::pin_arena, nb::arg("device"), nb::arg("writing"),
           nb::call_guard<ReleasedGil>(),
           "Pins the map of the arena that devices read, or the one that they write to; the bytes "
           "that this call pinned. Returns early\n"
           "when the pool closes or is lost. Raises DeviceError: what is not pinned by then goes "
           "through slabs.")
      .def("regions", &Pool::regions, "What is registered, ascending bases.");
}

}  // namespace umbp
