// The copier of device memory, a door for benchmarks, calibration and tests: addresses are trusted.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "device_calibration.h"
#include "device_copier.h"
#include "released_gil.h"

namespace nb = nanobind;

namespace umbp {
namespace {

constexpr const char* kWays[] = {"auto", "dma", "kernel", "bulk", "dma_each"};
constexpr const char* kDirections[] = {"to_device", "to_host", "within_device"};

template <class Enum, size_t N>
Enum to_enum(const std::string& name, const char* const (&names)[N], const char* what) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) throw InvalidBatch("no " + std::string(what) + " '" + name + "'");
  return static_cast<Enum>(found - std::begin(names));
}

CopyOrder to_order(uint64_t stream, uint64_t event) {
  return {reinterpret_cast<StreamHandle>(stream), reinterpret_cast<EventHandle>(event)};
}

std::unique_ptr<DeviceCopier> make_copier(std::shared_ptr<DeviceApi> api, int device, const nb::bytes& kernels,
                                          const CopyThresholds& thresholds, unsigned max_lanes) {
  const std::span image(static_cast<const std::byte*>(kernels.data()), kernels.size());
  const ReleasedGil no_gil;
  return std::make_unique<DeviceCopier>(std::move(api), device, image, thresholds, max_lanes);
}

uint64_t copy(DeviceCopier& copier, const InputArray<uint64_t>& dst, const InputArray<uint64_t>& src,
          const InputArray<uint64_t>& sizes, const std::string& direction, const std::string& way, uint64_t stream,
          uint64_t event, std::optional<size_t> fragments, unsigned repeats) {
  // Kept, because the pages of a new one cost a large copy more time than its arithmetic does.
  static thread_local std::vector<Run> runs;
  to_runs_in(runs, dst, src, sizes);
  const auto to = to_enum<CopyDirection>(direction, kDirections, "direction");
  const auto by = to_enum<CopyWay>(way, kWays, "way");
  const ReleasedGil no_gil;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < repeats; ++i) {
    copier.submit(runs, fragments.value_or(runs.size()), to, to_order(stream, event), by).wait();
  }
  const std::chrono::nanoseconds needed = std::chrono::steady_clock::now() - begin;
  return static_cast<uint64_t>(needed.count());
}

nb::dict totals(const DeviceCopier& copier) {
  const DeviceCopyTotals totals = copier.totals();
  nb::dict ways;
  for (size_t i = 1; i < std::size(kWays); ++i) ways[kWays[i]] = totals.by_way[i];
  nb::dict d;
  d["fragments"] = totals.fragments;
  d["descriptors"] = totals.descriptors;
  d["calls"] = totals.calls;
  d["bytes"] = totals.bytes;
  d["submit_ns"] = totals.submit_ns;
  d["by_way"] = ways;
  return d;
}

using Grids = CopyThresholds::Grids;

void init_thresholds(CopyThresholds* self, uint64_t dma_from_bytes, const Grids& h2d_grids, const Grids& d2h_grids,
                     const Grids& bulk_h2d_grids, const Grids& bulk_d2h_grids,
                     const std::array<bool, CopyThresholds::kClasses>& bulk, unsigned d2h_grid_beside_h2d,
                     uint64_t launch_bytes, unsigned grid_cap) {
  new (self) CopyThresholds{dma_from_bytes, h2d_grids, d2h_grids, bulk_h2d_grids, bulk_d2h_grids, bulk,
                            d2h_grid_beside_h2d, launch_bytes, grid_cap};
}

nb::dict thresholds_dict(const CopyThresholds& self) {
  nb::dict d;
  d["dma_from_bytes"] = self.dma_from_bytes;
  d["h2d_grids"] = self.h2d_grids;
  d["d2h_grids"] = self.d2h_grids;
  d["bulk_h2d_grids"] = self.bulk_h2d_grids;
  d["bulk_d2h_grids"] = self.bulk_d2h_grids;
  d["bulk"] = self.bulk;
  d["d2h_grid_beside_h2d"] = self.d2h_grid_beside_h2d;
  d["launch_bytes"] = self.launch_bytes;
  d["grid_cap"] = self.grid_cap;
  return d;
}

CopyThresholds calibrated(DeviceCopier& copier) {
  const ReleasedGil no_gil;
  return calibrate(copier);
}

}  // namespace

void bind_device_copier(nb::module_& m) {
  const CopyThresholds usual;
  nb::class_<CopyThresholds>(m, "CopyThresholds",
                             "Where the copier changes its way, and blocks of its kernels by mean bytes of a run: "
                             "below 4096, 16384,\n65536, and more. bulk: the bulk kernel instead of the plain one. "
                             "d2h_grid_beside_h2d: blocks of copies to the host\nwhile there are copies to the device. "
                             "launch_bytes: of one launch, about. Immutable.")
      .def("__init__", &init_thresholds, nb::kw_only(), nb::arg("dma_from_bytes") = usual.dma_from_bytes,
           nb::arg("h2d_grids") = usual.h2d_grids, nb::arg("d2h_grids") = usual.d2h_grids,
           nb::arg("bulk_h2d_grids") = usual.bulk_h2d_grids, nb::arg("bulk_d2h_grids") = usual.bulk_d2h_grids,
           nb::arg("bulk") = usual.bulk, nb::arg("d2h_grid_beside_h2d") = usual.d2h_grid_beside_h2d,
           nb::arg("launch_bytes") = usual.launch_bytes, nb::arg("grid_cap") = usual.grid_cap)
      .def("as_dict", &thresholds_dict, "The arguments that make an equal one.");
  nb::class_<DeviceCopier>(m, "DeviceCopier",
                           "Copies between pinned host memory and the memory of one device. Thread-safe.")
      .def(nb::new_(&make_copier), nb::arg("api"), nb::arg("device"), nb::arg("kernels"), nb::arg("thresholds"),
           nb::arg("max_lanes") = 8,
           "kernels: the compiled image of device/kernels.cu, empty: DMA serves everything. Raises DeviceError.")
      .def("copy", &copy, nb::arg("dst"), nb::arg("src"), nb::arg("sizes"), nb::arg("direction"),
           nb::arg("way") = "auto", nb::arg("stream") = 0, nb::arg("event") = 0, nb::arg("fragments") = nb::none(),
           nb::arg("repeats") = 1,
           "Copies sizes[i] bytes from address src[i] to dst[i] for every i, after what the stream holds and the event "
           "marks\n(handles, 0: none); returns when every byte is there, without the GIL meanwhile: the nanoseconds "
           "from the first look\nat the runs to that moment. A door for tests and benchmarks: addresses are trusted, and "
           "are as the device sees them.\ndirection: to_device, to_host or within_device; way: auto, dma, kernel, bulk "
           "or dma_each. repeats: the copy so often, one\nafter the other. Arrays of uint64 of one length, else "
           "InvalidBatch. Raises DeviceError.")
      .def("totals", &totals, "Counters of all copies so far, as a dict; by_way counts copies.")
      .def("calibrate", &calibrated,
           "Thresholds measured in about 100 ms; the copier keeps its own. Nobody else may copy meanwhile. Raises "
           "DeviceError.")
      .def_prop_rw("thresholds", &DeviceCopier::thresholds, &DeviceCopier::set_thresholds)
      .def_prop_ro("has_kernels", &DeviceCopier::has_kernels)
      .def_prop_ro("device", &DeviceCopier::device);
}

}  // namespace umbp
