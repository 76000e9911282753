// Least recently used: a doubly linked list threaded through arrays indexed by handle.
#pragma once

#include <vector>

#include "eviction_policy.h"
#include "shared_layout.h"

namespace umbp {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(uint32_t entry_count);
  void insert(uint32_t handle) override;
  void touch(uint32_t handle) override;
  void remove(uint32_t handle) override;
  uint32_t first() const override { return oldest_; }
  uint32_t after(uint32_t handle) const override { return links_[handle].newer; }

 private:
  struct Links {
    uint32_t older = kNoHandle;
    uint32_t newer = kNoHandle;
    bool held = false;
  };

  uint32_t oldest_ = kNoHandle;
  uint32_t newest_ = kNoHandle;
  std::vector<Links> links_;
};

}  // namespace umbp
