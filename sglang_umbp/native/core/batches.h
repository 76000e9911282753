// The caller's side of a batch: which memory belongs to item i, and how an object's bytes map to it.
// Both kinds have the same members, so that one get and one put serve both.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "page_layout.h"
#include "planner.h"
#include "range_batch.h"
#include "region_table.h"
#include "status.h"

namespace umbp {

enum class Direction : uint8_t { kGet, kPut };

inline constexpr uint32_t kArenaRegion = 0xffffffffu;
// From here on: memory that no single region covers as a whole; each piece gets an id of its own.
inline constexpr uint32_t kLooseRegion = 0x80000000u;

template <Direction direction>
inline void add_fragment(RunBuilder& builder, uint64_t object, uint64_t memory, uint64_t nbytes,
                         uint32_t region) {
  if constexpr (direction == Direction::kGet)
    builder.add(object, memory, nbytes, kArenaRegion, region);
  else
    builder.add(memory, object, nbytes, region, kArenaRegion);
}

// Throws InvalidBatch unless there is one item a key.
void check_lengths(size_t keys, size_t items);

// Rows of a page layout, the fragments [first, last) of each.
class LayoutBatch {
 public:
  // place, first_id: where several are in use at the same time, each needs another place among those of
  // the thread, and ids of its own for the pieces that no region covers.
  // Throws InvalidBatch for rows or fragments that the layout does not have.
  LayoutBatch(const PageLayout& layout, std::span<const int64_t> rows, size_t first, size_t last,
              size_t place = 0, size_t first_id = 0);

  // Throws InvalidBatch if a row stands twice: a get would write it twice.
  void check_distinct() const;
  // Finds the regions under one shared lock. Throws UnregisteredMemory if strict.
  void classify(const RegionTable& table, bool strict);

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

 private:
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
};

// Whole pages of several layouts one after the other, as one batch of a put.
class JoinedBatch {
 public:
  void append(const PageLayout& layout, std::span<const int64_t> rows);
  void classify(const RegionTable& table, bool strict);

  uint64_t fragments_of(size_t i) const { return place_of(i).batch->fragments_of(0); }
  template <Direction direction>
  void add(size_t i, uint64_t object, RunBuilder& builder) const {
    const Place place = place_of(i);
    place.batch->add<direction>(place.item, object, builder);
  }

 private:
  struct Place {
    const LayoutBatch* batch;
    size_t item;
  };
  Place place_of(size_t i) const;

  std::deque<LayoutBatch> parts_;
  std::vector<size_t> ends_;  // items up to the end of each part
  size_t pieces_ = 0;
};

// Ranges that the caller listed.
class ListedBatch {
 public:
  // Throws InvalidBatch as RangeBatch::check_shape() does.
  explicit ListedBatch(const RangeBatch& ranges);

  void classify(const RegionTable& table, bool strict);

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

 private:
  Status too_large(size_t i, uint64_t object_bytes) const {
    const bool whole_too_large = ranges_.whole() && ranges_.nbytes[i] > object_bytes;
    return whole_too_large ? Status::kSizeMismatch : Status::kBadRange;
  }

  const RangeBatch& ranges_;
  std::vector<uint32_t>& regions_;
  std::vector<uint64_t>& key_bytes_;  // vectors of this thread's, kept from call to call
};

}  // namespace umbp
