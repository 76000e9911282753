#include "lru_policy.h"

namespace umbp {

void LruPolicy::touch(uint32_t handle) {
  if (!order_.holds(handle) || handle == order_.newest()) return;
  order_.remove(handle);
  order_.push_newest(handle);
}

}  // namespace umbp
