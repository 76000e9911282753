#include "staged_copy.h"

#include <algorithm>
#include <vector>

namespace umbp {
namespace {

constexpr uint64_t kAlign = 16;  // as the kernels like it: both sides at the same place within 16 bytes

// One half of a slab: pieces of runs, until it is full.
class Half {
 public:
  void place_at(const Slab& slab, uint64_t begin, uint64_t nbytes) {
    memory_ = reinterpret_cast<uint64_t>(slab.memory) + begin;
    alias_ = slab.alias + begin;
    nbytes_ = nbytes;
  }

  void empty() {
    used_ = 0;
    host_runs.clear();
    device_runs.clear();
  }

  // Takes as much of the run from `done` on as there is room for; returns how much.
  template <CopyDirection direction>
  uint64_t take(const Run& run, uint64_t done) {
    const uint64_t on_device =
        (direction == CopyDirection::kHostToDevice ? run.dst : run.src) + done;
    const uint64_t place = used_ + ((on_device - (alias_ + used_)) % kAlign);
    if (place >= nbytes_) return 0;
    const uint64_t nbytes = std::min(run.nbytes - done, nbytes_ - place);
    if constexpr (direction == CopyDirection::kHostToDevice) {
      host_runs.push_back({run.src + done, memory_ + place, nbytes});
      device_runs.push_back({alias_ + place, on_device, nbytes});
    } else {
      device_runs.push_back({on_device, alias_ + place, nbytes});
      host_runs.push_back({memory_ + place, run.dst + done, nbytes});
    }
    used_ = place + nbytes;
    return nbytes;
  }

  std::vector<Run> host_runs;
  std::vector<Run> device_runs;

 private:
  uint64_t memory_ = 0;
  uint64_t alias_ = 0;
  uint64_t nbytes_ = 0;
  uint64_t used_ = 0;
};

// Cuts runs into halves' fills, in order.
template <CopyDirection direction>
class Cutter {
 public:
  explicit Cutter(std::span<const Run> runs) : runs_(runs) {}
  bool through() const { return next_ == runs_.size(); }
  void fill(Half& half) {
    half.empty();
    while (!through()) {
      const uint64_t taken = half.take<direction>(runs_[next_], done_);
      if (taken == 0) return;
      done_ += taken;
      if (done_ < runs_[next_].nbytes) return;
      done_ = 0;
      ++next_;
    }
  }

 private:
  std::span<const Run> runs_;
  size_t next_ = 0;
  uint64_t done_ = 0;
};

struct Halves {
  explicit Halves(const Slab& slab) {
    const uint64_t each = slab.nbytes / 2 / kAlign * kAlign;
    halves[0].place_at(slab, 0, each);
    halves[1].place_at(slab, each, each);
  }
  Half halves[2];
};

}  // namespace

// A call never asks for a lane while it has one: calls that all did would wait for each other for ever.
// So one half is under way at a time, and the host works on the other meanwhile.
void stage_to_device(std::span<const Run> runs, const CopyOrder& after, DeviceCopier& copier,
                     CopyPool& host, const Slab& slab) {
  Halves both(slab);
  Cutter<CopyDirection::kHostToDevice> cutter(runs);
  DeviceCopier::Ticket ticket;
  for (size_t turn = 0; !cutter.through(); ++turn) {
    Half& half = both.halves[turn % 2];
    cutter.fill(half);
    host.copy(half.host_runs.data(), half.host_runs.size());
    ticket.wait();
    ticket = copier.submit(half.device_runs, half.device_runs.size(),
                           CopyDirection::kHostToDevice, after);
  }
  ticket.wait();
}

void stage_to_host(std::span<const Run> runs, const CopyOrder& after, DeviceCopier& copier,
                   CopyPool& host, const Slab& slab) {
  Halves both(slab);
  Cutter<CopyDirection::kDeviceToHost> cutter(runs);
  DeviceCopier::Ticket ticket;
  const auto empty = [&](Half& half) {
    host.copy(half.host_runs.data(), half.host_runs.size());
    half.empty();
  };
  size_t turn = 0;
  for (; !cutter.through(); ++turn) {
    Half& half = both.halves[turn % 2];
    cutter.fill(half);
    ticket.wait();
    ticket = copier.submit(half.device_runs, half.device_runs.size(),
                           CopyDirection::kDeviceToHost, after);
    empty(both.halves[(turn + 1) % 2]);
  }
  ticket.wait();
  empty(both.halves[(turn + 1) % 2]);
}

}  // namespace umbp
