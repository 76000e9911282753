#include "depth_lru_policy.h"

namespace umbp {

void DepthLruPolicy::insert(uint32_t handle, uint32_t depth) {
  depths_[handle] = depth;
  place(handle);
}

void DepthLruPolicy::touch(uint32_t handle) {
  if (!order_.holds(handle) || handle == last_used_) return;
  order_.remove(handle);
  place(handle);
}

void DepthLruPolicy::remove(uint32_t handle) {
  if (!order_.holds(handle)) return;
  if (handle == last_used_) last_used_ = kNoHandle;
  order_.remove(handle);
}

void DepthLruPolicy::place(uint32_t handle) {
  const bool deeper = last_used_ != kNoHandle && depths_[handle] != 0 &&
                      depths_[handle] >= depths_[last_used_];
  if (deeper)
    order_.insert_older_than(last_used_, handle);
  else
    order_.push_newest(handle);
  last_used_ = handle;
}

}  // namespace umbp
