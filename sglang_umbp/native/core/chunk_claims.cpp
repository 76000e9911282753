#include "chunk_claims.h"

#include <algorithm>
#include <functional>

namespace umbp {

uint32_t ChunkClaims::claim() {
  ++used_;
  if (returned_.empty()) return next_new_++;
  std::pop_heap(returned_.begin(), returned_.end(), std::greater<>());
  const uint32_t chunk = returned_.back();
  returned_.pop_back();
  return chunk;
}

void ChunkClaims::release(uint32_t chunk) {
  --used_;
  returned_.push_back(chunk);
  std::push_heap(returned_.begin(), returned_.end(), std::greater<>());
}

}  // namespace umbp
