// One stretch of zeroed memory: anonymous, or a sealed memfd that other processes can map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "fork_guard.h"

namespace umbp {

enum class MemoryBacking : uint8_t { kAnonymous = 0, kMemfd = 1 };

struct MappingOptions {
  MemoryBacking backing = MemoryBacking::kAnonymous;
  bool hugepages = false;   // ask for transparent hugepages
  bool prefault = false;    // touch every page now
  bool read_only_elsewhere = false;  // memfd: nobody else may map it writable from now on
};

// Owns the map (and the descriptor). Not inherited by a forked child: MADV_DONTFORK.
class Mapping {
 public:
  Mapping() = default;
  // Throws OutOfMemory, naming `what`, the size and the system's reason.
  Mapping(const std::string& what, size_t nbytes, const MappingOptions& options);
  // Maps a memfd of another process; takes no ownership of `fd`. Throws OutOfMemory.
  static Mapping attach(const std::string& what, int fd, bool writable);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  int fd() const { return fd_; }

 private:
  std::byte* data_ = nullptr;
  size_t nbytes_ = 0;
  int fd_ = -1;
  ForkGuard guard_;
};

}  // namespace umbp
