#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "copy_pool.h"
#include "host_copy.h"
#include "released_gil.h"

namespace nb = nanobind;

namespace umbp {
namespace {

// Runs the copy of either class without the GIL.
template <typename Copier>
void copy_arrays(Copier& copier, const InputArray<uint64_t>& dst, const InputArray<uint64_t>& src,
                 const InputArray<uint64_t>& sizes) {
  const std::vector<Run> runs = to_runs(dst, src, sizes);
  const ReleasedGil no_gil;
  copier.copy(runs.data(), runs.size());
}

constexpr const char* kCopyDoc =
    "Copies sizes[i] bytes from address src[i] to dst[i] for every i; blocks, without the GIL. A "
    "door for tests and\n"
    "benchmarks: addresses are trusted. Arrays of uint64 of one length, else InvalidBatch.";

}  // namespace

void bind_copier(nb::module_& m) {
  m.def("copy_isas", &copy_isas, "Instruction sets that can copy on this CPU, best first.");
  nb::class_<HostCopier>(m, "HostCopier",
                         "Copies host memory in the calling thread. Immutable, thread-safe.")
      .def(nb::init<uint64_t, const std::string&>(), nb::arg("nt_min_bytes"),
           nb::arg("isa") = "auto",
           "Non-temporal stores for runs of nt_min_bytes and more. isa: auto, avx512, avx2, neon "
           "or plain; raises\n"
           "InvalidBatch if this CPU lacks it.")
      .def("copy", &copy_arrays<const HostCopier>, nb::arg("dst"), nb::arg("src"), nb::arg("sizes"),
           kCopyDoc)
      .def_prop_ro("isa", &HostCopier::isa)
      .def_prop_ro("nt_min_bytes", &HostCopier::nt_min_bytes);
  nb::class_<CopyPool>(m, "CopyPool",
                       "Copies host memory with helper threads. Any number of threads may call it.")
      .def(nb::init<const HostCopier&, unsigned>(), nb::arg("copier"), nb::arg("threads"),
           "threads: how many may copy one call, its caller included.")
      .def("copy", &copy_arrays<CopyPool>, nb::arg("dst"), nb::arg("src"), nb::arg("sizes"),
           kCopyDoc)
      .def("abandon", &CopyPool::abandon,
           "For a forked child: forget the helpers, which do not exist there.")
      .def_prop_ro("threads", &CopyPool::threads);
}

}  // namespace umbp
