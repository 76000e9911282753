// Which session chunks of this process's client area are free.
#pragma once

#include <cstdint>
#include <vector>

namespace umbp {

// Not thread-safe: the session list's mutex guards it.
class ChunkClaims {
 public:
  explicit ChunkClaims(uint32_t chunk_count) : chunk_count_(chunk_count) {}

  uint32_t available() const { return chunk_count_ - used_; }
  // The lowest free chunk, so that a pass has little to look at. Needs available() > 0.
  uint32_t claim();
  void release(uint32_t chunk);

 private:
  uint32_t chunk_count_;
  uint32_t used_ = 0;
  uint32_t next_new_ = 0;
  std::vector<uint32_t> returned_;  // min-heap
};

}  // namespace umbp
