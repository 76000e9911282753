// The native module: exceptions, and one bind_* a file.
#include <nanobind/nanobind.h>

#include "errors.h"

namespace nb = nanobind;

namespace umbp {

void import_numpy();
void bind_build(nb::module_& m);
void bind_hash(nb::module_& m);
void bind_planner(nb::module_& m);
void bind_regions(nb::module_& m);
void bind_copier(nb::module_& m);
void bind_device(nb::module_& m);
void bind_device_copier(nb::module_& m);
void bind_floors(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_config(nb::module_& m);
void bind_session(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_remote_put(nb::module_& m);
void bind_client_put(nb::module_& m);
void bind_pool_devices(nb::module_& m);

namespace {

// The classes of sglang_umbp.errors, found when first needed.
template <class NativeError>
void translate(const char* python_name) {
  static const char* name = nullptr;
  name = python_name;
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const NativeError& error) {
      const nb::object type = nb::module_::import_("sglang_umbp.errors").attr(name);
      PyErr_SetString(type.ptr(), error.what());
    }
  });
}

}  // namespace
}  // namespace umbp

NB_MODULE(_native, m) {
  using namespace umbp;
  m.doc() = "The native core of sglang_umbp.";
  import_numpy();
  nb::set_leak_warnings(false);  // a daemon thread in a call at exit keeps its arguments
  // Later translators are asked first: the base class comes first here.
  translate<Error>("UmbpError");
  translate<InvalidBatch>("InvalidBatchError");
  translate<UnregisteredMemory>("UnregisteredMemoryError");
  translate<RegionError>("RegionError");
  translate<PoolClosed>("PoolClosedError");
  translate<ForkedPool>("ForkedPoolError");
  translate<OutOfMemory>("PoolMemoryError");
  translate<DeviceError>("DeviceError");
  bind_build(m);
  bind_hash(m);
  bind_planner(m);
  bind_regions(m);
  bind_copier(m);
  bind_device(m);
  bind_device_copier(m);
  bind_floors(m);
  bind_layout(m);
  bind_config(m);
  bind_pool(m);
  bind_session(m);
  bind_remote_put(m);
  bind_client_put(m);
  bind_pool_devices(m);
}
