#include "batches.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>

#include "errors.h"

namespace umbp {
namespace {

std::vector<uint32_t>& regions_of_this_thread(size_t place = 0) {
  thread_local std::deque<std::vector<uint32_t>> regions;  // never moves what others refer to
  while (regions.size() <= place) regions.emplace_back();
  return regions[place];
}

// Empty at first. Not inlined: the compiler would ask for its address once a range.
[[gnu::noinline]] std::vector<const Region*>& guesses_of_this_thread() {
  thread_local std::vector<const Region*> guesses;
  guesses.clear();
  return guesses;
}

uint32_t loose_id(uint64_t range) {
  return kLooseRegion + static_cast<uint32_t>(range & 0x3fffffff);
}

[[noreturn]] void refuse_unregistered(uint64_t address, uint64_t nbytes) {
  throw UnregisteredMemory(std::to_string(nbytes) + " bytes at address " +
                           std::to_string(address) +
                           " are not inside one registered region: register_memory() them first, "
                           "or open the pool with strict_registration off");
}

int32_t device_of_region(const Region& region) {
  return region.kind == MemoryKind::kDevice ? region.device : kHostMemory;
}

// Where memory is that nobody registered. Host memory has no allocation that the runtime knows: within one
// call, what holds for one address of a page holds for all.
class LooseMemory {
 public:
  explicit LooseMemory(DeviceMemory& devices) : devices_(devices) {}

  int32_t device_of(uint64_t address, uint64_t nbytes) {
    const uint64_t page = address >> kPageBits;
    if (page == host_page_ && (address + nbytes - 1) >> kPageBits == page) return kHostMemory;
    const auto device = devices_.device_of(address, nbytes);
    if (!device)
      throw UnregisteredMemory(std::to_string(nbytes) + " bytes at address " +
                               std::to_string(address) +
                               " are not inside one allocation of a device");
    if (*device == kHostMemory) host_page_ = page;
    return *device;
  }

 private:
  static constexpr unsigned kPageBits = 12;
  DeviceMemory& devices_;
  uint64_t host_page_ = UINT64_MAX;
};

int32_t device_of_range(const RegionTable::View& view, uint64_t address, uint64_t nbytes,
                        LooseMemory& loose) {
  const Region* region = view.find(address, nbytes);
  return region != nullptr ? device_of_region(*region) : loose.device_of(address, nbytes);
}

std::vector<uint64_t>& key_bytes_of_this_thread() {
  thread_local std::vector<uint64_t> key_bytes;
  key_bytes.clear();
  return key_bytes;
}

// A set of small integers that costs nothing to empty.
class RowMarks {
 public:
  bool insert(uint64_t row) {
    uint64_t& word = words_[row / 64];
    const uint64_t bit = uint64_t{1} << row % 64;
    const bool fresh = (word & bit) == 0;
    word |= bit;
    return fresh;
  }
  void reserve(uint64_t rows) {
    if (words_.size() * 64 < rows) words_.resize(rows / 64 + 1, 0);
  }
  void forget(uint64_t row) { words_[row / 64] = 0; }

 private:
  std::vector<uint64_t> words_;
};

// A mark is a bit that the thread keeps (512 KiB in all). A layout may claim 2^58 rows; those are sorted.
constexpr uint64_t kMarkedRows = uint64_t{1} << 22;

std::optional<int64_t> marked_twice(std::span<const int64_t> rows, uint64_t row_count) {
  thread_local RowMarks marks;
  marks.reserve(row_count);
  std::optional<int64_t> twice;
  for (const int64_t row : rows)
    if (!marks.insert(static_cast<uint64_t>(row))) twice = row;
  for (const int64_t row : rows) marks.forget(static_cast<uint64_t>(row));
  return twice;
}

std::optional<int64_t> sorted_twice(std::span<const int64_t> rows) {
  std::vector<int64_t> sorted;
  sorted.insert(sorted.end(), rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  return twice == sorted.end() ? std::nullopt : std::optional(*twice);
}

}  // namespace

void check_lengths(size_t keys, size_t items) {
  if (keys != items)
    throw InvalidBatch("a batch of " + std::to_string(keys) + " keys came with " +
                       std::to_string(items) + " rows or ranges lists: one a key is needed");
}

LayoutBatch::LayoutBatch(const PageLayout& layout, std::span<const int64_t> rows, size_t first,
                         size_t last, size_t place, size_t first_id)
    : layout_(layout), rows_(rows), first_(first), last_(last), first_id_(first_id),
      regions_(regions_of_this_thread(place)) {
  if (first >= last || last > layout.fragments().size())
    throw InvalidBatch("fragments [" + std::to_string(first) + ", " + std::to_string(last) +
                       ") are not a part of the layout's [0, " +
                       std::to_string(layout.fragments().size()) + ")");
  for (const int64_t row : rows)
    if (row < 0 || static_cast<uint64_t>(row) >= layout.rows())
      throw InvalidBatch("row " + std::to_string(row) + " is outside the layout's [0, " +
                         std::to_string(layout.rows()) + ")");
  for (size_t j = first; j < last; ++j) page_bytes_ += layout.fragments()[j].nbytes;
}

void LayoutBatch::check_distinct() const {
  const auto twice = layout_.rows() <= kMarkedRows ? marked_twice(rows_, layout_.rows())
                                                   : sorted_twice(rows_);
  if (twice)
    throw InvalidBatch("destinations overlap: row " + std::to_string(*twice) +
                       " stands twice in one get");
}

void LayoutBatch::classify(const RegionTable::View& view, bool strict, DeviceMemory* devices) {
  regions_.clear();
  bool unlike = false;  // some of it is in a device, or nobody knows yet
  for (size_t j = first_; j < last_; ++j) {
    const LayoutFragment& fragment = layout_.fragments()[j];
    const Region* region = view.find(fragment.base, layout_.extent(fragment));
    if (region == nullptr && strict) check_rows(view, fragment);
    regions_.push_back(region != nullptr ? region->id : kLooseRegion);
    unlike |= region == nullptr || region->kind == MemoryKind::kDevice;
  }
  if (unlike && devices != nullptr) find_devices(view, *devices);
}

[[gnu::noinline]] void LayoutBatch::find_devices(const RegionTable::View& view,
                                                 DeviceMemory& devices) {
  for (size_t j = first_; j < last_; ++j) {
    const int32_t device = device_of_fragment(view, layout_.fragments()[j], devices);
    devices_.push_back(device);
    if (device != kEachRow) noted(device);
  }
  for (size_t j = first_; j < last_; ++j)
    if (devices_[j - first_] == kEachRow) find_row_devices(view, j, devices);
}

int32_t LayoutBatch::device_of_fragment(const RegionTable::View& view,
                                        const LayoutFragment& fragment,
                                        DeviceMemory& devices) const {
  const uint64_t extent = layout_.extent(fragment);
  if (const Region* region = view.find(fragment.base, extent)) return device_of_region(*region);
  const auto device = devices.device_of(fragment.base, extent);
  return device && *device != kHostMemory ? *device : kEachRow;
}

void LayoutBatch::find_row_devices(const RegionTable::View& view, size_t j,
                                   DeviceMemory& devices) {
  const size_t width = last_ - first_;
  const LayoutFragment& fragment = layout_.fragments()[j];
  row_devices_.resize(rows_.size() * width, kHostMemory);
  LooseMemory loose(devices);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const uint64_t address = fragment.base + static_cast<uint64_t>(rows_[i]) * fragment.stride;
    row_devices_[i * width + (j - first_)] =
        noted(device_of_range(view, address, fragment.nbytes, loose));
  }
}

// Rows may lie in several regions, or only those in use may be registered.
void LayoutBatch::check_rows(const RegionTable::View& view, const LayoutFragment& fragment) const {
  for (const int64_t row : rows_) {
    const uint64_t address = fragment.base + static_cast<uint64_t>(row) * fragment.stride;
    if (view.find(address, fragment.nbytes) == nullptr)
      refuse_unregistered(address, fragment.nbytes);
  }
}

namespace {

// A fragment of one part of a joined batch, all its rows.
struct PartFragment {
  const LayoutBatch* part;
  const LayoutFragment* fragment;
  uint64_t end() const { return fragment->base + (part->extent(*fragment) - 1); }  // its last byte
};

struct Piece {
  uint64_t address;
  uint64_t nbytes;
};

void append_pieces(const PartFragment& of, std::vector<Piece>& pieces) {
  for (const int64_t row : of.part->rows())
    pieces.push_back({of.fragment->base + static_cast<uint64_t>(row) * of.fragment->stride,
                      of.fragment->nbytes});
}

// Of rows that are in use; those of one part never meet.
void check_rows_apart(const PartFragment& a, const PartFragment& b) {
  std::vector<Piece> pieces;
  append_pieces(a, pieces);
  append_pieces(b, pieces);
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& x, const Piece& y) { return x.address < y.address; });
  for (size_t i = 1; i < pieces.size(); ++i)
    if (pieces[i].address - pieces[i - 1].address < pieces[i - 1].nbytes)
      throw InvalidBatch("destinations overlap: two parts of one get write to address " +
                         std::to_string(pieces[i].address));
}

}  // namespace

void JoinedBatch::append(const PageLayout& layout, std::span<const int64_t> rows, size_t first,
                         size_t last) {
  parts_.emplace_back(layout, rows, first, last, parts_.size(), pieces_);
  pieces_ += rows.size() * layout.fragments().size();
  ends_.push_back((ends_.empty() ? 0 : ends_.back()) + rows.size());
}

void JoinedBatch::classify(const RegionTable& table, bool strict, DeviceMemory* devices) {
  const RegionTable::View view = table.view();
  for (LayoutBatch& part : parts_) {
    part.classify(view, strict, devices);
    include(part);
  }
}

void JoinedBatch::check_distinct() const {
  for (const LayoutBatch& part : parts_) part.check_distinct();
  if (parts_.size() > 1) check_apart();
}

// Fragments of different parts mostly lie in different tensors, or interleave: a look at extents is enough.
void JoinedBatch::check_apart() const {
  std::vector<PartFragment> sorted;
  size_t count = 0;
  for (const LayoutBatch& part : parts_) count += part.fragments().size();
  sorted.reserve(count);
  for (const LayoutBatch& part : parts_)
    for (const LayoutFragment& fragment : part.fragments()) sorted.push_back({&part, &fragment});
  std::sort(sorted.begin(), sorted.end(), [](const PartFragment& a, const PartFragment& b) {
    return a.fragment->base < b.fragment->base;
  });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const PartFragment& a = sorted[i];
    const uint64_t end = a.end();
    for (size_t j = i + 1; j < sorted.size() && sorted[j].fragment->base <= end; ++j)
      if (sorted[j].part != a.part && !interleave(*a.fragment, *sorted[j].fragment))
        check_rows_apart(a, sorted[j]);
  }
}

[[gnu::noinline]] void JoinedBatch::find_part(size_t i) const {
  const auto part = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
  current_ = &parts_[part];
  begin_ = part == 0 ? 0 : ends_[part - 1];
  size_ = ends_[part] - begin_;
}

ListedBatch::ListedBatch(const RangeBatch& ranges)
    : ranges_(ranges), regions_(regions_of_this_thread()), key_bytes_(key_bytes_of_this_thread()) {
  ranges_.check_shape();
  for (uint64_t key = 0; key < ranges_.keys; ++key) key_bytes_.push_back(ranges_.bytes_of(key));
}

void ListedBatch::classify(const RegionTable& table, bool strict, DeviceMemory* devices) {
  const RegionTable::View view = table.view();
  // Range i of a key mostly lies in the region of range i of the key before: a region is a layer.
  std::vector<const Region*>& guesses = guesses_of_this_thread();
  regions_.resize(ranges_.ranges);
  bool unlike = false;
  for (uint64_t key = 0; key < ranges_.keys; ++key) {
    const uint64_t begin = ranges_.begin(key);
    const uint64_t count = ranges_.end(key) - begin;
    if (guesses.size() < count) guesses.resize(count, nullptr);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t address = ranges_.addresses[begin + i];
      const uint64_t nbytes = ranges_.nbytes[begin + i];
      const Region* region = view.find(address, nbytes, guesses[i]);
      if (region == nullptr && nbytes != 0 && strict) refuse_unregistered(address, nbytes);
      regions_[begin + i] = region != nullptr ? region->id : loose_id(begin + i);
      if (region != nullptr) guesses[i] = region;
      unlike |= region == nullptr || region->kind == MemoryKind::kDevice;
    }
  }
  if (unlike && devices != nullptr) find_devices(view, *devices);
}

[[gnu::noinline]] void ListedBatch::find_devices(const RegionTable::View& view,
                                                 DeviceMemory& devices) {
  devices_.resize(ranges_.ranges, kHostMemory);
  LooseMemory loose(devices);
  for (uint64_t j = 0; j < ranges_.ranges; ++j)
    if (ranges_.nbytes[j] != 0)
      devices_[j] = noted(device_of_range(view, ranges_.addresses[j], ranges_.nbytes[j], loose));
}

}  // namespace umbp
