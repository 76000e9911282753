// With what the module was built, for bug reports.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace umbp {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

nb::dict build_info() {
  nb::dict info;
  info["compiler"] = compiler();
  info["cxx_standard"] = static_cast<long>(__cplusplus);
#if defined(NDEBUG)
  info["assertions"] = false;
#else
  info["assertions"] = true;
#endif
#if defined(__SANITIZE_THREAD__)
  info["sanitizer"] = "thread";
#elif defined(__SANITIZE_ADDRESS__)
  info["sanitizer"] = "address";
#else
  info["sanitizer"] = "";
#endif
  info["nanobind"] = std::to_string(NB_VERSION_MAJOR) + "." + std::to_string(NB_VERSION_MINOR) +
                     "." + std::to_string(NB_VERSION_PATCH);
  return info;
}

}  // namespace

void bind_build(nb::module_& m) {
  m.def("build_info", &build_info, "Compiler, standard, assertions, sanitizer, and nanobind's version.");
}

}  // namespace umbp
