// Which object goes next when room is needed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace umbp {

// Holds the LIVE handles in an order of its own. Not thread-safe: the owner's mutex guards it.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // depth: how many pages of its prefix come before it; 0 also where nobody said.
  virtual void insert(uint32_t handle, uint32_t depth) = 0;
  // A read or a repeated put; unknown handles are ignored (names arrive late and may be stale).
  virtual void touch(uint32_t handle) = 0;
  virtual void remove(uint32_t handle) = 0;
  // Victims in order: the first, and the one after `handle`; kNoHandle at the end.
  virtual uint32_t first() const = 0;
  virtual uint32_t after(uint32_t handle) const = 0;
};

// Throws InvalidBatch naming the policies there are.
std::unique_ptr<EvictionPolicy> make_policy(const std::string& name, uint32_t entry_count);

}  // namespace umbp
