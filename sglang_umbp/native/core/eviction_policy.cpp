#include "eviction_policy.h"

#include "depth_lru_policy.h"
#include "errors.h"
#include "lru_policy.h"

namespace umbp {

std::unique_ptr<EvictionPolicy> make_policy(const std::string& name, uint32_t entry_count) {
  if (name == "lru") return std::make_unique<LruPolicy>(entry_count);
  if (name == "depth_lru") return std::make_unique<DepthLruPolicy>(entry_count);
  throw InvalidBatch("policy '" + name + "' is not known; allowed: lru, depth_lru");
}

}  // namespace umbp
