// A doubly linked list of handles from the oldest to the newest, threaded through an array.
#pragma once

#include <cstdint>
#include <vector>

#include "shared_layout.h"

namespace umbp {

class RecencyList {
 public:
  explicit RecencyList(uint32_t entry_count) : links_(entry_count) {}

  bool holds(uint32_t handle) const { return links_[handle].older != kNotHeld; }
  uint32_t oldest() const { return oldest_; }
  uint32_t newest() const { return newest_; }
  uint32_t newer_than(uint32_t handle) const { return links_[handle].newer; }

  void push_newest(uint32_t handle) { link(newest_, handle, kNoHandle); }
  // `other` must be held.
  void insert_older_than(uint32_t other, uint32_t handle) {
    link(links_[other].older, handle, other);
  }
  void remove(uint32_t handle) {
    const Links links = links_[handle];
    (links.older == kNoHandle ? oldest_ : links_[links.older].newer) = links.newer;
    (links.newer == kNoHandle ? newest_ : links_[links.newer].older) = links.older;
    links_[handle] = {};
  }

 private:
  static constexpr uint32_t kNotHeld = kNoHandle - 1;

  struct Links {
    uint32_t older = kNotHeld;
    uint32_t newer = kNoHandle;
  };

  void link(uint32_t older, uint32_t handle, uint32_t newer) {
    links_[handle] = {older, newer};
    (older == kNoHandle ? oldest_ : links_[older].newer) = handle;
    (newer == kNoHandle ? newest_ : links_[newer].older) = handle;
  }

  uint32_t oldest_ = kNoHandle;
  uint32_t newest_ = kNoHandle;
  std::vector<Links> links_;
};

}  // namespace umbp
