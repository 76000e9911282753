#include <nanobind/nanobind.h>

#include <tuple>

#include <nanobind/stl/tuple.h>

#include "arrays.h"
#include "planner.h"

namespace nb = nanobind;

namespace umbp {
namespace {

using RunArrays = std::tuple<OutputArray<uint64_t>, OutputArray<uint64_t>, OutputArray<uint64_t>>;

RunArrays to_run_arrays(const std::vector<Run>& runs) {
  std::vector<uint64_t> src, dst, nbytes;
  for (const Run& run : runs) {
    src.push_back(run.src);
    dst.push_back(run.dst);
    nbytes.push_back(run.nbytes);
  }
  return {to_array(std::move(src)), to_array(std::move(dst)), to_array(std::move(nbytes))};
}

RunArrays plan_arrays(const InputArray<uint64_t>& src, const InputArray<uint64_t>& dst,
                      const InputArray<uint64_t>& nbytes, const InputArray<uint32_t>& src_region,
                      const InputArray<uint32_t>& dst_region) {
  const size_t size = src.shape(0);
  check_length(dst, "dst", size);
  check_length(nbytes, "nbytes", size);
  check_length(src_region, "src_region", size);
  check_length(dst_region, "dst_region", size);
  return to_run_arrays(plan_runs(
      {src.data(), dst.data(), nbytes.data(), src_region.data(), dst_region.data(), size}));
}

}  // namespace

void bind_planner(nb::module_& m) {
  m.def("plan_runs", &plan_arrays, nb::arg("src"), nb::arg("dst"), nb::arg("nbytes"),
        nb::arg("src_region"), nb::arg("dst_region"),
        "The runs (src, dst, nbytes) of the fragments of one batch, in their order: neighbouring "
        "fragments of the same\n"
        "regions joined. Arrays of uint64 (region ids: uint32) of one length; new arrays are "
        "returned and no memory is\n"
        "touched at the addresses. Raises InvalidBatch if lengths differ, a fragment is empty or "
        "ends beyond 2**64.");
}

}  // namespace umbp
