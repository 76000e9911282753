#include "planner.h"

#include <string>

#include "errors.h"

namespace umbp {
namespace {

bool ends_beyond_address_space(uint64_t address, uint64_t nbytes) {
  return nbytes - 1 > UINT64_MAX - address;
}

void check_fragment(const FragmentArrays& f, size_t i) {
  if (f.nbytes[i] == 0) throw InvalidBatch("fragment " + std::to_string(i) + " has 0 bytes");
  if (ends_beyond_address_space(f.src[i], f.nbytes[i]) ||
      ends_beyond_address_space(f.dst[i], f.nbytes[i])) {
    throw InvalidBatch("fragment " + std::to_string(i) + " of " + std::to_string(f.nbytes[i]) +
                       " bytes ends beyond the address space");
  }
}

}  // namespace

std::vector<Run> plan_runs(const FragmentArrays& fragments) {
  std::vector<Run> runs;
  RunBuilder builder(runs);
  for (size_t i = 0; i < fragments.size; ++i) {
    check_fragment(fragments, i);
    builder.add(fragments.src[i], fragments.dst[i], fragments.nbytes[i], fragments.src_region[i],
                fragments.dst_region[i]);
  }
  builder.finish();
  return runs;
}

}  // namespace umbp
