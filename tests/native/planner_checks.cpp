// Random fragments through RunBuilder: its runs partition the fragments exactly, join all that the
// header says they join, and copy the same bytes. Needs nothing but planner.h, so that it can be compiled
// against a copy with a mistake in it.
//
//   planner_checks BATCHES SEED
//
// Exits with 1 at the first difference; prints what it did as pairs of names and integers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "planner.h"

namespace {

using umbp::Run;
using umbp::RunBuilder;
using Wide = unsigned __int128;

constexpr uint64_t kBufferBytes = 256;
constexpr size_t kMostFragments = 12;

struct Fragment {
  uint64_t src, dst, nbytes;
  uint32_t src_region, dst_region;
};

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("differs: %s\n", what);
  std::exit(1);
}

// By definition, with sums that cannot wrap.
bool above(uint64_t low, uint64_t nbytes, uint64_t high) { return Wide(low) + nbytes == high; }

bool joins(const std::vector<Fragment>& run, const Fragment& next) {
  const Fragment& last = run.back();
  if (last.src_region != next.src_region || last.dst_region != next.dst_region) return false;
  const bool up = above(last.src, last.nbytes, next.src) && above(last.dst, last.nbytes, next.dst);
  const bool down = above(next.src, next.nbytes, last.src) && above(next.dst, next.nbytes, last.dst);
  if (run.size() == 1) return up || down;
  return run[1].src > run[0].src ? up : down;
}

class Checks {
 public:
  // Addresses are positions in two buffers, seen from origins that may lie at either end of the address space.
  Checks(uint64_t src_origin, uint64_t dst_origin, uint64_t seed)
      : src_origin_(src_origin), dst_origin_(dst_origin), random_(seed) {}

  void batch() {
    const std::vector<Fragment> fragments = random_fragments();
    std::vector<Run> runs;
    RunBuilder builder(runs);
    for (const Fragment& f : fragments) builder.add(f.src, f.dst, f.nbytes, f.src_region, f.dst_region);
    builder.finish();
    check_partition(fragments, runs);
    check_bytes(fragments, runs);
    fragments_ += fragments.size();
    runs_ += runs.size();
  }
  uint64_t fragments() const { return fragments_; }
  uint64_t runs() const { return runs_; }

 private:
  uint64_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }

  // Each side goes on above or below the last fragment, or nearly so, or anywhere.
  int64_t position(int64_t last, int64_t last_nbytes, int64_t nbytes, uint64_t way) {
    const int64_t skew = next() % 8 == 0 ? static_cast<int64_t>(next() % 3) - 1 : 0;
    int64_t at = way < 4 ? last + last_nbytes + skew : way < 8 ? last - nbytes + skew : static_cast<int64_t>(next());
    const int64_t room = static_cast<int64_t>(kBufferBytes) - nbytes + 1;
    // Off either end, it comes back in at the other: at the origins above, round the address space.
    return (at % room + room) % room;
  }

  std::vector<Fragment> random_fragments() {
    std::vector<Fragment> fragments;
    int64_t src = next() % 4 == 0 ? kBufferBytes - 4 : next() % kBufferBytes;
    int64_t dst = next() % 4 == 0 ? src : next() % kBufferBytes;
    int64_t last_nbytes = 0;
    uint64_t way = 9;
    uint32_t src_region = next() % 2, dst_region = next() % 2;
    for (size_t count = 1 + next() % kMostFragments; count > 0; --count) {
      const int64_t nbytes = 1 + next() % 6;
      if (next() % 3 == 0) way = next() % 10;
      if (next() % 4 == 0 && fragments.size() > 1) {  // at the other end of a run of two
        const Fragment& before = fragments[fragments.size() - 2];
        src = before.src - src_origin_;
        dst = before.dst - dst_origin_;
        last_nbytes = before.nbytes;
        way = next() % 8;
      }
      const uint64_t dst_way = next() % 8 == 0 ? next() % 10 : way;
      src = position(src, last_nbytes, nbytes, way);
      dst = position(dst, last_nbytes, nbytes, dst_way);
      if (next() % 10 == 0) src_region = next() % 2;
      if (next() % 10 == 0) dst_region = next() % 2;
      // Only where the fragment does not cross the end of the address space.
      const uint64_t from = src_origin_ + src, to = dst_origin_ + dst;
      if (Wide(from) + nbytes > Wide(1) << 64 || Wide(to) + nbytes > Wide(1) << 64) continue;
      fragments.push_back({from, to, static_cast<uint64_t>(nbytes), src_region, dst_region});
      last_nbytes = nbytes;
    }
    return fragments;
  }

  static void check_partition(const std::vector<Fragment>& fragments, const std::vector<Run>& runs) {
    size_t number = 0;
    for (size_t i = 0; i < fragments.size(); ++number) {
      std::vector<Fragment> members{fragments[i]};
      Run want{fragments[i].src, fragments[i].dst, fragments[i].nbytes};
      for (++i; i < fragments.size() && joins(members, fragments[i]); ++i) {
        members.push_back(fragments[i]);
        want.nbytes += fragments[i].nbytes;
        if (fragments[i].src < want.src) want = {fragments[i].src, fragments[i].dst, want.nbytes};
      }
      expect(number < runs.size(), "too few runs");
      const Run& run = runs[number];
      expect(run.src == want.src && run.dst == want.dst && run.nbytes == want.nbytes, "a run");
    }
    expect(number == runs.size(), "too many runs");
  }

  void check_bytes(const std::vector<Fragment>& fragments, const std::vector<Run>& runs) const {
    uint8_t src[kBufferBytes], want[kBufferBytes] = {}, got[kBufferBytes] = {};
    for (uint64_t i = 0; i < kBufferBytes; ++i) src[i] = static_cast<uint8_t>(i * 151 + 7);
    const auto copy = [&](uint8_t* to, uint64_t from_address, uint64_t to_address, uint64_t nbytes) {
      const uint64_t from = from_address - src_origin_, at = to_address - dst_origin_;
      expect(from + nbytes <= kBufferBytes && at + nbytes <= kBufferBytes, "a run leaves the buffers");
      std::memcpy(to + at, src + from, nbytes);
    };
    for (const Fragment& f : fragments) copy(want, f.src, f.dst, f.nbytes);
    for (const Run& run : runs) copy(got, run.src, run.dst, run.nbytes);
    expect(std::memcmp(want, got, kBufferBytes) == 0, "bytes");
  }

  uint64_t src_origin_, dst_origin_;
  uint64_t random_;
  uint64_t fragments_ = 0, runs_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const uint64_t batches = std::strtoull(argv[1], nullptr, 10);
  uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  // The last two lie across the end of the address space: what ends there has no neighbour at 0.
  constexpr uint64_t kOrigins[][2] = {
      {4096, 65536}, {0, 0}, {0 - kBufferBytes, 4096}, {4096, 0 - kBufferBytes / 2}, {0 - kBufferBytes / 2, 4096}};
  uint64_t fragments = 0, runs = 0;
  for (const auto& [src, dst] : kOrigins) {
    Checks checks(src, dst, seed++ * 2 + 1);
    for (uint64_t i = 0; i < batches / 5; ++i) checks.batch();
    fragments += checks.fragments();
    runs += checks.runs();
  }
  std::printf("fragments %lu runs %lu\n", fragments, runs);
  return 0;
}
