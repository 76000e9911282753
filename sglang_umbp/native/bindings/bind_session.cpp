#include <nanobind/nanobind.h>

#include <memory>

#include "arguments.h"
#include "errors.h"
#include "pool.h"
#include "released_gil.h"

namespace umbp {
namespace {

// A session with what its reads need. Its pool, a Python object, lives as long as it does.
class PinnedPages {
 public:
  PinnedPages(nb::handle pool, const Components& space, nb::handle keys, bool firm)
      : owner_(nb::borrow(pool)), pool_(nb::cast<Pool&>(pool)), space_(&space) {
    const Digests digests(pool_, keys);
    const ReleasedGil no_gil;
    session_ = pool_.pin(space.list, digests.span(), firm);
  }

  Session& session() const { return *session_; }
  Pool& pool() const { return pool_; }
  const Components* space() const { return space_; }

 private:
  nb::object owner_;
  Pool& pool_;
  const Components* space_;  // compared, never followed
  std::shared_ptr<Session> session_;
};

std::string name_of(nb::handle namespace_object) {
  return nb::repr(namespace_object.attr("name")).c_str();
}

[[noreturn]] void refuse_layout(nb::handle self, nb::handle layout) {
  throw InvalidBatch("the layout is of namespace " + name_of(layout.attr("component").attr("namespace")) +
                     ", the session of " + name_of(self.attr("namespace")));
}

nb::list get_pages(nb::handle self, nb::handle layout_object, nb::handle row_array,
                   nb::handle layer_pair, size_t first_page, bool as_status) {
  const auto& held = nb::cast<const PinnedPages&>(self);
  const auto& layout = nb::cast<const ComponentLayout&>(layout_object);
  if (layout.space != held.space()) refuse_layout(self, layout_object);
  const Layers layers(layer_pair, layout.layout);
  const Rows rows(row_array);
  std::vector<Status> answers(rows.size());
  {
    const ReleasedGil no_gil;
    held.pool().get_session_pages(held.session(), layout.part, first_page, layout.layout,
                                  rows.span(), layers.first, layers.last, answers.data());
  }
  return to_answers(answers, as_status);
}

nb::list get_part_ranges(const PinnedPages& held, size_t part, size_t first_page,
                         nb::handle addresses, nb::handle sizes, nb::handle offsets,
                         nb::handle starts, bool as_status) {
  const Ranges ranges(addresses, sizes, offsets, starts);
  std::vector<Status> answers(ranges.batch().keys);
  {
    const ReleasedGil no_gil;
    held.pool().get_session_ranges(held.session(), part, first_page, ranges.batch(), answers.data());
  }
  return to_answers(answers, as_status);
}

nb::list hits(const PinnedPages& held) {
  nb::list pages;
  for (size_t page = 0; page < held.session().pages(); ++page)
    pages.append(held.session().held(page));
  return pages;
}

void close(const PinnedPages& held) {
  const ReleasedGil no_gil;
  held.session().close();
}

}  // namespace

void bind_session(nb::module_& m) {
  nb::class_<PinnedPages>(m, "Session", "Pinned pages; sglang_umbp.Session documents it.")
      .def(nb::init<nb::handle, const Components&, nb::handle, bool>(), nb::arg("pool"),
           nb::arg("components"), nb::arg("keys"), nb::arg("firm"))
      .def("__len__", [](const PinnedPages& held) { return held.session().pages(); })
      .def_prop_ro("firm", [](const PinnedPages& held) { return held.session().firm(); },
                   "Whether it keeps what it holds whatever the quota.")
      .def_prop_ro("hits", &hits,
                   "Per page: whether it was held when the session began, all its components.")
      .def_prop_ro("prefix", [](const PinnedPages& held) { return held.session().prefix(); },
                   "Length of the leading run of hits.")
      .def_prop_ro("nbytes", [](const PinnedPages& held) { return held.session().nbytes(); },
                   "Bytes of the objects it holds.")
      .def_prop_ro("closed", [](const PinnedPages& held) { return held.session().closed(); },
                   "Whether it was closed, or dropped at the quota.")
      .def_prop_ro("dropped", [](const PinnedPages& held) { return held.session().dropped(); },
                   "Whether the pool let go of it at the quota (droppable sessions only).")
      .def("close", &close, "Waits for reads in progress, then lets the pages go. Twice is a no-op.")
      .def("get_pages", &get_pages, nb::arg("layout"), nb::arg("rows"),
           nb::arg("layers") = nb::none(), nb::kw_only(), nb::arg("first") = 0,
           nb::arg("status") = false,
           "Copies pages first .. first+len(rows) of the session into rows of the layout, without a "
           "look-up.\n\n"
           "rows: integers, one a page, all different. layers: half-open range of the layout's "
           "fragments (default all).\n"
           "Returns one answer a page: bools, or with status=True members of Status. Blocks until "
           "every byte is there;\n"
           "releases the GIL. Raises InvalidBatchError, PoolClosedError, ForkedPoolError before a "
           "byte moves.")
      .def("get_part_ranges", &get_part_ranges, nb::arg("part"), nb::arg("first"),
           nb::arg("addresses"), nb::arg("sizes"), nb::arg("offsets"), nb::arg("starts").none(),
           nb::arg("status"));
}

}  // namespace umbp
