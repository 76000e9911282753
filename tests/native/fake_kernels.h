// The kernels that the emulated runtimes can run, by name, in plain C++.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "device_kernels.h"

namespace fake {

// What a device does with an address that it must not use.
struct Fault {};

// Memory as a kernel sees it: where [address, address + nbytes) really is. Throws Fault where the device
// may not go: outside every allocation and registration, or writing to what is registered as read-only.
using Memory = std::function<std::byte*(uint64_t address, uint64_t nbytes, bool writes)>;
using Work = std::function<void(const Memory&)>;

struct Shape {
  unsigned grid;
  unsigned block;
  unsigned shared_bytes;
};

template <class T>
T parameter(void** parameters, size_t index) {
  T value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

inline void copy_range(const Memory& memory, uint64_t dst, uint64_t src, uint64_t nbytes) {
  if (nbytes != 0) std::memcpy(memory(dst, nbytes, true), memory(src, nbytes, false), nbytes);
}

// As far as the parts of the plan reach, the last piece first.
inline void copy_pieces(const Memory& memory, const umbp::CopyPiece* pieces, const umbp::CopyCut& cut) {
  if (cut.part_bytes == 0 || cut.part_bytes % umbp::kPartUnit != 0 || cut.share == 0 || cut.share > umbp::kMostShare ||
      uint64_t{cut.count} * cut.parts > umbp::kMaxParts)
    throw Fault{};
  for (uint32_t i = cut.count; i-- > 0;)
    copy_range(memory, pieces[i].dst, pieces[i].src,
               std::min<uint64_t>(pieces[i].nbytes, uint64_t{cut.parts} * cut.part_bytes));
}

inline Work copy_small(const Shape& shape, void** parameters) {
  const auto plan = parameter<umbp::SmallCopyPlan>(parameters, 0);
  return [=](const Memory& memory) {
    if (shape.block != umbp::kSmallThreads || plan.segments == 0 || plan.segments > umbp::kSmallSegments) throw Fault{};
    if (plan.share == 0 || plan.share > umbp::kMostShare || plan.reserved != 0) throw Fault{};
    for (uint32_t s = plan.segments, end = plan.parts; s-- > 0; end = plan.segment[s].first_part) {
      const umbp::CopySegment& segment = plan.segment[s];
      if (segment.parts == 0 || (end - segment.first_part) % segment.parts != 0) throw Fault{};
      const uint32_t count = (end - segment.first_part) / segment.parts;
      if (segment.first_piece + count > umbp::kSmallPieces) throw Fault{};
      std::vector<umbp::CopyPiece> listed;
      for (uint32_t i = 0; i < count; ++i) listed.push_back(piece_of(segment.even, plan.pieces[segment.first_piece + i]));
      copy_pieces(memory, listed.data(), {count, segment.parts, segment.part_bytes, plan.share});
    }
  };
}

inline Work copy_listed(const Shape& shape, void** parameters, bool bulk) {
  const auto address = parameter<uint64_t>(parameters, 0);
  const auto cut = parameter<umbp::CopyCut>(parameters, 1);
  return [=](const Memory& memory) {
    if (shape.block != (bulk ? umbp::kBulkThreads : umbp::kPlainThreads)) throw Fault{};
    if (bulk && (shape.shared_bytes != umbp::kBulkSharedBytes || cut.part_bytes > umbp::kBulkPartBytes))
      throw Fault{};
    const uint64_t nbytes = uint64_t{cut.count} * sizeof(umbp::CopyPiece);
    std::vector<umbp::CopyPiece> pieces(cut.count);
    std::memcpy(pieces.data(), memory(address, nbytes, false), nbytes);  // read now, not at the launch
    for (const umbp::CopyPiece& piece : pieces)
      if (bulk && (piece.src | piece.dst | piece.nbytes) % umbp::kBulkAlignment != 0) throw Fault{};
    copy_pieces(memory, pieces.data(), cut);
  };
}

inline Work copy_even(const Shape& shape, void** parameters) {
  const auto address = parameter<uint64_t>(parameters, 0);
  const auto even = parameter<umbp::EvenCopy>(parameters, 1);
  const auto cut = parameter<umbp::CopyCut>(parameters, 2);
  return [=](const Memory& memory) {
    if (shape.block != umbp::kPlainThreads || even.reserved != 0) throw Fault{};
    const uint64_t nbytes = uint64_t{cut.count} * sizeof(umbp::EvenCopyPiece);
    std::vector<umbp::EvenCopyPiece> pieces(cut.count);
    std::memcpy(pieces.data(), memory(address, nbytes, false), nbytes);  // read now, not at the launch
    std::vector<umbp::CopyPiece> listed;
    for (const umbp::EvenCopyPiece& piece : pieces) listed.push_back(umbp::piece_of(even, piece));
    copy_pieces(memory, listed.data(), cut);
  };
}

// For tests of the runtimes themselves: (uint64 dst, uint64 src, uint64 nbytes), one range.
inline Work copy_one(void** parameters) {
  const auto dst = parameter<uint64_t>(parameters, 0);
  const auto src = parameter<uint64_t>(parameters, 1);
  const auto nbytes = parameter<uint64_t>(parameters, 2);
  return [=](const Memory& memory) { copy_range(memory, dst, src, nbytes); };
}

// What the launch is to do; nothing: there is no such kernel. Parameters are read now, as a launch does.
inline Work bind_kernel(const std::string& name, const Shape& shape, void** parameters) {
  if (name == umbp::kSmallKernel) return copy_small(shape, parameters);
  if (name == umbp::kPlainKernel) return copy_listed(shape, parameters, false);
  if (name == umbp::kEvenKernel) return copy_even(shape, parameters);
  if (name == umbp::kBulkKernel) return copy_listed(shape, parameters, true);
  if (name == "fake_copy_one") return copy_one(parameters);
  return {};
}

inline bool has_kernel(const std::string& name, bool with_bulk) {
  if (name == umbp::kBulkKernel) return with_bulk;
  return name == umbp::kSmallKernel || name == umbp::kPlainKernel || name == umbp::kEvenKernel ||
         name == "fake_copy_one";
}

}  // namespace fake
