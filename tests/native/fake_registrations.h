// Host memory that emulated devices may address: registered, or allocated by the runtime.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "fake_device_memory.h"

namespace fake {

struct Registration {
  uint64_t base = 0;
  uint64_t nbytes = 0;
  uint64_t alias = 0;
  bool read_only = false;
  bool allocated = false;  // by the runtime, instead of registered

  bool has(uint64_t address) const { return address - base < nbytes; }
  bool has_alias(uint64_t address) const { return address - alias < nbytes; }
  // From the start, by whichever of the two.
  uint64_t offset_of(uint64_t address) const { return address - (has_alias(address) ? alias : base); }
};

class Registrations {
 public:
  // separate: its addresses on the device are others, and neighbours' are no neighbours there.
  void add(Registration known, bool separate) {
    known.alias = known.base;
    if (separate) {
      if (next_alias_ == 0) next_alias_ = reserve_aliases();
      known.alias = next_alias_ + known.base % kPage;
      next_alias_ += whole_pages(known.nbytes + kPage) + 16 * kPage;
    }
    by_base_[known.base] = known;
    aliases_[known.alias] = known.base;
  }

  // False: there is none that begins here and was made so.
  bool remove(uint64_t base, bool allocated) {
    const auto found = by_base_.find(base);
    if (found == by_base_.end() || found->second.allocated != allocated) return false;
    aliases_.erase(found->second.alias);
    by_base_.erase(found);
    return true;
  }

  // By alias; also by host address, if that is asked for. Null: none has it.
  const Registration* find(uint64_t address, bool by_host_address) const {
    const auto alias = aliases_.upper_bound(address);
    if (alias != aliases_.begin()) {
      const Registration& known = by_base_.at(std::prev(alias)->second);
      if (known.has_alias(address)) return &known;
    }
    const auto host = by_base_.upper_bound(address);
    if (!by_host_address || host == by_base_.begin() || !std::prev(host)->second.has(address)) return nullptr;
    return &std::prev(host)->second;
  }

  // Whether a page of the range is in one already.
  bool overlaps(uint64_t base, uint64_t nbytes) const {
    const uint64_t from = base / kPage * kPage, to = whole_pages(base + nbytes);
    return std::any_of(by_base_.begin(), by_base_.end(), [&](const auto& entry) {
      const Registration& known = entry.second;
      return known.base / kPage * kPage < to && from < whole_pages(known.base + known.nbytes);
    });
  }

  uint64_t size() const { return by_base_.size(); }

 private:
  // Only where they are asked for: a thread sanitizer does not always have so much room.
  static uint64_t reserve_aliases() {
    constexpr uint64_t kAliasBytes = uint64_t{1} << 40;
    void* at = mmap(nullptr, kAliasBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return reinterpret_cast<uint64_t>(at);
  }

  std::map<uint64_t, Registration> by_base_;
  std::map<uint64_t, uint64_t> aliases_;  // alias: host base
  uint64_t next_alias_ = 0;
};

// PROT_READ, PROT_READ | PROT_WRITE, or 0 where a part is not mapped.
inline int map_access(uint64_t base, uint64_t nbytes) {
  std::ifstream maps("/proc/self/maps");
  uint64_t at = base;
  int access = PROT_READ | PROT_WRITE;
  for (std::string line; std::getline(maps, line) && at < base + nbytes;) {
    unsigned long from, to;
    char read, write;
    if (std::sscanf(line.c_str(), "%lx-%lx %c%c", &from, &to, &read, &write) != 4 || to <= at) continue;
    if (from > at || read != 'r') return 0;
    if (write != 'w') access = PROT_READ;
    at = to;
  }
  return at < base + nbytes ? 0 : access;
}

}  // namespace fake
