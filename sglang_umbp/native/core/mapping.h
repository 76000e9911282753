// One stretch of zeroed memory: anonymous, or a sealed memfd that other processes can map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fork_guard.h"
#include "prefault.h"

namespace umbp {

enum class MemoryBacking : uint8_t { kAnonymous = 0, kMemfd = 1 };

struct MappingOptions {
  MemoryBacking backing = MemoryBacking::kAnonymous;
  bool hugepages = false;   // ask for transparent hugepages
  bool prefault = false;    // give every page its memory now
  bool prefault_in_background = false;  // for whoever makes it: populate_in_background() instead
  int numa_node = -1;       // pages come from this node first; -1: the kernel chooses
  bool read_only_elsewhere = false;  // memfd: nobody else may map it writable from now on
};

// Owns the map (and the descriptor). Not inherited by a forked child: MADV_DONTFORK.
class Mapping {
 public:
  Mapping() = default;
  // Throws OutOfMemory, naming `what`, the size and the system's reason.
  Mapping(const std::string& what, size_t nbytes, const MappingOptions& options);
  // Maps a memfd of another process; takes no ownership of `fd`. Throws OutOfMemory, and Error unless
  // it is sealed against a change of its size: whoever cut it short could end this process.
  static Mapping attach(const std::string& what, int fd, Access access);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  int fd() const { return fd_; }
  // Lets a thread give every page its memory. Once. Throws std::system_error.
  void populate_in_background(Access access, PrefaultHooks hooks = {});
  // Ends that thread.
  void stop_populating() { prefault_.reset(); }
  // Whether no thread is giving its pages memory any more.
  bool populated() const { return !prefault_ || prefault_->through(); }

 private:
  void prepare(const std::string& what, const MappingOptions& options);

  std::byte* data_ = nullptr;
  size_t nbytes_ = 0;
  int fd_ = -1;
  std::unique_ptr<BackgroundPrefault> prefault_;
  ForkGuard guard_;
};

}  // namespace umbp
