// Coalescing: neighbouring fragments become one run. Pure arithmetic, no memory is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace umbp {

// One contiguous copy of nbytes from address src to address dst.
struct Run {
  uint64_t src;
  uint64_t dst;
  uint64_t nbytes;
};

// Appends the runs of a stream of fragments to `out`.
//
// The lengths of the runs partition the fragments exactly, in their order. A fragment joins the
// open run only if it touches it at the same end on both sides and both region ids are the same; a
// run that grew upwards never grows downwards, nor the reverse. Preconditions of add(): nbytes > 0,
// and src + nbytes and dst + nbytes are at most 2^64; a range may end at exactly 2^64, and is then
// no neighbour of address 0.
class RunBuilder {
 public:
  explicit RunBuilder(std::vector<Run>& out) : out_(out) {}

  void add(uint64_t src, uint64_t dst, uint64_t nbytes, uint32_t src_region, uint32_t dst_region) {
    if (src_region == src_region_ && dst_region == dst_region_) {
      if (continues_above(src, dst)) {
        run_.nbytes += nbytes;
        growth_ = Growth::kUp;
        return;
      }
      if (continues_below(src, dst, nbytes)) {
        run_ = {src, dst, run_.nbytes + nbytes};
        growth_ = Growth::kDown;
        return;
      }
    }
    finish();
    run_ = {src, dst, nbytes};
    src_region_ = src_region;
    dst_region_ = dst_region;
  }

  // Emits the open run, if there is one; the next fragment starts a new one.
  void finish() {
    if (run_.nbytes != 0) out_.push_back(run_);
    run_ = {0, 0, 0};
    growth_ = Growth::kUnknown;
  }

 private:
  enum class Growth : uint8_t { kUnknown, kUp, kDown };

  // The differences are modular: the second comparison on each side rules out that they wrapped.
  bool continues_above(uint64_t src, uint64_t dst) const {
    return src - run_.src == run_.nbytes && dst - run_.dst == run_.nbytes && src > run_.src &&
           dst > run_.dst && growth_ != Growth::kDown;
  }

  bool continues_below(uint64_t src, uint64_t dst, uint64_t nbytes) const {
    return run_.src - src == nbytes && run_.dst - dst == nbytes && src < run_.src &&
           dst < run_.dst && growth_ != Growth::kUp;
  }

  std::vector<Run>& out_;
  Run run_{0, 0, 0};  // nbytes == 0: no run is open
  uint32_t src_region_ = 0;
  uint32_t dst_region_ = 0;
  Growth growth_ = Growth::kUnknown;
};

// The fragments of a batch as parallel arrays of `size` entries.
struct FragmentArrays {
  const uint64_t* src;
  const uint64_t* dst;
  const uint64_t* nbytes;
  const uint32_t* src_region;
  const uint32_t* dst_region;
  size_t size;
};

// The runs of a whole batch. Throws InvalidBatch for an empty fragment or one that ends beyond
// 2^64.
std::vector<Run> plan_runs(const FragmentArrays& fragments);

}  // namespace umbp
