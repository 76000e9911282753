#include "region_table.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>

#include "errors.h"

namespace umbp {
namespace {

std::string hex(uint64_t address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

// "0x7f0000000000 + 4096 bytes"
std::string extent(const Region& region) {
  return hex(region.base) + " + " + std::to_string(region.nbytes) + " bytes";
}

void check_extent(const Region& region) {
  if (region.nbytes == 0)
    throw RegionError("cannot register " + extent(region) + ": the size is 0");
  if (region.nbytes - 1 > UINT64_MAX - region.base) {
    throw RegionError("cannot register " + extent(region) + ": it ends beyond the address space");
  }
}

bool overlap(const Region& low, const Region& high) { return high.base - low.base < low.nbytes; }

bool same_attributes(const Region& a, const Region& b) {
  return a.kind == b.kind && a.device == b.device && a.device_alias == b.device_alias &&
         a.mode == b.mode;
}

[[noreturn]] void refuse(const Region& region, const Region& known, const char* reason) {
  throw RegionError("cannot register " + extent(region) + ": " + reason + " " + extent(known));
}

// The same base once more: nothing to do, or the allocation has grown.
void add_again(Region& known, const Region& region, bool grow) {
  if (!same_attributes(known, region)) {
    refuse(region, known, "kind, device, device alias or mode differ from those of the registered");
  }
  if (region.nbytes == known.nbytes) return;
  if (region.nbytes < known.nbytes)
    refuse(region, known, "the same base is registered with a larger size, as");
  if (!grow)
    refuse(region, known, "without grow, the same base is registered with another size, as");
  known.nbytes = region.nbytes;
}

size_t upper_bound(const std::vector<Region>& regions, uint64_t address) {
  const auto above =
      std::upper_bound(regions.begin(), regions.end(), address,
                       [](uint64_t value, const Region& region) { return value < region.base; });
  return static_cast<size_t>(above - regions.begin());
}

}  // namespace

WriterFirstLock::WriterFirstLock() {
  pthread_rwlockattr_t attributes;
  pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
  pthread_rwlock_init(&lock_, &attributes);
  pthread_rwlockattr_destroy(&attributes);
}

void RegionTable::add(const Region& region, bool grow) {
  check_extent(region);
  const std::unique_lock lock(lock_);
  const size_t above = upper_bound(regions_, region.base);
  if (above < regions_.size() && overlap(region, regions_[above])) {
    refuse(region, regions_[above], "it overlaps the registered");
  }
  if (above > 0 && regions_[above - 1].base == region.base) {
    add_again(regions_[above - 1], region, grow);
    return;
  }
  if (above > 0 && overlap(regions_[above - 1], region)) {
    refuse(region, regions_[above - 1], "it overlaps the registered");
  }
  const auto added = regions_.insert(regions_.begin() + static_cast<ptrdiff_t>(above), region);
  added->id = ++last_id_;
}

uint64_t RegionTable::remove(uint64_t base) {
  const std::unique_lock lock(lock_);
  const size_t above = upper_bound(regions_, base);
  if (above == 0 || regions_[above - 1].base != base) {
    throw RegionError("cannot unregister " + hex(base) + ": no region starts there");
  }
  const uint64_t nbytes = regions_[above - 1].nbytes;
  regions_.erase(regions_.begin() + static_cast<ptrdiff_t>(above - 1));
  return nbytes;
}

size_t RegionTable::size() const {
  const std::shared_lock lock(lock_);
  return regions_.size();
}

std::vector<Region> RegionTable::list() const {
  const std::shared_lock lock(lock_);
  return regions_;
}

RegionTable::View::View(const RegionTable& table) : lock_(table.lock_), regions_(table.regions_) {
  table.shared_acquisitions_.fetch_add(1, std::memory_order_relaxed);
}

const Region* RegionTable::View::search(uint64_t address, uint64_t nbytes) const {
  const size_t above = upper_bound(regions_, address);
  if (above == 0 || !holds(regions_[above - 1], address, nbytes)) return nullptr;
  last_ = &regions_[above - 1];
  return last_;
}

}  // namespace umbp
