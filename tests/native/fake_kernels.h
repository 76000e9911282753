// The kernels that the emulated runtimes can run, by name, in plain C++.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

namespace fake {

// Memory as a kernel sees it: where [address, address + nbytes) really is. Throws Fault where the device
// may not go: outside every allocation and registration, or writing to what is registered as read-only.
using Memory = std::function<std::byte*(uint64_t address, uint64_t nbytes, bool writes)>;
using Work = std::function<void(const Memory&)>;

template <class T>
T parameter(void** parameters, size_t index) {
  T value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

// For tests of the runtimes themselves: (uint64 dst, uint64 src, uint64 nbytes), one range.
inline Work copy_one(void** parameters) {
  const auto dst = parameter<uint64_t>(parameters, 0);
  const auto src = parameter<uint64_t>(parameters, 1);
  const auto nbytes = parameter<uint64_t>(parameters, 2);
  return [=](const Memory& memory) {
    std::memcpy(memory(dst, nbytes, true), memory(src, nbytes, false), nbytes);
  };
}

inline bool has_kernel(const std::string& name) { return name == "fake_copy_one"; }

// What the launch is to do. Parameters are read now, as a launch does; memory they point to is read when the
// work is done. grid and block are those of the launch.
inline Work bind_kernel(const std::string& name, unsigned grid, unsigned block, void** parameters) {
  (void)grid, (void)block;
  if (name == "fake_copy_one") return copy_one(parameters);
  return {};
}

}  // namespace fake
