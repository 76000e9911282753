// Python arguments as the core wants them. Everything here runs with the GIL held.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "pool.h"
#include "range_batch.h"

namespace umbp {

namespace nb = nanobind;

using Rows = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline std::span<const int64_t> to_span(const Rows& rows) { return {rows.data(), rows.shape(0)}; }

// Keys of a batch, hashed at once: a caller's list may change as soon as the GIL is released.
class Digests {
 public:
  Digests(const Pool& pool, nb::handle keys);
  std::span<const Hash128> span() const { return digests_; }
  size_t size() const { return digests_.size(); }

 private:
  std::vector<Hash128> digests_;
};

// The same with the full keys, which this object keeps alive.
class HeldKeys {
 public:
  HeldKeys(const Pool& pool, nb::handle keys);
  std::span<const Hash128> digests() const { return digests_; }
  std::span<const std::string_view> views() const { return views_; }
  size_t size() const { return digests_.size(); }

 private:
  nb::object owner_;
  std::vector<Hash128> digests_;
  std::vector<std::string_view> views_;
};

// Unsigned integers out of a sequence of Python integers (copied) or an integer array (referred to).
class Integers {
 public:
  Integers(nb::handle values, const char* name);
  const uint64_t* data() const { return data_; }
  size_t size() const { return size_; }
  void check_size(size_t expected) const;  // throws InvalidBatch

 private:
  void refer_to(nb::handle values);
  void copy_from(nb::handle values);

  const char* name_;
  std::vector<uint64_t> own_;
  nb::object array_;
  const uint64_t* data_ = nullptr;
  size_t size_ = 0;
};

// Ranges in offset form, from flat arrays with `starts`, or from one inner sequence a key.
class Ranges {
 public:
  Ranges(nb::handle addresses, nb::handle sizes, nb::handle offsets, nb::handle starts);
  // One range a key, the whole object.
  Ranges(nb::handle addresses, nb::handle sizes);
  const RangeBatch& batch() const { return batch_; }

 private:
  void from_arrays(nb::handle addresses, nb::handle sizes, nb::handle offsets, nb::handle starts);
  void from_lists(nb::handle addresses, nb::handle sizes, nb::handle offsets);

  RangeBatch batch_;
  std::vector<uint64_t> lists_[4];
  std::vector<Integers> arrays_;
};

// One answer a key: bools, or the codes of Status as integers.
nb::list to_answers(const std::vector<Status>& statuses, bool as_status);

}  // namespace umbp
