#include "copy_kernels.h"

#include "errors.h"

namespace umbp {
namespace {

const CopyKernel kPlainKernel{"plain", nullptr, nullptr, nullptr, nullptr};

// Best first.
std::vector<const CopyKernel*> kernels_of_this_cpu() {
  std::vector<const CopyKernel*> kernels;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(&kAvx512Kernel);
  if (__builtin_cpu_supports("avx2")) kernels.push_back(&kAvx2Kernel);
#elif defined(__aarch64__)
  kernels.push_back(&kNeonKernel);
#endif
  kernels.push_back(&kPlainKernel);
  return kernels;
}

}  // namespace

const CopyKernel& find_copy_kernel(const std::string& isa) {
  const std::vector<const CopyKernel*> kernels = kernels_of_this_cpu();
  if (isa == "auto") return *kernels.front();
  std::string available = "auto";
  for (const CopyKernel* kernel : kernels) {
    if (isa == kernel->isa) return *kernel;
    available += std::string(", ") + kernel->isa;
  }
  throw InvalidBatch("copy instruction set '" + isa +
                     "' is not available on this CPU; available: " + available);
}

std::vector<std::string> copy_isas() {
  std::vector<std::string> names;
  for (const CopyKernel* kernel : kernels_of_this_cpu()) names.emplace_back(kernel->isa);
  return names;
}

}  // namespace umbp
