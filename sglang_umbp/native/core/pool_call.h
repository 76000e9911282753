// What every entry point of the pool begins with.
#pragma once

#include "errors.h"
#include "pool.h"

namespace umbp {

// A call on a lost pool must not touch the shared memory; it is counted apart, so that unmap() need not
// wait for it.
class Pool::Call {
 public:
  explicit Call(Pool& pool) : pool_(pool) {
    pool_.guard_.check();
    lost_ = pool_.lost_.load(std::memory_order_seq_cst);
    counter().fetch_add(1, std::memory_order_seq_cst);
    if (!lost_ && pool_.lost_.load(std::memory_order_seq_cst)) {  // lost at this moment
      leave();
      lost_ = true;
      counter().fetch_add(1, std::memory_order_seq_cst);
    }
    if (pool_.closed_.load(std::memory_order_seq_cst)) {
      leave();
      throw PoolClosed("the pool is closed");
    }
  }
  ~Call() { leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool lost() const { return lost_; }

 private:
  std::atomic<uint32_t>& counter() { return lost_ ? pool_.lost_calls_ : pool_.calls_; }
  void leave() { counter().fetch_sub(1, std::memory_order_seq_cst); }

  Pool& pool_;
  bool lost_ = false;
};

}  // namespace umbp
