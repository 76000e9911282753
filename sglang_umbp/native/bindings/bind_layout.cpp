#include <nanobind/nanobind.h>

#include "arguments.h"
#include "errors.h"
#include "page_layout.h"

namespace umbp {
namespace {

void make_layout(ComponentLayout* self, const Components& components, size_t part, uint64_t rows, nb::handle bases,
                 nb::handle strides, nb::handle sizes, nb::handle object_offsets) {
  const Integers columns[4] = {{bases, "bases"}, {strides, "strides"}, {sizes, "sizes"},
                               {object_offsets, "object_offsets"}};
  for (const Integers& column : columns) column.check_size(columns[0].size());
  std::vector<LayoutFragment> fragments;
  for (size_t j = 0; j < columns[0].size(); ++j)
    fragments.push_back({columns[0].data()[j], columns[1].data()[j], columns[2].data()[j],
                         columns[3].data()[j]});
  components.part(part);  // there is one
  new (self) ComponentLayout{components.shared(), part, PageLayout(rows, std::move(fragments))};
}

}  // namespace

void bind_layout(nb::module_& m) {
  nb::class_<ComponentLayout>(m, "PageLayout",
                         "Where the fragments of a component's pages lie in the caller's buffers.")
      .def("__init__", &make_layout, nb::arg("components"), nb::arg("part"), nb::arg("rows"), nb::arg("bases"), nb::arg("strides"),
           nb::arg("sizes"), nb::arg("object_offsets"),
           "Raises InvalidBatchError unless the fragments tile the object and never overlap.")
      .def_prop_ro("rows", [](const ComponentLayout& self) { return self.layout.rows(); })
      .def_prop_ro("object_bytes", [](const ComponentLayout& self) { return self.layout.object_bytes(); })
      .def_prop_ro("fragments", [](const ComponentLayout& self) { return self.layout.fragments().size(); });
}

}  // namespace umbp
