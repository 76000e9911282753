#include "lru_policy.h"

#include "errors.h"

namespace umbp {

LruPolicy::LruPolicy(uint32_t entry_count) : links_(entry_count) {}

void LruPolicy::insert(uint32_t handle) {
  Links& links = links_[handle];
  links = {newest_, kNoHandle, true};
  (newest_ == kNoHandle ? oldest_ : links_[newest_].newer) = handle;
  newest_ = handle;
}

void LruPolicy::touch(uint32_t handle) {
  if (!links_[handle].held || handle == newest_) return;
  remove(handle);
  insert(handle);
}

void LruPolicy::remove(uint32_t handle) {
  Links& links = links_[handle];
  if (!links.held) return;
  (links.older == kNoHandle ? oldest_ : links_[links.older].newer) = links.newer;
  (links.newer == kNoHandle ? newest_ : links_[links.newer].older) = links.older;
  links = {};
}

std::unique_ptr<EvictionPolicy> make_policy(const std::string& name, uint32_t entry_count) {
  if (name == "lru") return std::make_unique<LruPolicy>(entry_count);
  throw InvalidBatch("policy '" + name + "' is not known; allowed: lru");
}

}  // namespace umbp
