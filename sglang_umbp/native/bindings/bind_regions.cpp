#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "region_table.h"
#include "released_gil.h"

namespace nb = nanobind;

namespace umbp {
namespace {

void add(RegionTable& table, uint64_t base, uint64_t nbytes, MemoryKind kind, int32_t device,
         uint64_t device_alias, RegionMode mode, bool grow) {
  table.add({base, nbytes, kind, device, device_alias, mode, 0}, grow);
}

std::optional<Region> find(const RegionTable& table, uint64_t address, uint64_t nbytes) {
  const RegionTable::View view = table.view();
  const Region* region = view.find(address, nbytes);
  if (region == nullptr) return std::nullopt;
  return *region;
}

void bind_region(nb::module_& m) {
  nb::enum_<MemoryKind>(m, "MemoryKind", "What kind of memory a region is.")
      .value("HOST", MemoryKind::kHost)
      .value("PINNED_HOST", MemoryKind::kPinnedHost)
      .value("DEVICE", MemoryKind::kDevice);
  nb::enum_<RegionMode>(m, "RegionMode", "What a region may be used for.")
      .value("PINNED", RegionMode::kPinned)
      .value("LOCAL_COPY_ONLY", RegionMode::kLocalCopyOnly);
  nb::class_<Region>(m, "Region",
                     "A registered buffer [base, base + nbytes); a copy, not tied to the table.")
      .def_ro("base", &Region::base)
      .def_ro("nbytes", &Region::nbytes)
      .def_ro("kind", &Region::kind)
      .def_ro("device", &Region::device)
      .def_ro("device_alias", &Region::device_alias)
      .def_ro("mode", &Region::mode)
      .def_ro("id", &Region::id);
}

}  // namespace

void bind_regions(nb::module_& m) {
  bind_region(m);
  const auto no_gil = nb::call_guard<ReleasedGil>();
  nb::class_<RegionTable>(
      m, "RegionTable",
      "Registered buffers sorted by base. Any number of threads may use one table.")
      .def(nb::init<>())
      .def("add", &add, nb::arg("base"), nb::arg("nbytes"), nb::arg("kind") = MemoryKind::kHost,
           nb::arg("device") = -1, nb::arg("device_alias") = 0,
           nb::arg("mode") = RegionMode::kPinned, nb::arg("grow") = false, no_gil,
           "Adds [base, base + nbytes). The same region twice is a no-op; grow: it is the same "
           "allocation, now larger.\n"
           "Raises RegionError: zero size, end beyond 2**64, overlap, same base with another size "
           "or attributes.")
      .def("remove", &RegionTable::remove, nb::arg("base"), no_gil,
           "Raises RegionError if no region starts at base.")
      .def("find", &find, nb::arg("address"), nb::arg("nbytes"), no_gil,
           "The region that holds every byte of the range, else None (also for 0 bytes).")
      .def("regions", &RegionTable::list, no_gil, "All regions, ascending bases.")
      .def("__len__", &RegionTable::size, no_gil)
      .def_prop_ro("shared_acquisitions", &RegionTable::shared_acquisitions,
                   "How often the shared lock was taken for a look-up (find: once a call).");
}

}  // namespace umbp
