// One object of a put batch on its way through the owner.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "hash128.h"
#include "shared_layout.h"
#include "status.h"

namespace umbp {

enum class PutPhase : uint8_t {
  kPending,    // not looked at yet, or waits for room
  kNew,        // has an entry and an extent: copy, then commit
  kDuplicate,  // the same key stands earlier in this batch
  kPresent,    // the object is there
  kBusy,       // another batch is filling it
  kDone,       // `status` is the answer
};

struct PutItem {
  Hash128 hash;
  std::string_view key;  // valid until the batch ends
  uint64_t nbytes = 0;
  uint32_t component = 0;
  uint32_t depth = 0;  // pages before it in its prefix

  PutPhase phase = PutPhase::kPending;
  Status status = Status::kOk;
  uint64_t batch = 0;  // number of the allocation it belongs to
  uint32_t handle = kNoHandle;
  uint64_t offset = 0;  // in the arena, once kNew
  uint64_t clears_before = 0;  // a clear() after allocation dooms the put
  bool is_protected = false;  // no victim while the batch lasts

  // Whether it takes room that this batch must not take back from itself.
  bool is_member() const {
    return phase == PutPhase::kNew || phase == PutPhase::kPresent ||
           (phase == PutPhase::kDone && succeeded(status));
  }

  void finish(Status answer) {
    phase = PutPhase::kDone;
    status = answer;
  }
};

// Items of `digests`, which lie in the component with this id and key, behind those that are there.
// depth: pages that come before the first of them, of which they are consecutive pages. Without sizes.
void append_items(std::vector<PutItem>& items, uint32_t component, const Hash128& component_key,
                  std::span<const Hash128> digests, std::span<const std::string_view> keys,
                  std::optional<uint32_t> depth);
std::vector<PutItem> make_items(uint32_t component, const Hash128& component_key,
                                std::span<const Hash128> digests,
                                std::span<const std::string_view> keys,
                                std::optional<uint32_t> depth);

}  // namespace umbp
