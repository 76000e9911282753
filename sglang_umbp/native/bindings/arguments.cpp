#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include "arguments.h"

#include <nanobind/ndarray.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "errors.h"

namespace umbp {
namespace {

constexpr Py_ssize_t kMaxKeyBytes = 1 << 20;

std::string type_of(nb::handle value) { return Py_TYPE(value.ptr())->tp_name; }

// A borrowed view of a sequence's items; a lone str or bytes is most likely a mistake.
class Items {
 public:
  Items(nb::handle sequence, const char* name) {
    if (PyUnicode_Check(sequence.ptr()) || PyBytes_Check(sequence.ptr()))
      throw nb::type_error((std::string(name) + " must be a sequence, not one " +
                            type_of(sequence)).c_str());
    PyObject* fast = PySequence_Fast(sequence.ptr(), "a sequence is needed");
    if (fast == nullptr) nb::raise_python_error();
    fast_ = nb::steal(fast);
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(fast_.ptr())); }
  nb::handle operator[](size_t i) const {
    return PySequence_Fast_GET_ITEM(fast_.ptr(), static_cast<Py_ssize_t>(i));
  }

 private:
  nb::object fast_;
};

// The owner keeps keys in its own memory, which no capacity counts.
std::string_view checked_key(const char* bytes, Py_ssize_t size, size_t i) {
  if (size > kMaxKeyBytes)
    throw InvalidBatch("key " + std::to_string(i) + " has " + std::to_string(size) +
                       " bytes; allowed: up to " + std::to_string(kMaxKeyBytes));
  return {bytes, static_cast<size_t>(size)};
}

std::string_view view_of_key(nb::handle key, size_t i) {
  Py_ssize_t size = 0;
  if (PyUnicode_Check(key.ptr())) {
    const char* bytes = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (bytes == nullptr) nb::raise_python_error();
    return checked_key(bytes, size, i);
  }
  if (PyBytes_Check(key.ptr()))
    return checked_key(PyBytes_AS_STRING(key.ptr()), PyBytes_GET_SIZE(key.ptr()), i);
  throw nb::type_error(("key " + std::to_string(i) + " is " + type_of(key) +
                        "; allowed: str or bytes").c_str());
}

// Keys that come back after megabytes have gone through the caches are cold: their loads overlap.
void prefetch_key(nb::handle key) {
  __builtin_prefetch(key.ptr());
  __builtin_prefetch(reinterpret_cast<const char*>(key.ptr()) + 64);
}

std::vector<std::string_view> views_of_keys(const Items& items) {
  constexpr size_t kAhead = 16;
  const size_t size = items.size();
  std::vector<std::string_view> views;
  views.reserve(size);
  for (size_t i = 0; i < size && i < kAhead; ++i) prefetch_key(items[i]);
  for (size_t i = 0; i < size; ++i) {
    if (i + kAhead < size) prefetch_key(items[i + kAhead]);
    views.push_back(view_of_key(items[i], i));
  }
  return views;
}

uint64_t to_unsigned(nb::handle value, const char* name, size_t i) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) nb::raise_python_error();
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    throw InvalidBatch(std::string(name) + "[" + std::to_string(i) + "] is " +
                       nb::str(index).c_str() + "; allowed: 0 to 2**64 - 1");
  }
  return number;
}

uint64_t element(nb::handle value, const char* name, size_t i) {
  if (!PyLong_CheckExact(value.ptr())) return to_unsigned(value, name, i);
  const unsigned long long number = PyLong_AsUnsignedLongLong(value.ptr());
  if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    return to_unsigned(value, name, i);
  }
  return number;
}

// An item's own __index__ may change the lists while they are read.
void check_unchanged(const Items& items, const char* name, size_t count) {
  if (items.size() != count)
    throw InvalidBatch(std::string(name) + " had " + std::to_string(count) + " entries and now has " +
                       std::to_string(items.size()) + ": it changed while it was read");
}

void convert(const Items& items, const char* name, size_t count, uint64_t* out) {
  for (size_t i = 0; i < count; ++i) {
    check_unchanged(items, name, count);
    out[i] = element(items[i], name, i);
  }
}

void check_same(const char* name, size_t size, const char* other, size_t expected, size_t key) {
  if (size != expected)
    throw InvalidBatch(std::string(name) + "[" + std::to_string(key) + "] has " +
                       std::to_string(size) + " ranges, " + other + "[" + std::to_string(key) +
                       "] has " + std::to_string(expected));
}

}  // namespace

Digests::Digests(const Pool& pool, nb::handle keys) {
  const Items items(keys, "keys");
  const std::vector<std::string_view> views = views_of_keys(items);
  digests_.resize(views.size());
  pool.digest(views, digests_.data());
}

HeldKeys::HeldKeys(const Pool& pool, nb::handle keys) {
  // A tuple of our own: the caller's list may lose its items while the GIL is released.
  const Items items(keys, "keys");
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(items.size()));
  if (tuple == nullptr) nb::raise_python_error();
  owner_ = nb::steal(tuple);
  for (size_t i = 0; i < items.size(); ++i)
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), nb::handle(items[i]).inc_ref().ptr());
  views_ = views_of_keys(items);
  digests_.resize(views_.size());
  pool.digest(views_, digests_.data());
}

Components::Components(Pool& pool, std::vector<std::string> identities)
    : identities_(std::move(identities)), list_(std::make_shared<std::vector<Component>>()),
      pool_ended_(pool.ended()) {
  if (identities_.empty()) throw InvalidBatch("a namespace needs at least one component");
  for (const std::string& identity : identities_) list_->push_back(pool.component(identity));
}

void Components::rebind(Pool& pool) {
  if (!pool_ended_->load(std::memory_order_acquire))
    throw InvalidBatch("the namespace's pool is in use: close or unmap it before a rebind");
  std::vector<Component> found;
  for (const std::string& identity : identities_) found.push_back(pool.component(identity));
  std::copy(found.begin(), found.end(), list_->begin());  // in place: layouts and calls refer to it
  pool_ended_ = pool.ended();
}

const Component& Components::part(size_t number) const {
  if (number >= size())
    throw InvalidBatch("component " + std::to_string(number) + " of " + std::to_string(size()) +
                       " does not exist");
  return (*list_)[number];
}

void import_numpy() {
  if (_import_array() < 0) nb::raise_python_error();
}

namespace {

// The rows of a one-dimensional, contiguous int64 array; nothing for any other object.
std::optional<std::span<const int64_t>> plain_rows(nb::handle rows) {
  if (!PyArray_CheckExact(rows.ptr())) return std::nullopt;
  auto* array = reinterpret_cast<PyArrayObject*>(rows.ptr());
  if (PyArray_TYPE(array) != NPY_INT64 || PyArray_NDIM(array) != 1 ||
      !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISBEHAVED_RO(array))
    return std::nullopt;
  return std::span(static_cast<const int64_t*>(PyArray_DATA(array)),
                   static_cast<size_t>(PyArray_DIM(array, 0)));
}

}  // namespace

Rows::Rows(nb::handle rows) {
  auto plain = plain_rows(rows);
  nb::object converted;
  if (!plain) {
    converted = nb::module_::import_("sglang_umbp.rows").attr("as_rows")(rows);
    plain = plain_rows(converted);
  }
  if (!plain) throw nb::type_error("rows must be a one-dimensional sequence of integers");
  rows_.assign(plain->begin(), plain->end());
}

Integers::Integers(nb::handle values, const char* name) : name_(name) {
  if (nb::ndarray_check(values))
    copy_array(values);
  else
    copy_from(values);
}

void Integers::copy_array(nb::handle values) {
  using Signed = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Unsigned = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  Unsigned as_unsigned;
  Signed as_signed;
  if (nb::try_cast(values, as_unsigned, false)) {
    own_.assign(as_unsigned.data(), as_unsigned.data() + as_unsigned.shape(0));
  } else if (nb::try_cast(values, as_signed, false)) {
    own_.assign(as_signed.data(), as_signed.data() + as_signed.shape(0));
    for (size_t i = 0; i < own_.size(); ++i)  // the copy: another thread may write to the array
      if (static_cast<int64_t>(own_[i]) < 0)
        throw InvalidBatch(std::string(name_) + "[" + std::to_string(i) + "] is " +
                           std::to_string(static_cast<int64_t>(own_[i])) +
                           "; allowed: 0 to 2**63 - 1");
  } else {
    throw nb::type_error((std::string(name_) +
                          " must be a contiguous one-dimensional int64 or uint64 array in host "
                          "memory, or a sequence of integers").c_str());
  }
}

void Integers::copy_from(nb::handle values) {
  const Items items(values, name_);
  own_.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) own_.push_back(element(items[i], name_, i));
}

void Integers::check_size(size_t expected) const {
  if (size() != expected)
    throw InvalidBatch(std::string(name_) + " has " + std::to_string(size()) +
                       " entries, expected " + std::to_string(expected));
}

Ranges::Ranges(nb::handle addresses, nb::handle sizes) {
  arrays_.reserve(2);
  arrays_.emplace_back(addresses, "addresses");
  arrays_.emplace_back(sizes, "sizes");
  arrays_[1].check_size(arrays_[0].size());
  batch_.addresses = arrays_[0].data();
  batch_.nbytes = arrays_[1].data();
  batch_.keys = batch_.ranges = arrays_[0].size();
}

Ranges::Ranges(nb::handle addresses, nb::handle sizes, nb::handle offsets, nb::handle starts) {
  if (starts.is_none())
    from_lists(addresses, sizes, offsets);
  else
    from_arrays(addresses, sizes, offsets, starts);
}

void Ranges::from_arrays(nb::handle addresses, nb::handle sizes, nb::handle offsets,
                         nb::handle starts) {
  arrays_.reserve(4);
  arrays_.emplace_back(addresses, "addresses");
  arrays_.emplace_back(sizes, "sizes");
  arrays_.emplace_back(offsets, "offsets");
  arrays_.emplace_back(starts, "starts");
  for (size_t i = 1; i < 3; ++i) arrays_[i].check_size(arrays_[0].size());
  if (arrays_[3].size() == 0) throw InvalidBatch("starts is empty; expected one entry a key and one more");
  batch_ = {arrays_[0].data(), arrays_[1].data(), arrays_[2].data(), arrays_[3].data(),
            arrays_[3].size() - 1, arrays_[0].size()};
}

void Ranges::from_lists(nb::handle addresses, nb::handle sizes, nb::handle offsets) {
  const Items outer[3] = {{addresses, "addresses"}, {sizes, "sizes"}, {offsets, "offsets"}};
  const char* names[3] = {"addresses", "sizes", "offsets"};
  const size_t keys = outer[0].size();
  for (int k = 1; k < 3; ++k)
    if (outer[k].size() != keys)
      throw InvalidBatch(std::string(names[k]) + " has " + std::to_string(outer[k].size()) +
                         " entries, addresses has " + std::to_string(keys));
  lists_[3].push_back(0);
  for (size_t key = 0; key < keys; ++key) {
    for (int k = 0; k < 3; ++k) check_unchanged(outer[k], names[k], keys);
    const Items inner[3] = {{outer[0][key], names[0]}, {outer[1][key], names[1]},
                            {outer[2][key], names[2]}};
    for (int k = 1; k < 3; ++k)
      check_same(names[k], inner[k].size(), names[0], inner[0].size(), key);
    const size_t begin = lists_[3].back();
    const size_t count = inner[0].size();
    for (int k = 0; k < 3; ++k) {
      if (key == 0) lists_[k].reserve(keys * count);  // mostly all keys have as many ranges
      lists_[k].resize(begin + count);
      convert(inner[k], names[k], count, lists_[k].data() + begin);
    }
    lists_[3].push_back(begin + count);
  }
  batch_ = {lists_[0].data(), lists_[1].data(), lists_[2].data(), lists_[3].data(), keys,
            lists_[0].size()};
  if (batch_.offsets == nullptr) batch_.offsets = batch_.starts;  // no ranges at all, yet not "whole"
}

namespace {

// Handle 0 is the legacy default stream, with which nothing here has to do: it waits for every other one.
void* to_handle(nb::handle value, const char* name) {
  uint64_t handle = 0;
  if (nb::isinstance<nb::bool_>(value) || !nb::try_cast(value, handle) || handle == 0)
    throw InvalidBatch(std::string(name) + "=" + nb::repr(value).c_str() +
                       "; allowed: the handle of one that was created, as an integer. For work in the "
                       "legacy default stream, record an event on it and give that");
  return reinterpret_cast<void*>(handle);
}

}  // namespace

Order::Order(nb::handle stream_handle, nb::handle event_handle) {
  if (!stream_handle.is_none()) stream = to_handle(stream_handle, "stream");
  if (!event_handle.is_none()) event = to_handle(event_handle, "event");
}

nb::list to_answers(std::span<const Status> statuses, bool as_status) {
  nb::list answers = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(statuses.size())));
  const nb::object members =
      as_status ? nb::module_::import_("sglang_umbp.status").attr("BY_CODE") : nb::object();
  for (size_t i = 0; i < statuses.size(); ++i) {
    const nb::object answer = as_status ? nb::object(members[static_cast<size_t>(statuses[i])])
                                        : nb::object(nb::bool_(succeeded(statuses[i])));
    PyList_SET_ITEM(answers.ptr(), static_cast<Py_ssize_t>(i), answer.inc_ref().ptr());
  }
  return answers;
}

nb::list to_answers(std::span<const Status> statuses, std::span<const size_t> counts,
                    bool as_status) {
  nb::list lists;
  for (const size_t count : counts) {
    lists.append(to_answers(statuses.first(count), as_status));
    statuses = statuses.subspan(count);
  }
  return lists;
}

Part::Part(nb::handle part, const char* names, size_t least, size_t most) {
  if (!nb::isinstance<nb::tuple>(part) || nb::len(part) < least || nb::len(part) > most)
    throw InvalidBatch(std::string("a part is a tuple ") + names);
  tuple_ = nb::borrow<nb::tuple>(part);
  if (!nb::try_cast(nb::handle(tuple_[0]), layout_) || layout_ == nullptr)
    throw nb::type_error(("a part begins with a page layout, not with " + type_of(tuple_[0])).c_str());
}

Layers::Layers(nb::handle layers, const PageLayout& layout) : first(0), last(layout.fragments().size()) {
  if (layers.is_none()) return;
  const Items pair(layers, "layers");
  if (pair.size() != 2)
    throw InvalidBatch("layers has " + std::to_string(pair.size()) +
                       " entries; allowed: (first, end) of the layout's fragments, or None for all");
  first = element(pair[0], "layers", 0);
  last = element(pair[1], "layers", 1);
}

}  // namespace umbp
