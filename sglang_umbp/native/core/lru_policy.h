// Least recently used goes first.
#pragma once

#include "eviction_policy.h"
#include "recency_list.h"

namespace umbp {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(uint32_t entry_count) : order_(entry_count) {}
  void insert(uint32_t handle, uint32_t) override { order_.push_newest(handle); }
  void touch(uint32_t handle) override;
  void remove(uint32_t handle) override {
    if (order_.holds(handle)) order_.remove(handle);
  }
  uint32_t first() const override { return order_.oldest(); }
  uint32_t after(uint32_t handle) const override { return order_.newer_than(handle); }

 private:
  RecencyList order_;
};

}  // namespace umbp
