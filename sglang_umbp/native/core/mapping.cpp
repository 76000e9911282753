#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace umbp {
namespace {

constexpr size_t kHugepageBytes = 2u << 20;
constexpr int kPreferNode = 1;  // MPOL_PREFERRED: other nodes help out when this one is full
constexpr size_t kMaskBits = 1024;
constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

size_t align_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void fail(const std::string& what, size_t nbytes, const char* call) {
  throw OutOfMemory("cannot get " + std::to_string(nbytes) + " bytes for " + what + ": " + call +
                    ": " + std::strerror(errno));
}

std::byte* map(const std::string& what, size_t nbytes, int protection, int flags, int fd) {
  void* data = mmap(nullptr, nbytes, protection, flags, fd, 0);
  if (data == MAP_FAILED) fail(what, nbytes, "mmap");
  madvise(data, nbytes, MADV_DONTFORK);
  madvise(data, nbytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(data);
}

int fixed_size_memfd(const std::string& what, size_t nbytes) {
  const int fd = memfd_create(("umbp-" + what).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(what, nbytes, "memfd_create");
  if (ftruncate(fd, static_cast<off_t>(nbytes)) != 0 || fcntl(fd, F_ADD_SEALS, kFixedSize) != 0) {
    const int reason = errno;
    ::close(fd);
    errno = reason;
    fail(what, nbytes, "ftruncate and seal");
  }
  return fd;
}

// After its owner has mapped it writable: the last seals, and none may be added.
void seal(const std::string& what, int fd, size_t nbytes, bool read_only_elsewhere) {
  const int last = read_only_elsewhere ? F_SEAL_FUTURE_WRITE | F_SEAL_SEAL : F_SEAL_SEAL;
  if (fcntl(fd, F_ADD_SEALS, last) != 0) fail(what, nbytes, "seal");
}

// A 2 MiB aligned start lets the kernel use hugepages from the first byte.
std::byte* map_anonymous(const std::string& what, size_t nbytes) {
  const size_t padded = nbytes + kHugepageBytes;
  std::byte* raw = map(what, padded, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const size_t lead = align_up(start, kHugepageBytes) - start;
  if (lead != 0) munmap(raw, lead);
  if (kHugepageBytes - lead != 0) munmap(raw + lead + nbytes, kHugepageBytes - lead);
  return raw + lead;
}

// The system call itself: libnuma is not needed for one call.
void prefer_node(const std::string& what, std::byte* data, size_t nbytes, int node) {
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaskBits / kWordBits] = {};
  mask[static_cast<size_t>(node) / kWordBits] = 1ul << static_cast<size_t>(node) % kWordBits;
  if (syscall(SYS_mbind, data, nbytes, kPreferNode, mask, kMaskBits + 1, 0) != 0)
    fail(what + " on NUMA node " + std::to_string(node), nbytes, "mbind");
}

}  // namespace

Mapping::Mapping(const std::string& what, size_t nbytes, const MappingOptions& options)
    : nbytes_(align_up(nbytes, kHugepageBytes)) {
  if (options.backing == MemoryBacking::kMemfd) {
    fd_ = fixed_size_memfd(what, nbytes_);
    try {
      data_ = map(what, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_);
      seal(what, fd_, nbytes_, options.read_only_elsewhere);
    } catch (...) {
      if (data_ != nullptr) munmap(data_, nbytes_);
      ::close(fd_);
      throw;
    }
  } else {
    data_ = map_anonymous(what, nbytes_);
  }
  try {
    prepare(what, options);
  } catch (...) {  // the destructor does not run
    munmap(data_, nbytes_);
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

void Mapping::prepare(const std::string& what, const MappingOptions& options) {
  if (options.hugepages) madvise(data_, nbytes_, MADV_HUGEPAGE);
  if (options.numa_node >= 0) prefer_node(what, data_, nbytes_, options.numa_node);
  if (options.prefault && !options.prefault_in_background) populate(data_, nbytes_);
}

void Mapping::populate_in_background(Access access, PrefaultHooks hooks) {
  prefault_ = std::make_unique<BackgroundPrefault>(data_, nbytes_, access, std::move(hooks));
}

Mapping Mapping::attach(const std::string& what, int fd, Access access) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kFixedSize) != kFixedSize)
    throw Error("descriptor " + std::to_string(fd) + " for " + what +
                " is not a memfd sealed against a change of its size");
  struct stat info {};
  if (fstat(fd, &info) != 0) fail(what, 0, "fstat");
  Mapping mapping;
  mapping.nbytes_ = static_cast<size_t>(info.st_size);
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  mapping.data_ = map(what, mapping.nbytes_, protection, MAP_SHARED, fd);
  return mapping;
}

Mapping::~Mapping() {
  if (guard_.foreign()) static_cast<void>(prefault_.release());  // a forked child has no such thread
  prefault_.reset();
  if (data_ != nullptr && !guard_.foreign()) munmap(data_, nbytes_);
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  std::swap(fd_, other.fd_);
  std::swap(prefault_, other.prefault_);
  std::swap(guard_, other.guard_);
  return *this;
}

}  // namespace umbp
