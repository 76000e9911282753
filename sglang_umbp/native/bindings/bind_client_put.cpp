#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "arguments.h"
#include "errors.h"
#include "pool.h"
#include "put_source.h"
#include "released_gil.h"

namespace umbp {
namespace {

// Keys of one component and where their objects are copied from.
struct PutGroup {
  PutGroup(const Pool& pool, nb::tuple group)
      : components(nb::cast<const Components&>(group[0])),
        part(nb::cast<size_t>(group[1])),
        keys(pool, group[2]),
        source(nb::cast<const PutSource&>(group[3])) {
    components.part(part);
    if (source.size() != keys.size())
      throw InvalidBatch("there are " + std::to_string(keys.size()) + " keys and " +
                         std::to_string(source.size()) + " objects");
    for (size_t i = 0; i < keys.size(); ++i) sizes.push_back(source.nbytes(i));
  }

  const Components& components;
  size_t part;
  HeldKeys keys;
  const PutSource& source;
  std::vector<uint64_t> sizes;
  size_t first = 0;  // its place among the items of all groups
};

nb::tuple checked_group(nb::handle group) {
  if (!nb::isinstance<nb::tuple>(group) || nb::len(group) != 4)
    throw InvalidBatch("a part of the put is a tuple (components, part, keys, source)");
  return nb::borrow<nb::tuple>(group);
}

template <class T>
void pack(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

nb::bytes to_bytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

// One put call of an attached pool: its keys, sources and answers, and the part of it that the message
// under way carries. For one thread.
class ClientPut {
 public:
  ClientPut(Pool& pool, nb::sequence groups, uint32_t depth) : pool_(pool), depth_(depth) {
    for (nb::handle group : groups) {
      groups_.emplace_back(pool, checked_group(group));
      groups_.back().first = statuses_.size();
      for (const Status status : groups_.back().source.statuses())
        statuses_.push_back(status == Status::kOk ? Status::kNoServer : status);
    }
    sound_ = std::all_of(statuses_.begin(), statuses_.end(),
                         [](Status status) { return status == Status::kNoServer; });
  }

  // Answers the whole put if everything is there with the same size. Only then: else the owner has to
  // keep what is there while it makes room for the rest.
  bool answer_present() {
    if (!sound_) return false;
    std::vector<SizedObjects> objects;
    for (const PutGroup& group : groups_)
      objects.push_back({group.components.part(group.part), group.keys.digests(), group.sizes});
    {
      const ReleasedGil no_gil;
      if (!pool_.holds(objects)) return false;
    }
    std::fill(statuses_.begin(), statuses_.end(), Status::kExists);
    return true;
  }

  // The next items that one message may carry; false: every item was in one. The first is taken in any
  // case.
  bool cut(size_t max_objects, uint64_t max_bytes, size_t max_key_bytes) {
    items_.clear();
    uint64_t nbytes = 0;
    size_t key_bytes = 0;
    for (; next_ < statuses_.size(); ++next_) {
      if (statuses_[next_] != Status::kNoServer) continue;
      const PutGroup& group = group_of(next_);
      const size_t i = next_ - group.first;
      nbytes += group.sizes[i];
      key_bytes += group.keys.views()[i].size();
      if (!items_.empty() &&
          (items_.size() == max_objects || nbytes > max_bytes || key_bytes > max_key_bytes))
        break;
      items_.push_back(next_);
    }
    return !items_.empty();
  }

  // As Allocate carries it. numbers: of the namespace of each group.
  nb::tuple message(nb::sequence numbers) const {
    std::string groups, keys, key_sizes, sizes;
    for (size_t begin = 0, end = 0; begin < items_.size(); begin = end) {
      const PutGroup& group = group_of(items_[begin]);
      for (end = begin; end < items_.size() && &group_of(items_[end]) == &group; ++end) {
        const std::string_view key = group.keys.views()[items_[end] - group.first];
        keys.append(key);
        pack(key_sizes, static_cast<uint32_t>(key.size()));
        pack(sizes, group.sizes[items_[end] - group.first]);
      }
      pack(groups, nb::cast<uint32_t>(numbers[number_of(group)]));
      pack(groups, static_cast<uint32_t>(group.part));
      pack(groups, static_cast<uint32_t>(end - begin));
      pack(groups, depth_ + static_cast<uint32_t>(items_[begin] - group.first));
    }
    return nb::make_tuple(to_bytes(groups), to_bytes(keys), to_bytes(key_sizes), to_bytes(sizes));
  }

  // None: the owner's places do not fit the message. False: the pool is lost, and not all was copied.
  std::optional<bool> fill(Pool& pool, nb::bytes picks, nb::bytes offsets,
                           const CopyOrder& after) const {
    const size_t count = picks.size() / sizeof(uint32_t);
    if (count == 0 || picks.size() % sizeof(uint32_t) != 0 ||
        offsets.size() != count * sizeof(uint64_t))
      return std::nullopt;
    std::vector<uint32_t> places(count);
    std::vector<uint64_t> targets(count), items(count);
    std::memcpy(places.data(), picks.data(), picks.size());
    std::memcpy(targets.data(), offsets.data(), offsets.size());
    for (size_t i = 0; i < count; ++i) {
      if (places[i] >= items_.size()) return std::nullopt;
      items[i] = items_[places[i]];
    }
    const ReleasedGil no_gil;
    for (size_t begin = 0, end = 0; begin < count; begin = end) {
      const PutGroup& group = group_of(items[begin]);
      for (end = begin; end < count && &group_of(items[end]) == &group; ++end)
        items[end] -= group.first;
      const auto some = [&](const std::vector<uint64_t>& all) {
        return std::span(all).subspan(begin, end - begin);
      };
      if (!group.source.fill(pool, {some(items), some(targets)}, after)) return false;
    }
    return true;
  }

  // The message's answers. False: they do not fit it.
  bool settle(nb::bytes codes) {
    const auto* const all = static_cast<const uint8_t*>(codes.data());
    if (codes.size() != items_.size() ||
        std::any_of(all, all + codes.size(), [](uint8_t code) { return code >= kStatusCount; }))
      return false;
    for (size_t i = 0; i < items_.size(); ++i) statuses_[items_[i]] = static_cast<Status>(all[i]);
    return true;
  }

  // The same answer for every item of the message.
  void settle_all(uint8_t code) {
    if (code >= kStatusCount) throw InvalidBatch("no status has the code " + std::to_string(code));
    for (const size_t item : items_) statuses_[item] = static_cast<Status>(code);
  }

  nb::list answers(bool as_status) const {
    nb::list lists;
    for (const PutGroup& group : groups_) {
      const auto begin = statuses_.begin() + static_cast<ptrdiff_t>(group.first);
      const auto end = begin + static_cast<ptrdiff_t>(group.keys.size());
      lists.append(to_answers(std::vector<Status>(begin, end), as_status));
    }
    return lists;
  }

  // ([(status code, number of keys)], bytes of what was stored now).
  nb::tuple totals() const {
    size_t counts[kStatusCount] = {};
    uint64_t stored = 0;
    for (const PutGroup& group : groups_)
      for (size_t i = 0; i < group.keys.size(); ++i) {
        const Status status = statuses_[group.first + i];
        ++counts[static_cast<size_t>(status)];
        if (status == Status::kOk) stored += group.sizes[i];
      }
    nb::list list;
    for (size_t code = 0; code < kStatusCount; ++code)
      if (counts[code] != 0) list.append(nb::make_tuple(code, counts[code]));
    return nb::make_tuple(list, stored);
  }

 private:
  // Groups are few: a linear look.
  const PutGroup& group_of(size_t item) const {
    size_t number = groups_.size() - 1;
    while (groups_[number].first > item) --number;
    return groups_[number];
  }
  size_t number_of(const PutGroup& group) const {
    size_t number = 0;
    while (&groups_[number] != &group) ++number;
    return number;
  }

  Pool& pool_;
  uint32_t depth_;
  bool sound_ = false;  // no item was refused before it was asked for
  std::deque<PutGroup> groups_;
  std::vector<Status> statuses_;  // kNoServer: not answered yet
  size_t next_ = 0;
  std::vector<size_t> items_;
};

nb::object fill(const ClientPut& put, Pool& pool, nb::bytes picks, nb::bytes offsets,
                nb::handle stream, nb::handle event) {
  const std::optional<bool> done = put.fill(pool, picks, offsets, Order(stream, event));
  return done ? nb::object(nb::bool_(*done)) : nb::object(nb::none());
}

}  // namespace

void bind_client_put(nb::module_& m) {
  nb::class_<ClientPut>(
      m, "ClientPut",
      "One put call of an attached pool: keys of one or more components, their sources, their answers, "
      "and the part of it\n"
      "that the message under way carries. For one thread.")
      .def(nb::init<Pool&, nb::sequence, uint32_t>(), nb::arg("pool"), nb::arg("parts"),
           nb::arg("depth"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           "parts: a list of (components, part, keys, PutSource), which must not change. depth: of each "
           "part's first key. Raises\n"
           "InvalidBatchError, TypeError.")
      .def("answer_present", &ClientPut::answer_present,
           "Whether all objects are there with the same sizes, and the put is over by that: asks nobody. "
           "Eviction sees that\n"
           "they were used.")
      .def("cut", &ClientPut::cut, nb::arg("max_objects"), nb::arg("max_bytes"),
           nb::arg("max_key_bytes"),
           "Takes the next keys that one message may carry, at least one; False: there are none left.")
      .def("message", &ClientPut::message, nb::arg("numbers"),
           nb::sig("def message(self, numbers: Sequence[int]) -> tuple[bytes, bytes, bytes, bytes]"),
           "groups, keys, key_sizes and sizes of Allocate for what was cut. numbers: of each part's "
           "namespace.")
      .def("fill", &fill, nb::arg("pool"), nb::arg("picks"), nb::arg("offsets"),
           nb::arg("stream").none(), nb::arg("event").none(),
           nb::sig("def fill(self, pool: Pool, picks: bytes, offsets: bytes, stream: int | None, event: int | None) "
                   "-> bool | None"),
           "Copies pick i (uint32) of what was cut to offset i (uint64). None: they do not fit it. False: "
           "the pool is lost.\n"
           "stream, event: of the device runtime, whose work comes first. Raises as ``Pool.fill``.")
      .def("settle", &ClientPut::settle, nb::arg("codes"),
           "Status codes (one byte) of what was cut. False: they do not fit it.")
      .def("settle_all", &ClientPut::settle_all, nb::arg("code"),
           "One status code for all of what was cut.")
      .def("answers", &ClientPut::answers, nb::arg("status"),
           nb::sig("def answers(self, status: bool) -> list[list]"),
           "Per part and key: a bool, or a Status. What nobody answered is NO_SERVER.")
      .def_prop_ro("totals", &ClientPut::totals,
                   nb::sig("def totals(self) -> tuple[list[tuple[int, int]], int]"),
                   "(status code, number of keys) of the answers there are, and the bytes that were stored.");
}

}  // namespace umbp
