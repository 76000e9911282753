// The inner loops of the host copier, one set for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace umbp {

constexpr size_t kLineBytes = 64;

// Copies `lines` cache lines to dst, a multiple of kLineBytes, past the caches (non-temporal
// stores); src may have any alignment. For each line the load of one line is started, from `ahead`
// upwards; that memory need not exist.
using StreamLines = void (*)(uint8_t* dst, const uint8_t* src, size_t lines, const uint8_t* ahead);
// The same without looking ahead.
using StreamLinesBare = void (*)(uint8_t* dst, const uint8_t* src, size_t lines);

// The functions are nullptr if there are no non-temporal stores: everything is memcpy.
struct CopyKernel {
  const char* isa;
  StreamLines stream_far;   // starts loads into the second-level cache
  StreamLines stream_near;  // into the first
  StreamLinesBare stream_bare;
  void (*fence)();  // orders this thread's non-temporal stores before its later stores
};

// The kernel named `isa`; "auto" is the best one of this CPU. Throws InvalidBatch that names those
// there are.
const CopyKernel& find_copy_kernel(const std::string& isa);

// Names of the kernels of this CPU, best first.
std::vector<std::string> copy_isas();

// Defined only where the compiler's target can have them.
extern const CopyKernel kAvx512Kernel;
extern const CopyKernel kAvx2Kernel;
extern const CopyKernel kNeonKernel;

}  // namespace umbp
