#include <nanobind/nanobind.h>

#include <memory>

#include "arguments.h"
#include "errors.h"
#include "pool.h"
#include "released_gil.h"

namespace umbp {
namespace {

// A session with the Python objects that its reads need: its pool, and the namespace of its pages.
class PinnedPages {
 public:
  PinnedPages(nb::handle pool, nb::handle space, nb::handle keys, bool firm)
      : pool_object_(nb::borrow(pool)), space_object_(nb::borrow(space)),
        pool_(&nb::cast<Pool&>(pool)), space_(&nb::cast<const Components&>(space)) {
    const Digests digests(*pool_, keys);
    const ReleasedGil no_gil;
    session_ = pool_->pin(space_->list(), digests.span(), firm);
  }

  Session& session() const { return *session_; }
  Pool& pool() const { return *pool_; }
  const Components& space() const { return *space_; }
  nb::object space_object() const { return space_object_; }

 private:
  nb::object pool_object_;
  nb::object space_object_;
  Pool* pool_;
  const Components* space_;
  std::shared_ptr<Session> session_;
};

PinnedPages pin(nb::handle pool, nb::handle keys, nb::handle space, bool firm) {
  // Without a namespace: the one that sglang_umbp.Pool.open() left here.
  if (space.is_none()) return PinnedPages(pool, pool.attr("raw_namespace"), keys, firm);
  return PinnedPages(pool, space, keys, firm);
}

std::string name_of(nb::handle space) { return nb::repr(space.attr("name")).c_str(); }

[[noreturn]] void refuse_layout(const PinnedPages& held, nb::handle layout) {
  throw InvalidBatch("the layout is of namespace " +
                     name_of(layout.attr("component").attr("namespace")) + ", the session of " +
                     name_of(held.space_object()));
}

nb::list get_pages(const PinnedPages& held, nb::handle layout_object, nb::handle row_array,
                   nb::handle layer_pair, size_t first_page, bool as_status, nb::handle stream,
                   nb::handle event) {
  const Order after(stream, event);
  const auto& layout = nb::cast<const ComponentLayout&>(layout_object);
  if (!held.space().owns(layout.list)) refuse_layout(held, layout_object);
  const Layers layers(layer_pair, layout.layout);
  const Rows rows(row_array);
  std::vector<Status> answers(rows.size());
  {
    const ReleasedGil no_gil;
    held.pool().get_session_pages(held.session(), layout.part, first_page, layout.layout,
                                  rows.span(), layers.first, layers.last, answers.data(), after);
  }
  return to_answers(answers, as_status);
}

// What one part of get_components is: arguments read once.
struct PinnedRead {
  PinnedRead(const PinnedPages& held, nb::handle given)
      : part(given, "(layout, rows) or (layout, rows, layers)", 2, 3),
        layers(part[2], part.layout().layout), rows(part[1]) {
    if (!held.space().owns(part.layout().list)) refuse_layout(held, part[0]);
  }

  Part part;
  Layers layers;
  Rows rows;
};

nb::list get_components(const PinnedPages& held, nb::sequence parts, size_t first_page,
                        bool as_status, nb::handle stream, nb::handle event) {
  const Order after(stream, event);
  std::vector<PinnedRead> reads;
  reads.reserve(nb::len(parts));
  for (nb::handle part : parts) reads.emplace_back(held, part);
  std::vector<SessionGet> gets;
  std::vector<size_t> counts;
  gets.reserve(reads.size());
  counts.reserve(reads.size());
  size_t count = 0;
  for (const PinnedRead& read : reads) {
    const ComponentLayout& layout = read.part.layout();
    gets.push_back({layout.part, layout.layout, read.rows.span(), read.layers.first,
                    read.layers.last});
    counts.push_back(read.rows.size());
    count += counts.back();
  }
  std::vector<Status> answers(count);
  {
    const ReleasedGil no_gil;
    held.pool().get_session_components(held.session(), gets, first_page, answers.data(), after);
  }
  return to_answers(answers, counts, as_status);
}

size_t part_of(const PinnedPages& held, nb::handle component) {
  if (!component.is_none())
    return nb::cast<size_t>(held.space_object().attr("component")(component).attr("part"));
  if (held.space().size() == 1) return 0;
  throw InvalidBatch(
      std::string("component is needed; the namespace has ") +
      nb::str(nb::str(", ").attr("join")(held.space_object().attr("components"))).c_str());
}

nb::list get_ranges(const PinnedPages& held, nb::handle addresses, nb::handle sizes,
                    nb::handle offsets, nb::handle starts, size_t first_page, nb::handle component,
                    bool as_status, nb::handle stream, nb::handle event) {
  const Order after(stream, event);
  const size_t part = part_of(held, component);
  const Ranges ranges(addresses, sizes, offsets, starts);
  std::vector<Status> answers(ranges.batch().keys);
  {
    const ReleasedGil no_gil;
    held.pool().get_session_ranges(held.session(), part, first_page, ranges.batch(), answers.data(),
                                   after);
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
  nb::borrow<nb::class_<Pool>>(m.attr("Pool"))
      .def("pin", &pin, nb::arg("keys"), nb::kw_only(), nb::arg("namespace") = nb::none(),
           nb::arg("firm") = true);
  nb::class_<PinnedPages>(
      m, "Session",
      "The pages that ``Pool.pin`` found, held until ``close``. A context manager.\n\n"
      "Eviction passes over what a session holds. Threads may read through one session at once. A "
      "droppable\n"
      "session may be let go of at the quota; reads then look the pages up anew. After ``close``, or "
      "that of\n"
      "the pool, reads raise.")
      .def("__len__", [](const PinnedPages& held) { return held.session().pages(); })
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); },
           nb::sig("def __enter__(self) -> Session"))
      .def("__exit__", [](const PinnedPages& held, nb::args) { close(held); },
           nb::sig("def __exit__(self, *args: object) -> None"))
      .def_prop_ro("namespace", &PinnedPages::space_object, "Whose pages they are.")
      .def_prop_ro("firm", [](const PinnedPages& held) { return held.session().firm(); },
                   "Whether it keeps what it holds whatever the quota.")
      .def_prop_ro("hits", &hits, nb::sig("def hits(self) -> list[bool]"),
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
           nb::arg("status") = false, nb::arg("stream") = nb::none(), nb::arg("event") = nb::none(),
           "Copies pages first .. first+len(rows) of the session into rows of the layout, without a "
           "look-up.\n\n"
           "rows: integers, one a page, all different. layers: half-open range of the layout's "
           "fragments (default all).\n"
           "Returns one answer a page: bools, or with status=True members of Status. Blocks until "
           "every byte is there;\n"
           "releases the GIL. stream, event: see ``Pool.get_pages``. Raises InvalidBatchError, PoolClosedError, ForkedPoolError before a "
           "byte moves.")
      .def("get_components", &get_components, nb::arg("parts"), nb::kw_only(), nb::arg("first") = 0,
           nb::arg("status") = false, nb::arg("stream") = nb::none(), nb::arg("event") = nb::none(),
           "The same for several components as one batch; the answers of each part.\n\n"
           "parts: (layout, rows) or (layout, rows, layers) of each. As ``get_pages`` otherwise; no two parts may write "
           "the same\n"
           "bytes.")
      .def("get_ranges", &get_ranges, nb::arg("addresses"), nb::arg("sizes"), nb::arg("offsets"),
           nb::kw_only(), nb::arg("starts") = nb::none(), nb::arg("first") = 0,
           nb::arg("component") = nb::none(), nb::arg("status") = false,
           nb::arg("stream") = nb::none(), nb::arg("event") = nb::none(),
           "Copies raw ranges of the session's pages from ``first`` on; see "
           "``Pool.get_ranges``.\n\n"
           "component: which object of the page; needed if the namespace has several.");
}

}  // namespace umbp
