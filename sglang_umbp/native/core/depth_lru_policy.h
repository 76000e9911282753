// Least recently used goes first, and of pages that were used together the deepest.
#pragma once

#include <vector>

#include "eviction_policy.h"
#include "recency_list.h"

namespace umbp {

// Plain LRU takes the first page of the oldest prefix first, and with it the use of all pages behind
// it: a look-up stops at the first miss. Here a page that is used right after one no deeper than
// itself goes in just older than that one, so that a prefix shrinks from its end.
class DepthLruPolicy final : public EvictionPolicy {
 public:
  explicit DepthLruPolicy(uint32_t entry_count) : order_(entry_count), depths_(entry_count, 0) {}
  void insert(uint32_t handle, uint32_t depth) override;
  void touch(uint32_t handle) override;
  void remove(uint32_t handle) override;
  uint32_t first() const override { return order_.oldest(); }
  uint32_t after(uint32_t handle) const override { return order_.newer_than(handle); }

 private:
  void place(uint32_t handle);

  RecencyList order_;
  std::vector<uint32_t> depths_;
  uint32_t last_used_ = kNoHandle;
};

}  // namespace umbp
