// The source of the copy kernels as host code, one thread after the other: every alignment and size, and random plans
// with random cuts and grids, against memcpy; its structures against those of device_kernels.h. Built with sanitizers,
// a misaligned or stray access ends it.
//
//   device_kernels_checks PLANS SEED
//
// Exits with 1 at the first difference; prints what it did as pairs of names and integers. Bulk copies are not in it:
// they are instructions of one architecture.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "device_kernels.h"

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx, gridDim;

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __builtin_nontemporal_load(from) (*(from))
#define __builtin_nontemporal_store(word, to) (*(to) = (word))
namespace source {
#include "../../sglang_umbp/device/kernels.cu"
}

namespace {

using Bytes = std::vector<unsigned char>;
constexpr unsigned char kSentinel = 0xA5;

static_assert(sizeof(source::Piece) == sizeof(umbp::CopyPiece));
static_assert(offsetof(source::Piece, src) == offsetof(umbp::CopyPiece, src));
static_assert(offsetof(source::Piece, dst) == offsetof(umbp::CopyPiece, dst));
static_assert(offsetof(source::Piece, nbytes) == offsetof(umbp::CopyPiece, nbytes));
static_assert(sizeof(source::Cut) == sizeof(umbp::CopyCut));
static_assert(offsetof(source::Cut, count) == offsetof(umbp::CopyCut, count));
static_assert(offsetof(source::Cut, parts) == offsetof(umbp::CopyCut, parts));
static_assert(offsetof(source::Cut, part_bytes) == offsetof(umbp::CopyCut, part_bytes));
static_assert(offsetof(source::Cut, share) == offsetof(umbp::CopyCut, share));
static_assert(sizeof(source::EvenPiece) == sizeof(umbp::EvenCopyPiece));
static_assert(offsetof(source::EvenPiece, dst) == offsetof(umbp::EvenCopyPiece, dst));
static_assert(sizeof(source::Even) == sizeof(umbp::EvenCopy));
static_assert(offsetof(source::Even, dst) == offsetof(umbp::EvenCopy, dst));
static_assert(offsetof(source::Even, nbytes) == offsetof(umbp::EvenCopy, nbytes));
static_assert(offsetof(source::Even, src_shift) == offsetof(umbp::EvenCopy, src_shift));
static_assert(offsetof(source::Even, dst_shift) == offsetof(umbp::EvenCopy, dst_shift));
static_assert(sizeof(source::SmallPlan) == sizeof(umbp::SmallCopyPlan));
static_assert(offsetof(source::SmallPlan, pieces) == offsetof(umbp::SmallCopyPlan, pieces));
static_assert(offsetof(source::SmallPlan, parts) == offsetof(umbp::SmallCopyPlan, parts));
static_assert(offsetof(source::SmallPlan, share) == offsetof(umbp::SmallCopyPlan, share));
static_assert(offsetof(source::SmallPlan, segment) == offsetof(umbp::SmallCopyPlan, segment));
static_assert(sizeof(source::Segment) == sizeof(umbp::CopySegment));
static_assert(offsetof(source::Segment, first_piece) == offsetof(umbp::CopySegment, first_piece));
static_assert(offsetof(source::Segment, first_part) == offsetof(umbp::CopySegment, first_part));
static_assert(offsetof(source::Segment, parts) == offsetof(umbp::CopySegment, parts));
static_assert(offsetof(source::Segment, part_bytes) == offsetof(umbp::CopySegment, part_bytes));
static_assert(UMBP_SMALL_SEGMENTS == umbp::kSmallSegments);
static_assert(UMBP_SMALL_PIECES == umbp::kSmallPieces);
static_assert(UMBP_PLAIN_THREADS == umbp::kPlainThreads);
static_assert(UMBP_SMALL_THREADS == umbp::kSmallThreads);
static_assert(UMBP_GROUP == umbp::kPlainGroup);

template <class Kernel>
void run_blocks(unsigned grid, unsigned threads, Kernel&& kernel) {
  gridDim.x = grid;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel();
  }
}

struct Plan {
  std::vector<source::Piece> pieces;
  source::Cut cut{};
};

void run_plan(const Plan& plan, unsigned grid) {
  run_blocks(grid, UMBP_PLAIN_THREADS, [&] { source::umbp_copy_plain(plan.pieces.data(), plan.cut); });
}

uint64_t address(const Bytes& bytes, size_t offset) { return reinterpret_cast<uint64_t>(bytes.data()) + offset; }

void expect_equal(const Bytes& found, const Bytes& wanted, const char* what) {
  if (found == wanted) return;
  std::printf("differs: %s\n", what);
  std::exit(1);
}

uint64_t every_alignment() {
  uint64_t copies = 0;
  Bytes from(512);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 37 + 11);
  for (size_t s = 0; s < 16; ++s) {
    for (size_t d = 0; d < 16; ++d) {
      for (size_t n = 1; n < 80; ++n, ++copies) {
        Bytes to(512, kSentinel), wanted = to;
        std::memcpy(wanted.data() + d, from.data() + s, n);
        Plan plan{{{address(from, s), address(to, d), n}}, {1, 1, 128, 1}};
        run_plan(plan, 1);
        expect_equal(to, wanted, "an alignment");
      }
    }
  }
  return copies;
}

class RandomPlans {
 public:
  explicit RandomPlans(uint64_t seed) : random_(seed) {}

  void one() {
    const size_t count = 1 + below(400);
    const uint64_t longest = 1 + below(below(8) == 0 ? 20000 : 600);
    Bytes from, to, wanted;
    std::vector<source::Piece> pieces(count);
    size_t end = 0, src_end = 0;
    for (source::Piece& piece : pieces) {
      piece = {src_end + below(32), end + below(32), 1 + below(longest)};
      src_end = piece.src + piece.nbytes;
      end = piece.dst + piece.nbytes;
    }
    from.resize(src_end + 64);
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(random_());
    to.assign(end + 64, kSentinel);
    wanted = to;
    uint64_t most = 0;
    for (source::Piece& piece : pieces) {
      std::memcpy(wanted.data() + piece.dst, from.data() + piece.src, piece.nbytes);
      piece = {address(from, piece.src), address(to, piece.dst), piece.nbytes};
      most = piece.nbytes > most ? piece.nbytes : most;
    }
    const auto part_bytes = static_cast<uint32_t>(umbp::kPartUnit * (1 + below(20)));
    const auto parts = static_cast<uint32_t>((most + part_bytes - 1) / part_bytes + below(3));
    const auto share = static_cast<uint32_t>(1 + below(umbp::kMostShare));
    run_plan({pieces, {static_cast<uint32_t>(count), parts, part_bytes, share}}, 1 + below(3));
    expect_equal(to, wanted, "a random plan");
    bytes_ += end;
  }

  // Pieces of one size at multiples of two powers of two.
  void even_one() {
    const size_t count = 1 + below(300);
    const auto nbytes = static_cast<uint32_t>(1 + below(700));
    const auto src_shift = static_cast<uint32_t>(below(6)), dst_shift = static_cast<uint32_t>(below(6));
    const uint64_t src_pitch = ((nbytes >> src_shift) + 1) << src_shift;
    const uint64_t dst_pitch = ((nbytes >> dst_shift) + 1 + below(3)) << dst_shift;
    Bytes from(count * src_pitch + 64), to(count * dst_pitch + 64, kSentinel), wanted = to;
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(random_());
    const uint64_t src = below(32), dst = below(32), origin = below(count);
    std::vector<source::EvenPiece> pieces;
    for (size_t i = 0; i < count; ++i) {
      const size_t other = (i * 7919) % count;  // twice the same, where the two have a divisor in common
      pieces.push_back({static_cast<int>(other * src_pitch >> src_shift) - static_cast<int>(origin * src_pitch >> src_shift),
                        static_cast<int>(i * dst_pitch >> dst_shift) - static_cast<int>(origin * dst_pitch >> dst_shift)});
      std::memcpy(wanted.data() + dst + i * dst_pitch, from.data() + src + other * src_pitch, nbytes);
    }
    const source::Even even{address(from, src + origin * src_pitch), address(to, dst + origin * dst_pitch), nbytes, src_shift, dst_shift, 0};
    const auto part_bytes = static_cast<uint32_t>(umbp::kPartUnit * (1 + below(4)));
    const source::Cut cut{static_cast<uint32_t>(count), (nbytes + part_bytes - 1) / part_bytes, part_bytes,
                          static_cast<uint32_t>(1 + below(umbp::kMostShare))};
    run_blocks(static_cast<unsigned>(1 + below(3)), UMBP_PLAIN_THREADS,
               [&] { source::umbp_copy_even(pieces.data(), even, cut); });
    expect_equal(to, wanted, "an even plan");
    bytes_ += uint64_t{nbytes} * count;
  }

  // Stretches of pieces of several sizes, as an argument.
  void small_one() {
    source::SmallPlan plan{};
    plan.segments = static_cast<unsigned>(1 + below(UMBP_SMALL_SEGMENTS));
    plan.share = static_cast<unsigned>(1 + below(umbp::kMostShare));
    Bytes from(300000), to(300000, kSentinel), wanted = to;
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(random_());
    uint64_t end = 16;
    unsigned piece = 0;
    for (unsigned s = 0; s < plan.segments; ++s) {
      const auto nbytes = static_cast<unsigned>(1 + below(600));
      const auto part_bytes = static_cast<unsigned>(umbp::kPartUnit * (1 + below(3)));
      const unsigned count = static_cast<unsigned>(1 + below(UMBP_SMALL_PIECES / UMBP_SMALL_SEGMENTS));
      const unsigned parts = (nbytes + part_bytes - 1) / part_bytes;
      const source::Even even{address(from, 1000), address(to, end), nbytes, 1, 0, 0};
      plan.segment[s] = {even, piece, plan.parts, parts, part_bytes};
      plan.parts += count * parts;
      for (unsigned i = 0; i < count; ++i) {
        const uint64_t src = below(100000);
        plan.pieces[piece++] = {static_cast<int>(src) - 500, static_cast<int>(i * nbytes)};
        std::memcpy(wanted.data() + end + i * nbytes, from.data() + 2 * src, nbytes);
      }
      end += count * nbytes + below(5);
    }
    run_blocks(static_cast<unsigned>(1 + below(9)), UMBP_SMALL_THREADS, [&] { source::umbp_copy_small(plan); });
    expect_equal(to, wanted, "a plan that is an argument");
    bytes_ += end;
  }

  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }

  std::mt19937_64 random_;
  uint64_t bytes_ = 0;
};

}  // namespace

int main(int, char** argv) {
  const uint64_t plans = std::strtoull(argv[1], nullptr, 10);
  RandomPlans random(std::strtoull(argv[2], nullptr, 10));
  const uint64_t copies = every_alignment();
  for (uint64_t i = 0; i < plans; ++i) random.one(), random.even_one(), random.small_one();
  std::printf("alignments %llu plans %llu bytes %llu\n", static_cast<unsigned long long>(copies),
              static_cast<unsigned long long>(plans), static_cast<unsigned long long>(random.bytes()));
  return 0;
}
