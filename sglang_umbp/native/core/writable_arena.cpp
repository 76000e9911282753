#include "writable_arena.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "errors.h"

namespace umbp {

WritableArena::WritableArena(int fd, Made made)
    : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 0)), made_(std::move(made)) {
  if (fd_ < 0)
    throw Error("cannot keep the arena's descriptor " + std::to_string(fd) + ": " +
                std::strerror(errno));
}

WritableArena::~WritableArena() { ::close(fd_); }

std::byte* WritableArena::data() {
  std::lock_guard lock(mutex_);
  if (memory_.data() == nullptr) {
    memory_ = Mapping::attach("arena, to write to", fd_, Access::kWrite);
    made_(memory_);
  }
  return memory_.data();
}

bool WritableArena::populated() {
  std::lock_guard lock(mutex_);
  return memory_.populated();
}

}  // namespace umbp
