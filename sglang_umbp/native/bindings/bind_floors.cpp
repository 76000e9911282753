#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "floor_copy.h"
#include "floor_index.h"
#include "released_gil.h"

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
  const ReleasedGil no_gil;
  return floor_copy(fragments.data(), fragments.size(), floor_mode, threads);
}

uint64_t run_index_floor(const IndexFloor& floor, const InputArray<uint64_t>& buckets) {
  const ReleasedGil no_gil;
  return floor.run_ns({buckets.data(), buckets.shape(0)});
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
  nb::class_<IndexFloor>(m, "IndexFloor",
                         "Memory like that of an index, and the bare prefetched loop over a bucket's "
                         "line and then an\n"
                         "entry's line that look-ups are measured against.")
      .def(nb::init<uint32_t, uint64_t>(), nb::arg("entry_count"), nb::arg("seed") = 1,
           nb::call_guard<ReleasedGil>())
      .def_prop_ro("bucket_count", &IndexFloor::bucket_count)
      .def("run_ns", &run_index_floor, nb::arg("buckets"),
           "Nanoseconds of one pass over `buckets` (numbers, taken modulo bucket_count) and one "
           "entry of each.\n"
           "One thread at a time.");
}

}  // namespace umbp
