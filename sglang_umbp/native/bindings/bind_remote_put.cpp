#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <cmath>

#include "arguments.h"
#include "errors.h"
#include "pool.h"
#include "released_gil.h"
#include "remote_batch.h"

namespace umbp {
namespace {

std::chrono::nanoseconds to_timeout(double seconds) {
  constexpr double kLongest = 1e6;  // seconds; no clock wraps
  if (!(seconds >= 0 && seconds <= kLongest))
    throw InvalidBatch("deadline_s is " + std::to_string(seconds) + "; allowed: 0 to 1000000");
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// The owner's half ----------------------------------------------------------------------------------

std::unique_ptr<RemoteBatch> reserve(Pool& pool, const Components& components, size_t part,
                                     nb::handle keys, nb::handle sizes,
                                     std::optional<uint32_t> depth) {
  const HeldKeys held(pool, keys);
  const Integers object_sizes(sizes, "sizes");
  object_sizes.check_size(held.size());
  return std::make_unique<RemoteBatch>(pool, components.part(part), held.digests(), held.views(),
                                       object_sizes.data(), depth);
}

void allocate(RemoteBatch& batch, double deadline_s) {
  const auto timeout = to_timeout(deadline_s);
  const ReleasedGil no_gil;
  batch.allocate(timeout);
}

bool await_busy(RemoteBatch& batch, double deadline_s) {
  const auto timeout = to_timeout(deadline_s);
  const ReleasedGil no_gil;
  return batch.await_busy(timeout);
}

template <class T>
nb::bytes bytes_of(const std::vector<T>& values) {
  return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

nb::tuple answers(const RemoteBatch& batch) {
  std::vector<uint8_t> phases, statuses;
  std::vector<uint64_t> offsets;
  std::vector<RemoteBatch::Answer> all;
  {
    const ReleasedGil no_gil;  // a step may be waiting
    all = batch.answers();
  }
  for (const RemoteBatch::Answer& answer : all) {
    phases.push_back(static_cast<uint8_t>(answer.phase));
    statuses.push_back(static_cast<uint8_t>(answer.status));
    offsets.push_back(answer.phase == PutPhase::kNew ? answer.offset : 0);
  }
  return nb::make_tuple(bytes_of(phases), bytes_of(statuses), bytes_of(offsets));
}

// The client's half ---------------------------------------------------------------------------------

// Where a client's put copies from: arguments read once, so that what was checked before the owner
// reserved anything is what is copied.
class PutSource {
 public:
  virtual ~PutSource() = default;
  virtual bool fill(Pool& pool, const FillTargets& targets, const CopyOrder& after) const = 0;
  size_t size() const { return statuses_.size(); }
  const std::vector<Status>& statuses() const { return statuses_; }
  uint64_t nbytes(size_t i) const { return object_bytes(i); }

 protected:
  virtual uint64_t object_bytes(size_t i) const = 0;
  std::vector<Status> statuses_;
};

class PageSource : public PutSource {
 public:
  PageSource(Pool& pool, const ComponentLayout& layout, nb::handle rows)
      : layout_(layout.layout), rows_(rows) {
    statuses_.assign(rows_.size(), Status::kOk);
    const ReleasedGil no_gil;
    pool.check_put_pages(layout_, rows_.span());
  }
  bool fill(Pool& pool, const FillTargets& targets, const CopyOrder& after) const override {
    return pool.fill_pages(layout_, rows_.span(), targets, after);
  }

 private:
  uint64_t object_bytes(size_t) const override { return layout_.object_bytes(); }

  PageLayout layout_;
  Rows rows_;
};

class RangeSource : public PutSource {
 public:
  // Whole objects of one range each.
  RangeSource(Pool& pool, nb::handle addresses, nb::handle sizes)
      : object_bytes_(sizes, "sizes"), ranges_(addresses, sizes) {
    check(pool);
  }
  RangeSource(Pool& pool, nb::handle object_sizes, nb::handle addresses, nb::handle sizes,
              nb::handle offsets, nb::handle starts)
      : object_bytes_(object_sizes, "object_sizes"), ranges_(addresses, sizes, offsets, starts) {
    check(pool);
  }
  bool fill(Pool& pool, const FillTargets& targets, const CopyOrder& after) const override {
    return pool.fill_ranges(object_bytes_.data(), ranges_.batch(), targets, after);
  }

 private:
  uint64_t object_bytes(size_t i) const override { return object_bytes_.data()[i]; }
  void check(Pool& pool) {
    object_bytes_.check_size(ranges_.batch().keys);
    statuses_.resize(ranges_.batch().keys);
    const ReleasedGil no_gil;
    pool.check_put_ranges(object_bytes_.data(), ranges_.batch(), statuses_.data());
  }

  Integers object_bytes_;
  Ranges ranges_;
};

std::unique_ptr<PutSource> page_source(Pool& pool, const ComponentLayout& layout, nb::handle rows) {
  return std::make_unique<PageSource>(pool, layout, rows);
}

std::unique_ptr<PutSource> whole_source(Pool& pool, nb::handle addresses, nb::handle sizes) {
  return std::make_unique<RangeSource>(pool, addresses, sizes);
}

std::unique_ptr<PutSource> range_source(Pool& pool, nb::handle object_sizes, nb::handle addresses,
                                        nb::handle sizes, nb::handle offsets, nb::handle starts) {
  return std::make_unique<RangeSource>(pool, object_sizes, addresses, sizes, offsets, starts);
}

nb::bytes statuses(const PutSource& source) { return bytes_of(source.statuses()); }

nb::bytes source_sizes(const PutSource& source) {
  std::vector<uint64_t> sizes(source.size());
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = source.nbytes(i);
  return bytes_of(sizes);
}

bool fill(Pool& pool, const PutSource& source, nb::handle picks, nb::handle offsets, nb::handle stream,
          nb::handle event) {
  const Order after(stream, event);
  const Integers items(picks, "picks");
  const Integers places(offsets, "offsets");
  const ReleasedGil no_gil;
  return source.fill(pool, {{items.data(), items.size()}, {places.data(), places.size()}}, after);
}

}  // namespace

void bind_remote_put(nb::module_& m) {
  nb::class_<RemoteBatch>(
      m, "RemoteBatch",
      "The owner's half of a put whose bytes another process copies; from ``Pool.reserve``.\n\n"
      "``allocate``, then the client copies what is new, then ``commit``; while that says False, "
      "``await_busy``, and\n"
      "while that says False, ``allocate`` again. A step out of turn, or after ``abandon``, raises "
      "InvalidBatchError.\n"
      "Nothing is visible before ``commit``. Deleting a batch that is not over abandons it. Releases "
      "the GIL; steps of\n"
      "one batch take turns.")
      .def("allocate", &allocate, nb::arg("deadline_s"),
           "Reserves room for the keys that are new; waits for room no longer than this. ``answers`` "
           "then says where.")
      .def("commit", &RemoteBatch::commit, nb::call_guard<ReleasedGil>(),
           "Makes visible what was reserved, of which the client has copied every byte. Whether the "
           "batch is over.")
      .def("await_busy", &await_busy, nb::arg("deadline_s"),
           "Waits for other puts of the same keys. Whether the batch is over; else ``allocate`` comes "
           "next.")
      .def("abandon", &RemoteBatch::abandon, nb::call_guard<ReleasedGil>(),
           "Frees what is reserved and not committed. From any thread; cuts a step that waits short; "
           "again is a no-op.\n\n"
           "Only once the client's process has ended, or by its own word that it does not copy any "
           "more: the memory is\n"
           "given to others.")
      .def("answers", &answers,
           nb::sig("def answers(self) -> tuple[bytes, bytes, bytes]"),
           "Per key: phase (one byte, PHASE_*), status code (one byte, once PHASE_DONE), offset in the "
           "arena (eight\n"
           "bytes, as the machine orders them, while PHASE_NEW).")
      .def("__len__", &RemoteBatch::size)
      .def_prop_ro("over", &RemoteBatch::over, "Every key has its status; nothing is reserved.")
      .def_prop_ro("abandoned", &RemoteBatch::abandoned)
      .def_prop_ro("nbytes_reserved", &RemoteBatch::nbytes_reserved,
                   "Bytes of the keys that are reserved and not committed.")
      .def_prop_ro("nbytes_held", &RemoteBatch::nbytes_held,
                   "Those, and the objects found there, which eviction passes over until the batch is "
                   "over.");
  m.attr("PHASE_PENDING") = static_cast<int>(PutPhase::kPending);
  m.attr("PHASE_NEW") = static_cast<int>(PutPhase::kNew);
  m.attr("PHASE_DUPLICATE") = static_cast<int>(PutPhase::kDuplicate);
  m.attr("PHASE_PRESENT") = static_cast<int>(PutPhase::kPresent);
  m.attr("PHASE_BUSY") = static_cast<int>(PutPhase::kBusy);
  m.attr("PHASE_DONE") = static_cast<int>(PutPhase::kDone);

  nb::class_<PutSource>(
      m, "PutSource",
      "Where a put of an attached pool copies from: checked and unchanging. The memory itself is the "
      "caller's.")
      .def("__len__", &PutSource::size)
      .def_prop_ro("statuses", &statuses, nb::sig("def statuses(self) -> bytes"),
                   "Per item a status code (one byte): 0, or why it cannot be put (BAD_RANGE, "
                   "NOT_TILED).")
      .def_prop_ro("sizes", &source_sizes, nb::sig("def sizes(self) -> bytes"),
                   "Per item the object's bytes (eight bytes, as the machine orders them).");

  nb::borrow<nb::class_<Pool>>(m.attr("Pool"))
      .def("reserve", &reserve, nb::arg("components"), nb::arg("part"), nb::arg("keys"),
           nb::arg("sizes"), nb::arg("depth") = nb::none(), nb::keep_alive<0, 1>(),
           "A put batch that another process will fill; see RemoteBatch. Only for the pool's owner. "
           "Nothing is reserved\n"
           "before its ``allocate``. Raises InvalidBatchError, UmbpError.")
      .def("page_source", &page_source, nb::arg("layout"), nb::arg("rows"),
           "The rows (integers, one an object) of a layout as the source of a put. Raises "
           "InvalidBatchError.")
      .def("whole_source", &whole_source, nb::arg("addresses"), nb::arg("sizes"),
           "Whole objects, one range each, as the source of a put; as ``put_whole`` takes them.")
      .def("range_source", &range_source, nb::arg("object_sizes"), nb::arg("addresses"),
           nb::arg("sizes"), nb::arg("offsets"), nb::arg("starts").none(),
           "Ranges that tile objects as the source of a put; as ``put_ranges`` takes them.")
      .def("fill", &fill, nb::arg("source"), nb::arg("picks"), nb::arg("offsets"),
           nb::arg("stream") = nb::none(), nb::arg("event") = nb::none(),
           "Copies item picks[i] of the source to offsets[i] in the arena; only for attached pools. stream, event: "
           "see\n"
           "``Pool.put_pages``.\n\n"
           "True: every byte is there. False: the pool is lost, nothing was copied. Releases the GIL. "
           "Raises\n"
           "InvalidBatchError before a byte moves: a pick that is not in the source or whose status is "
           "not 0, an offset whose\n"
           "object is not in the arena, memory that is not registered.");
}

}  // namespace umbp
