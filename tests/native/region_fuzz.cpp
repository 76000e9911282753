// Random adds, growths, removes and look-ups of RegionTable, each compared with a plain list.
//
//   region_fuzz STEPS SEED
//
// Exits with 1 at the first difference; prints what it did as pairs of names and integers.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "errors.h"
#include "region_table.h"

namespace {

using namespace umbp;
using Wide = unsigned __int128;

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("differs: %s\n", what);
  std::exit(1);
}

Wide end_of(const Region& region) { return Wide(region.base) + region.nbytes; }

class Fuzz {
 public:
  Fuzz(uint64_t origin, uint64_t seed) : origin_(origin), random_(seed) {}

  void step() {
    const uint64_t dice = next() % 10;
    if (dice < 3) add();
    else if (dice < 5) remove();
    else find();
    if (next() % 16 == 0) check_list();
  }

  uint64_t added = 0, grown = 0, refused = 0, removed = 0, found = 0, missed = 0;

 private:
  uint64_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }
  uint64_t address() { return origin_ + next() % 96; }  // wraps where the origin is near the top

  void add() {
    Region region{.base = address(), .nbytes = next() % 12};
    region.device = next() % 8 == 0 ? 0 : -1;
    const bool grow = next() % 3 == 0;
    const auto same = std::find_if(model_.begin(), model_.end(),
                                   [&](const Region& known) { return known.base == region.base; });
    bool allowed = region.nbytes > 0 && end_of(region) <= Wide(1) << 64;
    for (auto known = model_.begin(); known != model_.end(); ++known)
      if (known != same && known->base < end_of(region) && region.base < end_of(*known)) allowed = false;
    if (same != model_.end())
      allowed = allowed && same->device == region.device &&
                (region.nbytes == same->nbytes || (grow && region.nbytes > same->nbytes));
    try {
      table_.add(region, grow);
      expect(allowed, "a region that had to be refused was added");
    } catch (const RegionError&) {
      expect(!allowed, "a region that had to be added was refused");
      ++refused;
      return;
    }
    if (same != model_.end()) {
      grown += same->nbytes != region.nbytes;
      same->nbytes = region.nbytes;
    } else {
      ++added;
      model_.push_back(region);
    }
  }

  void remove() {
    const uint64_t base = model_.empty() || next() % 4 == 0 ? address() : model_[next() % model_.size()].base;
    const auto gone = std::erase_if(model_, [&](const Region& known) { return known.base == base; });
    try {
      table_.remove(base);
      expect(gone == 1, "an unknown region was removed");
      ++removed;
    } catch (const RegionError&) {
      expect(gone == 0, "a known region was not removed");
    }
  }

  void find() {
    const RegionTable::View view = table_.view();
    const Region* guess = nullptr;
    for (int i = 0; i < 4; ++i) {
      const uint64_t at = address();
      const uint64_t nbytes = next() % 32 == 0 ? UINT64_MAX - next() % 4 : next() % 8;
      const auto holds = [&](const Region& known) {
        return nbytes > 0 && known.base <= at && Wide(at) + nbytes <= end_of(known);
      };
      const auto want = std::find_if(model_.begin(), model_.end(), holds);
      const Region* got = next() % 2 ? view.find(at, nbytes) : view.find(at, nbytes, guess);
      expect((got != nullptr) == (want != model_.end()), "whether a region holds a range");
      if (got == nullptr) {
        ++missed;
        continue;
      }
      ++found;
      expect(got->base == want->base && got->nbytes == want->nbytes, "which region holds a range");
      guess = got;
    }
  }

  void check_list() {
    std::sort(model_.begin(), model_.end(), [](const Region& a, const Region& b) { return a.base < b.base; });
    const std::vector<Region> list = table_.list();
    expect(list.size() == model_.size() && table_.size() == model_.size(), "the number of regions");
    for (size_t i = 0; i < list.size(); ++i) {
      expect(list[i].base == model_[i].base && list[i].nbytes == model_[i].nbytes, "the list of regions");
      expect(list[i].id != 0, "ids are not 0");
    }
  }

  uint64_t origin_;
  uint64_t random_;
  RegionTable table_;
  std::vector<Region> model_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const uint64_t steps = std::strtoull(argv[1], nullptr, 10);
  uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  uint64_t added = 0, grown = 0, refused = 0, removed = 0, found = 0, missed = 0;
  constexpr uint64_t kOrigins[] = {0, 4096, UINT64_MAX - 95, UINT64_MAX - 40};
  for (const uint64_t origin : kOrigins) {
    Fuzz fuzz(origin, seed++ * 2 + 1);
    for (uint64_t i = 0; i < steps / 4; ++i) fuzz.step();
    added += fuzz.added;
    grown += fuzz.grown;
    refused += fuzz.refused;
    removed += fuzz.removed;
    found += fuzz.found;
    missed += fuzz.missed;
  }
  std::printf("added %lu grown %lu refused %lu removed %lu found %lu missed %lu\n", added, grown, refused,
              removed, found, missed);
  return 0;
}
