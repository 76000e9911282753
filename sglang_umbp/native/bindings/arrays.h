// numpy arrays as the native core takes them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "planner.h"

namespace umbp {

template <typename T>
using InputArray =
    nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using OutputArray = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

template <typename T>
void check_length(const InputArray<T>& array, const char* name, size_t length) {
  if (array.shape(0) != length) {
    throw InvalidBatch(std::string(name) + " has " + std::to_string(array.shape(0)) +
                       " entries, src has " + std::to_string(length));
  }
}

// A new numpy array that owns the values.
template <typename T>
OutputArray<T> to_array(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return OutputArray<T>(kept->data(), {kept->size()}, owner);
}

// Into `runs`, whose memory is used again. Throws InvalidBatch if the lengths differ.
inline void to_runs_in(std::vector<Run>& runs, const InputArray<uint64_t>& dst, const InputArray<uint64_t>& src,
                       const InputArray<uint64_t>& sizes) {
  check_length(dst, "dst", src.shape(0));
  check_length(sizes, "sizes", src.shape(0));
  runs.resize(src.shape(0));
  const uint64_t *from = src.data(), *to = dst.data(), *nbytes = sizes.data();
  for (size_t i = 0; i < runs.size(); ++i) runs[i] = {from[i], to[i], nbytes[i]};
}

inline std::vector<Run> to_runs(const InputArray<uint64_t>& dst, const InputArray<uint64_t>& src,
                                const InputArray<uint64_t>& sizes) {
  std::vector<Run> runs;
  to_runs_in(runs, dst, src, sizes);
  return runs;
}

}  // namespace umbp
