// Python arguments as the core wants them. Everything here runs with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pool.h"
#include "range_batch.h"

namespace umbp {

namespace nb = nanobind;

// The components of a namespace, in order. Layouts share the list: a rebind reaches them too.
//
// The keys in it are read inside native calls, without a lock: rebind() changes them only when the pool
// before is closed or unmapped, so that none of its calls reads them, and before the new one gets any.
class Components {
 public:
  Components(Pool& pool, std::vector<std::string> identities);  // throws InvalidBatch
  // The same identities in another pool. Throws InvalidBatch while the pool before is in use.
  void rebind(Pool& pool);

  size_t size() const { return list_->size(); }
  std::span<const Component> list() const { return *list_; }
  const Component& part(size_t number) const;  // throws InvalidBatch
  std::shared_ptr<const std::vector<Component>> shared() const { return list_; }
  bool owns(const std::shared_ptr<const std::vector<Component>>& list) const {
    return list == list_;
  }

 private:
  std::vector<std::string> identities_;
  std::shared_ptr<std::vector<Component>> list_;
  std::shared_ptr<const std::atomic<bool>> pool_ended_;
};

// A layout with the component whose pages it places: one argument of a call instead of three.
struct ComponentLayout {
  std::shared_ptr<const std::vector<Component>> list;
  size_t part;
  PageLayout layout;

  const Component& component() const { return (*list)[part]; }
};

// Fragments [first, last) of a layout out of a pair of integers; None means all.
struct Layers {
  Layers(nb::handle layers, const PageLayout& layout);
  size_t first;
  size_t last;
};

// Page rows out of an int64 array, or whatever sglang_umbp.rows.as_rows makes one of. Copied: rows are
// checked once and must not change afterwards.
//
// numpy's own header reads the array object itself. nanobind's ndarray goes through DLPack, whose code
// and data are cold when a layer group is due: 10 us of a call's 25 (benchmarks/NOTES.md).
class Rows {
 public:
  explicit Rows(nb::handle rows);
  std::span<const int64_t> span() const { return rows_; }
  size_t size() const { return rows_.size(); }

 private:
  std::vector<int64_t> rows_;
};

// Makes numpy's C API usable; once, when the module is imported.
void import_numpy();

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

// A part of a call for several components: a tuple that begins with a layout. It keeps the layout alive: a
// caller's list may lose it as soon as the GIL is released.
class Part {
 public:
  // names: of the members, of which there are `least` to `most`, for the refusal.
  // Throws InvalidBatch, nb::type_error.
  Part(nb::handle part, const char* names, size_t least, size_t most);
  const ComponentLayout& layout() const { return *layout_; }
  // None for a last member that is left out.
  nb::handle operator[](size_t i) const {
    return i < nb::len(tuple_) ? nb::handle(tuple_[i]) : nb::handle(Py_None);
  }

 private:
  nb::tuple tuple_;
  const ComponentLayout* layout_;
};

// Unsigned integers out of a sequence of Python integers or an integer array. Copied: they are checked
// once, and another thread may write to a caller's array as soon as the GIL is released.
class Integers {
 public:
  Integers(nb::handle values, const char* name);
  const uint64_t* data() const { return own_.data(); }
  size_t size() const { return own_.size(); }
  void check_size(size_t expected) const;  // throws InvalidBatch

 private:
  void copy_array(nb::handle values);
  void copy_from(nb::handle values);

  const char* name_;
  std::vector<uint64_t> own_;
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

// What a call waits for: handles of the runtime as integers, or None.
struct Order : CopyOrder {
  Order(nb::handle stream, nb::handle event);  // throws InvalidBatch: not an integer, or 0
};

// One answer a key: bools, or members of Status.
nb::list to_answers(std::span<const Status> statuses, bool as_status);
// The same in one list a part, which has counts[i] keys.
nb::list to_answers(std::span<const Status> statuses, std::span<const size_t> counts,
                    bool as_status);

}  // namespace umbp
