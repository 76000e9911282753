#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "floor_copy.h"

namespace nb = nanobind;

namespace umbp {
namespace {

FloorMode to_mode(const std::string& mode) {
  if (mode == "memcpy") return FloorMode::kMemcpy;
  if (mode == "nt") return FloorMode::kNonTemporal;
  throw InvalidBatch("floor mode '" + mode + "' is neither 'memcpy' nor 'nt'");
}

uint64_t floor_of_arrays(const InputArray<uint64_t>& dst, const InputArray<uint64_t>& src,
                         const InputArray<uint64_t>& sizes, const std::string& mode,
                         unsigned threads) {
  const std::vector<Run> fragments = to_runs(dst, src, sizes);
  const FloorMode floor_mode = to_mode(mode);
  const nb::gil_scoped_release no_gil;
  return floor_copy(fragments.data(), fragments.size(), floor_mode, threads);
}

}  // namespace

void bind_floors(nb::module_& m) {
  m.def("floor_copy", &floor_of_arrays, nb::arg("dst"), nb::arg("src"), nb::arg("sizes"),
        nb::arg("mode"), nb::arg("threads") = 1,
        "Nanoseconds of a bare loop that copies sizes[i] bytes from address src[i] to dst[i], one "
        "fragment after the\n"
        "other. mode: 'memcpy' or 'nt' (non-temporal stores). threads: 1, or 2 that take half the "
        "list each; the second\n"
        "one is awake before the clock starts. Addresses are trusted. Blocks, without the GIL. "
        "Raises InvalidBatch if\n"
        "lengths differ or mode or threads is another.");
}

}  // namespace umbp
