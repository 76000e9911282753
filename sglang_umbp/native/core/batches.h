// The caller's side of a batch: which memory belongs to item i, and how an object's bytes map to it.
// Both kinds have the same members, so that one get and one put serve both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "add_fragment.h"
#include "device_copier.h"
#include "device_memory.h"
#include "mixed_plan.h"
#include "page_layout.h"
#include "planner.h"
#include "range_batch.h"
#include "region_table.h"
#include "status.h"

namespace umbp {

// The devices that a batch's memory is in, and what must have happened there before a byte moves.
class BatchDevices {
 public:
  // Of the caller's: both handles null, nothing.
  CopyOrder after;

  // After classify(): some of it is in a device, add_mixed() plans it.
  bool on_devices() const { return on_devices_; }
  // The host is to wait for `after`: some of the memory is its own, or lies in several devices, of which a
  // stream belongs to one.
  bool host_waits() const {
    return (after.stream != nullptr || after.event != nullptr) &&
           (!on_devices_ || partly_host_ || several_);
  }

 protected:
  int32_t noted(int32_t device) {
    if (device == kHostMemory) {
      partly_host_ = true;
    } else {
      several_ |= on_devices_ && device != device_;
      on_devices_ = true;
      device_ = device;
    }
    return device;
  }
  // What a part of the batch, classified before, lies in.
  void include(const BatchDevices& part) {
    partly_host_ |= !part.on_devices_ || part.partly_host_;
    several_ |= part.several_ || (on_devices_ && part.on_devices_ && device_ != part.device_);
    if (part.on_devices_) device_ = part.device_;
    on_devices_ |= part.on_devices_;
  }

  bool on_devices_ = false;
  bool partly_host_ = false;
  bool several_ = false;
  int32_t device_ = kHostMemory;
};

// Throws InvalidBatch unless there is one item a key.
void check_lengths(size_t keys, size_t items);

// Rows of a page layout, the fragments [first, last) of each.
class LayoutBatch : public BatchDevices {
 public:
  // place, first_id: where several are in use at the same time, each needs another place among those of
  // the thread, and ids of its own for the pieces that no region covers.
  // Throws InvalidBatch for rows or fragments that the layout does not have.
  LayoutBatch(const PageLayout& layout, std::span<const int64_t> rows, size_t first, size_t last,
              size_t place = 0, size_t first_id = 0);

  // Throws InvalidBatch if a row stands twice: a get would write it twice.
  void check_distinct() const;
  // Finds the regions under one shared lock, and with `devices` (may be null) where other memory is.
  // Throws UnregisteredMemory if strict, or if a range goes beyond its allocation in a device.
  void classify(const RegionTable& table, bool strict, DeviceMemory* devices = nullptr) {
    classify(table.view(), strict, devices);
  }
  void classify(const RegionTable::View& view, bool strict, DeviceMemory* devices);

  std::span<const LayoutFragment> fragments() const {
    return layout_.fragments().subspan(first_, last_ - first_);
  }
  std::span<const int64_t> rows() const { return rows_; }
  uint64_t extent(const LayoutFragment& fragment) const { return layout_.extent(fragment); }

  uint64_t bytes_of(size_t) const { return page_bytes_; }
  uint64_t fragments_of(size_t) const { return last_ - first_; }
  Status check(size_t, uint64_t object_bytes) const {
    return object_bytes == layout_.object_bytes() ? Status::kOk : Status::kSizeMismatch;
  }

  template <Direction direction>
  void add(size_t i, uint64_t object, RunBuilder& builder) const {
    const auto row = static_cast<uint64_t>(rows_[i]);
    for (size_t j = first_; j < last_; ++j) {
      const LayoutFragment& fragment = layout_.fragments()[j];
      const uint32_t region = regions_[j - first_];
      add_fragment<direction>(builder, object + fragment.object_offset,
                              fragment.base + row * fragment.stride, fragment.nbytes,
                              region < kLooseRegion ? region : loose_id(i, j));
    }
  }

  // The same for a batch that is on_devices(), or a part of one.
  template <Direction direction>
  void add_mixed(size_t i, uint64_t object, MixedPlan& plan) const {
    const auto row = static_cast<uint64_t>(rows_[i]);
    for (size_t j = first_; j < last_; ++j) {
      const LayoutFragment& fragment = layout_.fragments()[j];
      const uint32_t region = regions_[j - first_];
      plan.add<direction>(device_of(i, j), object + fragment.object_offset,
                          fragment.base + row * fragment.stride, fragment.nbytes,
                          region < kLooseRegion ? region : loose_id(i, j));
    }
  }

 private:
  static constexpr int32_t kEachRow = -2;  // the rows of a fragment may be in different places

  int32_t device_of(size_t i, size_t j) const {
    if (devices_.empty()) return kHostMemory;
    const int32_t device = devices_[j - first_];
    return device != kEachRow ? device : row_devices_[i * (last_ - first_) + (j - first_)];
  }
  void find_devices(const RegionTable::View& view, DeviceMemory& devices);
  int32_t device_of_fragment(const RegionTable::View& view, const LayoutFragment& fragment,
                             DeviceMemory& devices) const;
  void find_row_devices(const RegionTable::View& view, size_t j, DeviceMemory& devices);
  uint32_t loose_id(size_t i, size_t j) const {
    const size_t piece = first_id_ + i * layout_.fragments().size() + j;
    return kLooseRegion + static_cast<uint32_t>(piece & 0x3fffffff);
  }
  void check_rows(const RegionTable::View& view, const LayoutFragment& fragment) const;

  const PageLayout& layout_;
  std::span<const int64_t> rows_;
  size_t first_;
  size_t last_;
  size_t first_id_;
  uint64_t page_bytes_ = 0;
  std::vector<uint32_t>& regions_;  // a vector of this thread's, kept from call to call
  std::vector<int32_t> devices_;      // by fragment; empty for a batch in host memory alone
  std::vector<int32_t> row_devices_;  // item after item, where a fragment has kEachRow
};

// Pages of several layouts one after the other as one batch. Of one thread: it remembers where it was.
class JoinedBatch : public BatchDevices {
 public:
  explicit JoinedBatch(size_t parts) {
    parts_.reserve(parts);
    ends_.reserve(parts);
  }
  // The fragments [first, last) of each row. Throws InvalidBatch as LayoutBatch does.
  void append(const PageLayout& layout, std::span<const int64_t> rows, size_t first, size_t last);
  // Throws InvalidBatch if a byte of the caller's memory belongs to two items: a get would write it twice.
  void check_distinct() const;
  void classify(const RegionTable& table, bool strict, DeviceMemory* devices = nullptr);

  size_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  uint64_t bytes_of(size_t i) const { return place_of(i).batch->bytes_of(0); }
  uint64_t fragments_of(size_t i) const { return place_of(i).batch->fragments_of(0); }
  Status check(size_t i, uint64_t object_bytes) const {
    return place_of(i).batch->check(0, object_bytes);
  }
  template <Direction direction>
  void add(size_t i, uint64_t object, RunBuilder& builder) const {
    const Place place = place_of(i);
    place.batch->add<direction>(place.item, object, builder);
  }
  template <Direction direction>
  void add_mixed(size_t i, uint64_t object, MixedPlan& plan) const {
    const Place place = place_of(i);
    place.batch->add_mixed<direction>(place.item, object, plan);
  }

 private:
  struct Place {
    const LayoutBatch* batch;
    size_t item;
  };
  // Items are asked for in order, several times each: mostly it is the part of the item before.
  Place place_of(size_t i) const {
    if (i - begin_ >= size_) find_part(i);
    return {current_, i - begin_};
  }
  void find_part(size_t i) const;
  void check_apart() const;

  std::vector<LayoutBatch> parts_;
  std::vector<size_t> ends_;  // items up to the end of each part
  size_t pieces_ = 0;
  mutable const LayoutBatch* current_ = nullptr;  // has the items [begin_, begin_ + size_)
  mutable size_t begin_ = 0;
  mutable size_t size_ = 0;
};

// Ranges that the caller listed.
class ListedBatch : public BatchDevices {
 public:
  // Throws InvalidBatch as RangeBatch::check_shape() does.
  explicit ListedBatch(const RangeBatch& ranges);

  void classify(const RegionTable& table, bool strict, DeviceMemory* devices = nullptr);

  uint64_t bytes_of(size_t i) const { return key_bytes_[i]; }
  uint64_t fragments_of(size_t i) const { return ranges_.end(i) - ranges_.begin(i); }
  Status check(size_t i, uint64_t object_bytes) const {
    if (!ranges_.inside(i, object_bytes)) return too_large(i, object_bytes);
    if (ranges_.whole() && ranges_.nbytes[i] != object_bytes) return Status::kSizeMismatch;
    return Status::kOk;
  }

  template <Direction direction>
  void add(size_t i, uint64_t object, RunBuilder& builder) const {
    for (uint64_t j = ranges_.begin(i); j < ranges_.end(i); ++j)
      add_fragment<direction>(builder, object + ranges_.offset(j), ranges_.addresses[j],
                              ranges_.nbytes[j], regions_[j]);
  }

  // The same for a batch that is on_devices().
  template <Direction direction>
  void add_mixed(size_t i, uint64_t object, MixedPlan& plan) const {
    for (uint64_t j = ranges_.begin(i); j < ranges_.end(i); ++j)
      plan.add<direction>(devices_[j], object + ranges_.offset(j), ranges_.addresses[j],
                          ranges_.nbytes[j], regions_[j]);
  }

 private:
  void find_devices(const RegionTable::View& view, DeviceMemory& devices);
  Status too_large(size_t i, uint64_t object_bytes) const {
    const bool whole_too_large = ranges_.whole() && ranges_.nbytes[i] > object_bytes;
    return whole_too_large ? Status::kSizeMismatch : Status::kBadRange;
  }

  const RangeBatch& ranges_;
  std::vector<uint32_t>& regions_;
  std::vector<uint64_t>& key_bytes_;  // vectors of this thread's, kept from call to call
  std::vector<int32_t> devices_;      // by range; empty for a batch in host memory alone
};

}  // namespace umbp
