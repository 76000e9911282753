// What the copy kernels of sglang_umbp/device/kernels.cu are called, and their parameters. The source has its own
// copy of the structures, because the run-time compiler sees that one file; tests compare the two.
//
// Every kernel copies the same way: a plan of `count` pieces, each cut into `parts` parts of part_bytes (the last ones
// of a piece may be shorter or empty). Part number w of the plan, 0 <= w < count * parts, is bytes
// [k * part_bytes, (k + 1) * part_bytes) of piece w / parts, where k = w % parts, as far as the piece reaches.
// Which thread copies which part, and in what order, is open; a grid may be of any size up to kMostBlocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner.h"

namespace umbp {

// Pieces have the layout of runs: a plan is copied as it is. Addresses are as the device sees them.
using CopyPiece = Run;
static_assert(sizeof(CopyPiece) == 24 && offsetof(CopyPiece, dst) == 8 && offsetof(CopyPiece, nbytes) == 16);

// A piece of a plan whose pieces are all of the same size, at multiples of a power of two from one place on either
// side: a third of the bytes, of which each must be written by the host and read across the link.
struct EvenCopyPiece {
  int32_t src;
  int32_t dst;
};
static_assert(sizeof(EvenCopyPiece) == 8);

// Piece i of such a plan goes from src + pieces[i].src * 2^src_shift to dst + pieces[i].dst * 2^dst_shift.
struct EvenCopy {
  uint64_t src;
  uint64_t dst;
  uint32_t nbytes;
  uint32_t src_shift;
  uint32_t dst_shift;
  uint32_t reserved;  // 0
};
static_assert(sizeof(EvenCopy) == 32);

constexpr CopyPiece piece_of(const EvenCopy& even, EvenCopyPiece piece) {
  return {even.src + (static_cast<uint64_t>(int64_t{piece.src}) << even.src_shift),
          even.dst + (static_cast<uint64_t>(int64_t{piece.dst}) << even.dst_shift), even.nbytes};
}

// How a plan is cut. count * parts <= 2^32 - 2^20, so that a grid's stride does not wrap.
struct CopyCut {
  uint32_t count;
  uint32_t parts;
  uint32_t part_bytes;  // a multiple of kPartUnit
  uint32_t share;       // parts that a group of threads takes at a time, 1..kMostShare; not of the bulk kernel
};
static_assert(sizeof(CopyCut) == 16);

inline constexpr uint32_t kPartUnit = 128;
inline constexpr uint64_t kMaxParts = UINT32_MAX - (uint64_t{1} << 20);
inline constexpr uint32_t kMostShare = 32;

// A stretch of a plan's pieces that are an even plan of their own, cut in its own way.
struct CopySegment {
  EvenCopy even;
  uint32_t first_piece;
  uint32_t first_part;  // of all parts of the plan
  uint32_t parts;       // of each piece
  uint32_t part_bytes;
};
static_assert(sizeof(CopySegment) == 48);

// The whole plan as one argument, passed by value (kernel parameters of 4 KiB are allowed everywhere). Part number w is
// part w - first_part of the last segment with first_part <= w.
inline constexpr size_t kSmallSegments = 8;
inline constexpr size_t kSmallPieces = 440;
struct SmallCopyPlan {
  uint32_t segments;
  uint32_t parts;  // of all segments
  uint32_t share;  // as in CopyCut
  uint32_t reserved;
  CopySegment segment[kSmallSegments];
  EvenCopyPiece pieces[kSmallPieces];
};
static_assert(sizeof(SmallCopyPlan) == 3920);

// umbp_copy_small(SmallCopyPlan plan): blocks of kSmallThreads. Any alignment and size.
inline constexpr const char* kSmallKernel = "umbp_copy_small";
inline constexpr unsigned kSmallThreads = 128;
// umbp_copy_plain(const CopyPiece* pieces, CopyCut cut): the pieces are in device memory, or in pinned memory as the
// device sees it. Blocks of kPlainThreads. Any alignment and size.
inline constexpr const char* kPlainKernel = "umbp_copy_plain";
// umbp_copy_even(const EvenCopyPiece* pieces, EvenCopy even, CopyCut cut): the same for an even plan.
inline constexpr const char* kEvenKernel = "umbp_copy_even";
// Large blocks fill few multiprocessors: a kernel of the model that wants a whole one each loses fewer of them.
inline constexpr unsigned kPlainThreads = 512;
inline constexpr unsigned kPlainGroup = 32;  // threads that copy one part
// Part size that keeps the loads of one warp in flight together: 4 of 16 bytes a thread.
inline constexpr uint32_t kPlainPartBytes = 2048;
inline constexpr unsigned kMostBlocks = (1u << 20) / (kPlainThreads / kPlainGroup * kMostShare);

// umbp_copy_bulk(const CopyPiece* pieces, CopyCut cut): bulk asynchronous copies through shared memory, from compute
// capability 9.0. Blocks of kBulkThreads with kBulkSharedBytes of dynamic shared memory. Every address and size is a
// multiple of kBulkAlignment, part_bytes at most kBulkPartBytes.
inline constexpr const char* kBulkKernel = "umbp_copy_bulk";
inline constexpr int kBulkFromMajor = 9;     // the compute capability from which the image has it
inline constexpr unsigned kBulkThreads = 32;  // each copies parts of its own
inline constexpr uint32_t kBulkPartBytes = 3456;
inline constexpr unsigned kBulkStages = 2;  // a thread
inline constexpr unsigned kBulkSharedBytes = kBulkThreads * kBulkStages * kBulkPartBytes;
inline constexpr uint64_t kBulkAlignment = 16;

}  // namespace umbp
