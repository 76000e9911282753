#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <cstring>

#include "arguments.h"
#include "errors.h"
#include "pool.h"
#include "put_source.h"
#include "released_gil.h"
#include "remote_batch.h"

namespace umbp {
namespace {

constexpr uint32_t kMaxKeyBytes = 1 << 20;  // as for a caller's keys

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

// Consecutive keys of one component each: (components, part, count, depth of the first).
class Groups {
 public:
  explicit Groups(nb::sequence groups) {
    for (nb::handle item : groups) {
      const auto group = nb::cast<nb::tuple>(item);
      if (group.size() != 4) throw InvalidBatch("a group is (components, part, count, depth)");
      const auto& components = nb::cast<const Components&>(group[0]);
      list_.push_back({components.part(nb::cast<size_t>(group[1])), nb::cast<size_t>(group[2]),
                       nb::cast<uint32_t>(group[3])});
    }
  }
  std::span<const RemoteBatch::Group> span() const { return list_; }

 private:
  std::vector<RemoteBatch::Group> list_;
};

template <class T>
std::vector<T> unpacked(nb::bytes packed, const char* name) {
  if (packed.size() % sizeof(T) != 0)
    throw InvalidBatch(std::string(name) + " has " + std::to_string(packed.size()) +
                       " bytes; allowed: a multiple of " + std::to_string(sizeof(T)));
  std::vector<T> values(packed.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), packed.data(), packed.size());
  return values;
}

std::vector<std::string_view> split(nb::bytes keys, const std::vector<uint32_t>& key_sizes) {
  std::vector<std::string_view> views;
  const auto* const bytes = static_cast<const char*>(keys.data());
  size_t at = 0;
  for (const uint32_t size : key_sizes) {
    if (size > kMaxKeyBytes)
      throw InvalidBatch("a key has " + std::to_string(size) + " bytes; allowed: up to " +
                         std::to_string(kMaxKeyBytes));
    if (size > keys.size() - at) break;
    views.emplace_back(bytes + at, size);
    at += size;
  }
  if (views.size() != key_sizes.size() || at != keys.size())
    throw InvalidBatch("keys has " + std::to_string(keys.size()) +
                       " bytes, which is not the sum of key_sizes");
  return views;
}

std::unique_ptr<RemoteBatch> reserve_packed(Pool& pool, nb::sequence groups, nb::bytes keys,
                                            nb::bytes key_sizes, nb::bytes sizes) {
  const Groups grouped(groups);
  const std::vector<std::string_view> views = split(keys, unpacked<uint32_t>(key_sizes, "key_sizes"));
  const std::vector<uint64_t> object_sizes = unpacked<uint64_t>(sizes, "sizes");
  if (object_sizes.size() != views.size())
    throw InvalidBatch(std::to_string(views.size()) + " keys, but " +
                       std::to_string(object_sizes.size()) + " sizes");
  std::vector<Hash128> digests(views.size());
  pool.digest(views, digests.data());
  return std::make_unique<RemoteBatch>(pool, grouped.span(), digests, views, object_sizes.data());
}

template <class T>
nb::bytes bytes_of(const std::vector<T>& values) {
  return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

using Step = RemoteBatch::Next (RemoteBatch::*)(std::chrono::nanoseconds);

template <Step step>
nb::tuple run(RemoteBatch& batch, double deadline_s) {
  const auto timeout = to_timeout(deadline_s);
  RemoteBatch::Next next;
  {
    const ReleasedGil no_gil;
    next = (batch.*step)(timeout);
  }
  return nb::make_tuple(next.over, bytes_of(next.picks), bytes_of(next.offsets),
                        bytes_of(next.statuses));
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
      .def("start", &run<&RemoteBatch::start>, nb::arg("deadline_s"),
           nb::sig("def start(self, deadline_s: float) -> tuple[bool, bytes, bytes, bytes]"),
           "All steps up to where the client's part comes, or the end: (over, picks, offsets, statuses).\n\n"
           "Not over: picks (uint32) are keys to copy, offsets (uint64) where to; then ``proceed``. Over: a "
           "status code (one\n"
           "byte) a key. Waits no longer than this in all.")
      .def("proceed", &run<&RemoteBatch::proceed>, nb::arg("deadline_s"),
           nb::sig("def proceed(self, deadline_s: float) -> tuple[bool, bytes, bytes, bytes]"),
           "The same once the client has copied what was picked: makes it visible first.")
      .def("__len__", &RemoteBatch::size)
      .def_prop_ro("over", &RemoteBatch::over, "Every key has its status; nothing is reserved.")
      .def_prop_ro("abandoned", &RemoteBatch::abandoned)
      .def_prop_ro("nbytes_asked", &RemoteBatch::nbytes_asked,
                   "Bytes of all its objects but those that are larger than the pool.")
      .def_prop_ro("key_bytes", &RemoteBatch::key_bytes, "Of all its keys.")
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
      .def("reserve_packed", &reserve_packed, nb::arg("groups"), nb::arg("keys"),
           nb::arg("key_sizes"), nb::arg("sizes"), nb::keep_alive<0, 1>(),
           "The same for keys of several components: each group is (components, part, number of keys, "
           "depth of the first);\n"
           "the keys one after the other, their sizes (uint32), the sizes of their objects (uint64).")
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
