// The owner under objects of three sizes that come and go in random order, without copying a byte.
//
//   space_mixture OPERATIONS CAPACITY_BYTES
//
// Puts of new objects, puts of objects that are there (touches) and removes. After a warm-up of two
// capacities put, the fill is measured right after every put that evicted. Prints pairs of names and
// integers, fills in millionths of the capacity.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "owner.h"

namespace {

using namespace umbp;

constexpr uint64_t kSizes[] = {1'123'200, 253'440, 53'568};
constexpr size_t kRemembered = 2048;

class Mixture {
 public:
  explicit Mixture(uint64_t capacity_bytes) : capacity_(capacity_bytes), owner_(config(capacity_bytes)) {}

  void run(uint64_t operations) {
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t dice = next() % 100;
      if (dice < 75 || known_.empty()) put(next_key_++);
      else if (dice < 93) put(known_[next() % known_.size()]);
      else remove(known_[next() % known_.size()]);
    }
  }

  void print(uint64_t operations) {
    const OwnerStats stats = owner_.stats();
    std::printf("operations %lu stored %lu present %lu removed %lu evicted %lu refused %lu measured %lu "
                "lowest_ppm %lu mean_ppm %lu\n",
                operations, stored_, present_, removed_, stats.space.evicted_objects, refused_, measured_,
                lowest_ * 1'000'000 / capacity_, measured_ == 0 ? 0 : sum_ppm_ / measured_);
  }

 private:
  static OwnerConfig config(uint64_t capacity_bytes) {
    OwnerConfig config;
    config.capacity_bytes = capacity_bytes;
    config.entry_count = static_cast<uint32_t>(std::max<uint64_t>(65'536, capacity_bytes / 16'384));
    return config;
  }
  static uint64_t nbytes_of(uint64_t key) { return kSizes[(key * 0x9e3779b97f4a7c15u >> 40) % 3]; }
  static Hash128 hash_of(uint64_t key) { return prf128(Hash128{1, 2}, Hash128{key, key}); }

  uint64_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }

  void put(uint64_t key) {
    PutItem item;
    item.hash = hash_of(key);
    item.key = "key";
    item.nbytes = nbytes_of(key);
    owner_.allocate({&item, 1}, Deadline::after(std::chrono::seconds(1)));
    owner_.commit({&item, 1});
    stored_ += item.status == Status::kOk;
    present_ += item.status == Status::kExists;
    refused_ += !succeeded(item.status);
    if (item.status == Status::kOk) {
      put_bytes_ += item.nbytes;
      remember(key);
    }
    measure();
  }

  void measure() {
    const SpaceTotals space = owner_.stats().space;
    const bool evicted = space.evicted_objects != evicted_before_;
    evicted_before_ = space.evicted_objects;
    if (!evicted || put_bytes_ < 2 * capacity_) return;
    ++measured_;
    lowest_ = std::min(lowest_, space.live_bytes);
    sum_ppm_ += space.live_bytes * 1'000'000 / capacity_;
  }

  void remember(uint64_t key) {
    if (known_.size() < kRemembered) known_.push_back(key);
    else known_[next() % kRemembered] = key;
  }

  void remove(uint64_t key) {
    const Hash128 hash = hash_of(key);
    bool was_there = false;
    owner_.remove({&hash, 1}, &was_there);
    removed_ += was_there;
  }

  uint64_t capacity_;
  Owner owner_;
  std::vector<uint64_t> known_;
  uint64_t random_ = 1, next_key_ = 1;
  uint64_t put_bytes_ = 0, evicted_before_ = 0;
  uint64_t stored_ = 0, present_ = 0, removed_ = 0, refused_ = 0;
  uint64_t measured_ = 0, lowest_ = UINT64_MAX, sum_ppm_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const uint64_t operations = std::strtoull(argv[1], nullptr, 10);
  Mixture mixture(std::strtoull(argv[2], nullptr, 10));
  mixture.run(operations);
  mixture.print(operations);
  return 0;
}
