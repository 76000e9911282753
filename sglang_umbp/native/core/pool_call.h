// What every entry point of the pool begins with.
#pragma once

#include "errors.h"
#include "pool.h"

namespace umbp {

class Pool::Call {
 public:
  explicit Call(Pool& pool) : pool_(pool) {
    pool_.guard_.check();
    pool_.calls_.fetch_add(1, std::memory_order_seq_cst);
    if (pool_.closed_.load(std::memory_order_seq_cst)) {
      pool_.calls_.fetch_sub(1, std::memory_order_seq_cst);
      throw PoolClosed("the pool is closed");
    }
  }
  ~Call() { pool_.calls_.fetch_sub(1, std::memory_order_seq_cst); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Pool& pool_;
};

}  // namespace umbp
