// Copies runs between host addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "copy_kernels.h"
#include "planner.h"

namespace umbp {

// Immutable and cheap to copy; any number of threads may use one. Addresses are trusted: check them
// against the region table first. src and dst of one call never overlap.
class HostCopier {
 public:
  // Runs of nt_min_bytes and more are copied with non-temporal stores, shorter ones by memcpy (0:
  // every run, UINT64_MAX: none). isa: "auto", or one of avx512, avx2, neon, plain. Throws
  // InvalidBatch if this CPU lacks it.
  explicit HostCopier(uint64_t nt_min_bytes, const std::string& isa = "auto")
      : nt_min_bytes_(nt_min_bytes), kernel_(&find_copy_kernel(isa)) {}

  // Copies all runs. On return the bytes are ordered before any later store of this thread.
  void copy(const Run* runs, size_t n) const;

  const char* isa() const { return kernel_->isa; }
  uint64_t nt_min_bytes() const { return nt_min_bytes_; }

 private:
  uint64_t nt_min_bytes_;
  const CopyKernel* kernel_;
};

}  // namespace umbp
