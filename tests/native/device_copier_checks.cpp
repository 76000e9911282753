// DeviceCopier on a runtime inside the program where nothing happens before somebody waits for it: bytes of random
// plans by every way, order, failures of every call, lanes, cuts, and what the chooser chooses.
//
//   device_copier_checks PLANS SEED
//
// Exits with 1 at the first difference; prints what it did as pairs of names and integers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "device_calibration.h"
#include "device_chooser.h"
#include "device_copier.h"
#include "device_even.h"
#include "device_pieces.h"
#include "queued_device.h"

namespace umbp {
namespace {

using Bytes = std::vector<unsigned char>;
constexpr CopyWay kWays[] = {CopyWay::kAuto, CopyWay::kBatchedDma, CopyWay::kKernel, CopyWay::kBulkKernel,
                             CopyWay::kPerFragmentDma};
constexpr CopyDirection kDirections[] = {CopyDirection::kHostToDevice, CopyDirection::kDeviceToHost,
                                         CopyDirection::kDeviceToDevice};
const std::byte kImage[4] = {};

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("differs: %s\n", what);
  std::exit(1);
}

uint64_t at(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

std::unique_ptr<DeviceCopier> make(const std::shared_ptr<QueuedDevice>& device, unsigned lanes = 8,
                                   std::span<const std::byte> image = kImage) {
  return std::make_unique<DeviceCopier>(device, 0, image, CopyThresholds{}, lanes);
}

struct Scene {
  Bytes from, to, wanted;
  std::vector<Run> runs;
  uint64_t bytes = 0;
};

class Scenes {
 public:
  explicit Scenes(uint64_t seed) : random_(seed) {}
  uint64_t below(uint64_t n) { return random_() % n; }

  Scene one(size_t count, uint64_t longest, uint64_t unit) {
    Scene scene;
    uint64_t src = 64, dst = 64;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t long_one = below(16) == 0 ? longest * 20 : longest;
      const uint64_t nbytes = (1 + below(long_one)) * unit;
      scene.runs.push_back({src, dst, nbytes});
      src += nbytes + below(3) * unit;
      dst += nbytes + below(3) * unit;
      scene.bytes += nbytes;
    }
    scene.from.resize(src + 64);
    for (unsigned char& byte : scene.from) byte = static_cast<unsigned char>(random_());
    scene.to.assign(dst + 64, 0xA5);
    scene.wanted = scene.to;
    for (Run& run : scene.runs) {
      std::memcpy(scene.wanted.data() + run.dst, scene.from.data() + run.src, run.nbytes);
      run.src += at(scene.from.data()), run.dst += at(scene.to.data());
    }
    std::shuffle(scene.runs.begin(), scene.runs.end(), random_);
    return scene;
  }

 private:
  std::mt19937_64 random_;
};

void check_random_plans(uint64_t plans, Scenes& scenes, uint64_t* bytes) {
  for (uint64_t i = 0; i < plans; ++i) {
    auto device = std::make_shared<QueuedDevice>();
    device->most_descriptors = scenes.below(4) == 0 ? 0 : 1 + scenes.below(50);
    device->compute_major = 8 + static_cast<int>(scenes.below(2));
    const auto image = std::span<const std::byte>(kImage, scenes.below(4) == 0 ? 0 : 4);
    const auto copier = make(device, 8, image);
    const size_t count = 1 + scenes.below(scenes.below(8) == 0 ? 6000 : 300);
    Scene scene = scenes.one(count, 1 + scenes.below(300), scenes.below(2) == 0 ? 1 : 16);
    const CopyWay way = kWays[scenes.below(std::size(kWays))];
    auto ticket = copier->submit(scene.runs, count + 5, kDirections[scenes.below(3)], {}, way);
    std::vector<Run>().swap(scene.runs);
    expect(scene.to != scene.wanted, "copied before anybody waited");
    ticket.wait();
    expect(scene.to == scene.wanted, "the bytes of a random plan");
    const DeviceCopyTotals totals = copier->totals();
    expect(totals.fragments == count + 5 && totals.bytes == scene.bytes && totals.descriptors >= count, "the totals");
    expect(totals.by_way[0] == 0, "a way that is counted");
    *bytes += scene.bytes;
  }
}

// Windows of one plan that differ: what is not aligned comes late, and long runs do.
void check_windows(Scenes& scenes) {
  for (const CopyWay way : kWays) {
    auto device = std::make_shared<QueuedDevice>();
    const auto copier = make(device);
    CopyThresholds thresholds = copier->thresholds();
    thresholds.launch_bytes = 1 << 16;
    copier->set_thresholds(thresholds);
    Scene scene = scenes.one(17000, 1, 16);
    const Scene odd = scenes.one(500, 3000, 1);
    scene.runs.insert(scene.runs.end(), odd.runs.begin(), odd.runs.end());
    Scene late = odd;
    for (size_t i = 0; i < odd.runs.size(); ++i) {
      scene.runs[17000 + i].dst += at(late.to.data()) - at(odd.to.data());
    }
    copier->submit(scene.runs, scene.runs.size(), CopyDirection::kDeviceToHost, {}, way).wait();
    expect(scene.to == scene.wanted && late.to == late.wanted, "windows that differ");
    expect(copier->totals().bytes == scene.bytes + odd.bytes, "the bytes of windows");
  }
}

// Pieces of one size, some of them far apart on one side or the other, at every alignment.
void check_even_plans(Scenes& scenes) {
  for (int i = 0; i < 60; ++i) {
    auto device = std::make_shared<QueuedDevice>();
    const auto copier = make(device);
    const size_t count = 441 + scenes.below(3000), nbytes = 1 + scenes.below(100);
    const size_t src_pitch = nbytes + scenes.below(40), dst_pitch = nbytes + scenes.below(40);
    Bytes from(count * src_pitch + 16), to(count * dst_pitch + 16, 0xA5), wanted = to;
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(scenes.below(256));
    const size_t src = scenes.below(16), dst = scenes.below(16), step = 1 + 2 * scenes.below(count);
    std::vector<Run> runs;
    for (size_t k = 0; k < count; ++k) {
      const size_t other = (k * step) % count;
      runs.push_back({at(from.data()) + src + other * src_pitch, at(to.data()) + dst + k * dst_pitch, nbytes});
      std::memcpy(wanted.data() + dst + k * dst_pitch, from.data() + src + other * src_pitch, nbytes);
    }
    copier->submit(runs, count, CopyDirection::kHostToDevice, {}, CopyWay::kKernel).wait();
    expect(to == wanted, "the bytes of an even plan");
    const auto log = device->log();
    expect(std::any_of(log.begin(), log.end(), [](const std::string& call) { return call.starts_with(kEvenKernel); }),
           "an even plan that was not taken as one");
  }
  {  // Runs of a size that the first ones do not tell of.
    auto device = std::make_shared<QueuedDevice>();
    const auto copier = make(device);
    Bytes from(1500 * 32, 0), to(1500 * 32, 0xA5), wanted = to;
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(scenes.below(256));
    std::vector<Run> runs;
    for (size_t k = 0; k < 1500; ++k) {
      const size_t nbytes = k < 1400 ? 24 : 25;
      runs.push_back({at(from.data()) + k * 32, at(to.data()) + (1499 - k) * 32, nbytes});
      std::memcpy(wanted.data() + (1499 - k) * 32, from.data() + k * 32, nbytes);
    }
    copier->submit(runs, runs.size(), CopyDirection::kHostToDevice, {}, CopyWay::kKernel).wait();
    expect(to == wanted, "runs that the first ones do not tell of");
  }
  const auto even = [](std::vector<Run> runs, Reach reach = Reach::kHalf) { return even_of(runs, reach); };
  expect(!even({{0, 0, 8}, {8, 8, 9}}), "two sizes");
  expect(!even({{0, 0, 8}, {(uint64_t{1} << 36) + 1, 8, 8}}), "too far apart for their unit");
  const auto far = even({{64, 3, 8}, {64 + (uint64_t{1} << 40), 5, 8}});
  expect(far && far->src == 64 + (uint64_t{1} << 39) && far->src_shift == 10 && far->dst == 4 && far->dst_shift == 0,
         "far apart");
  expect(even({{5, 9, 8}, {5, 9, 8}})->src_shift == 0, "one address");
  expect(!even({{0, 0, uint64_t{1} << 32}}) && !even({}), "a size that needs more bits, and nothing");
  const auto whole = even({{7, 0, 8}, {7 + UINT32_MAX, 0, 8}}, Reach::kWhole);
  expect(whole && whole->src_shift == 0, "as far apart as pieces can tell");
  EvenCopyPiece ends[2];
  expect(fill_even(std::vector<Run>{{7, 0, 8}, {7 + UINT32_MAX, 0, 8}}, *whole, ends), "both ends of a reach");
  const EvenCopy wide{uint64_t{1} << 40, uint64_t{1} << 40, 8, 4, 0, 0};
  const uint64_t at_src = wide.src, at_dst = wide.dst;
  const auto fits = [&](Run run) {
    EvenCopyPiece piece{};
    const bool fitting = fill_even({&run, 1}, wide, &piece);
    if (fitting) {
      const CopyPiece again = piece_of(wide, piece);
      expect(again.src == run.src && again.dst == run.dst && again.nbytes == run.nbytes, "a piece of an even plan");
    }
    return fitting;
  };
  constexpr uint64_t kReach = uint64_t{1} << 31;
  expect(fits({at_src, at_dst, 8}) && fits({at_src - 16 * kReach, at_dst + kReach - 1, 8}), "as far as it reaches");
  expect(fits({at_src + 16 * (kReach - 1), at_dst - kReach, 8}), "as far as it reaches, the other way");
  expect(!fits({at_src + 16 * kReach, at_dst, 8}) && !fits({at_src, at_dst + kReach, 8}), "one unit further");
  expect(!fits({at_src - 16 * kReach - 16, at_dst, 8}) && !fits({at_src, at_dst - kReach - 1, 8}), "one unit back");
  expect(!fits({at_src + 8, at_dst, 8}) && !fits({at_src, at_dst, 9}), "another alignment, another size");
  expect(!fits({0, at_dst, 8}) && !fits({UINT64_MAX - 15, at_dst, 8}), "the ends of memory");
}

// Plans that are a launch's argument, and plans that are not.
void check_small_plans(Scenes& scenes) {
  for (int i = 0; i < 200; ++i) {
    auto device = std::make_shared<QueuedDevice>();
    const auto copier = make(device);
    const size_t sizes = 1 + scenes.below(10), count = 1 + scenes.below(60);
    Bytes from(40 * 1000 * 16, 0), to(from.size(), 0xA5), wanted = to;
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(scenes.below(256));
    std::vector<Run> runs;
    uint64_t place = 5;
    for (size_t s = 0; s < sizes; ++s) {
      for (size_t k = 0; k < count; ++k) {
        const uint64_t src = scenes.below(from.size() - 900), nbytes = 1 + 97 * s;
        runs.push_back({at(from.data()) + src, at(to.data()) + place, nbytes});
        std::memcpy(wanted.data() + place, from.data() + src, nbytes);
        place += nbytes + scenes.below(3);
      }
    }
    copier->submit(runs, runs.size(), CopyDirection::kHostToDevice, {}, CopyWay::kKernel).wait();
    expect(to == wanted, "the bytes of a small plan");
    const auto log = device->log();
    const bool small =
        std::any_of(log.begin(), log.end(), [](const std::string& call) { return call.starts_with(kSmallKernel); });
    expect(small == (runs.size() <= kSmallPieces && sizes <= kSmallSegments), "what is an argument");
    expect(copier->totals().descriptors == runs.size() && copier->totals().calls == 1, "the totals of a small plan");
  }
}

// Launches of a long plan are about equal, and copy about as much as they may.
void check_launches() {
  expect(window_of(1000, 1000, 100000, 4096) == 100, "a tenth each");
  expect(window_of(1000, 1000, 99999, 4096) == 91, "eleven that are about equal");
  expect(window_of(1000, 1000, 1, 4096) == 1 && window_of(7, 0, 3, 4096) == 3, "at least one run");
  expect(window_of(1000, 1000, UINT64_MAX, 300) == 250, "no more than may be");
  expect(window_of(1000, 1, UINT64_MAX, 4096) == 1000 && window_of(0, 1, 1, 1) == 0, "all at once, and nothing");
  expect(share_of(1, 96) == 1 && share_of(96 * 8 * 5, 96) == 5 && share_of(96 * 64000, 96) == kMostShare, "shares");
  for (const uint64_t parts : {3200u, 39595u, 42326u, 59392u, 8192u, 700u}) {
    const uint64_t share = share_of(parts, 96), each = (parts + 95) / 96;
    expect(((parts + share - 1) / share + 95) / 96 * share <= each + each / 64, "groups that end together");
  }
  expect(share_of(39595, 96) > 10, "much of the plan at a time");
  auto device = std::make_shared<QueuedDevice>();
  const auto copier = make(device);
  CopyThresholds thresholds = copier->thresholds();
  thresholds.launch_bytes = 100 * 64;
  copier->set_thresholds(thresholds);
  Bytes from(64000, 1), to(64000, 0);
  std::vector<Run> many;
  for (uint64_t i = 0; i < 500; ++i) many.push_back({at(from.data()) + i * 128, at(to.data()) + i * 128, 64});
  copier->submit(many, 500, CopyDirection::kHostToDevice, {}, CopyWay::kKernel).wait();
  expect(copier->totals().calls == 5, "the launches of a long plan");
}

// Copies to the host take few blocks as long as there are copies to the device.
void check_turns() {
  auto device = std::make_shared<QueuedDevice>();
  const auto copier = make(device);
  Bytes from(64000, 1), to(64000, 0);
  std::vector<Run> runs;
  for (uint64_t i = 0; i < 1000; ++i) runs.push_back({at(from.data()) + i * 64, at(to.data()) + i * 64, 64 - i % 2});
  const auto blocks_of = [&](CopyDirection direction) {
    device->clear_log();
    copier->submit(runs, 1000, direction, {}, CopyWay::kKernel).wait();
    for (const std::string& call : device->log())
      if (call.starts_with(kPlainKernel)) return call.substr(call.find(' ') + 1);
    return std::string("none");
  };
  const CopyThresholds usual;
  const auto alone = std::to_string(usual.d2h_grids[0]), beside = std::to_string(usual.d2h_grid_beside_h2d);
  expect(blocks_of(CopyDirection::kDeviceToHost) == alone, "blocks of a copy to the host alone");
  expect(blocks_of(CopyDirection::kHostToDevice) == std::to_string(usual.h2d_grids[0]), "blocks of a copy inward");
  expect(blocks_of(CopyDirection::kDeviceToHost) == beside, "blocks of a copy to the host beside others");
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  expect(blocks_of(CopyDirection::kDeviceToHost) == alone, "blocks of a copy to the host afterwards");
}

// More pieces than the first launches take, and one run that is split into more than all others together.
void check_large_plans(Scenes& scenes) {
  for (const CopyWay way : {CopyWay::kKernel, CopyWay::kBulkKernel, CopyWay::kBatchedDma}) {
    auto device = std::make_shared<QueuedDevice>();
    const auto copier = make(device);
    Scene scene = scenes.one(150000, 4, 16);
    copier->submit(scene.runs, scene.runs.size(), CopyDirection::kHostToDevice, {}, way).wait();
    expect(scene.to == scene.wanted, "the bytes of a large plan");
    const DeviceCopyTotals totals = copier->totals();
    expect(totals.calls == (way == CopyWay::kBatchedDma ? 19u : 8u), "the calls of a large plan");
    Bytes from(3 << 20, 7), to(3 << 20, 1);
    std::vector<Run> runs{{at(from.data()), at(to.data()), 2 << 20}};
    for (uint64_t i = 0; i < 200; ++i) {
      const uint64_t offset = (2 << 20) + i * 32;
      runs.push_back({at(from.data()) + offset, at(to.data()) + offset, 32});
    }
    copier->submit(runs, runs.size(), CopyDirection::kHostToDevice, {}, way).wait();
    for (size_t i = 0; i < to.size(); ++i) {
      expect(to[i] == (i < (2 << 20) + 200 * 32 ? 7 : 1), "a long run among short ones");
    }
  }
}

void check_order() {
  auto device = std::make_shared<QueuedDevice>();
  const auto copier = make(device);
  const StreamHandle stream = device->create_stream(0, false);
  const EventHandle event = device->create_event(0);
  for (const bool by_event : {false, true}) {
    Bytes from(64, 1), to(64, 0);
    device->put(stream, [&] { std::fill(from.begin(), from.end(), 2); });
    CopyOrder after{stream, nullptr};
    if (by_event) {
      device->record_event(0, event, stream);
      after = {nullptr, event};
    }
    const std::vector<Run> runs{{at(from.data()), at(to.data()), 64}};
    copier->submit(runs, 1, CopyDirection::kDeviceToHost, after).wait();
    expect(to == Bytes(64, 2), "the caller's work comes first");
  }
  {
    Bytes from(64, 3), to(64, 0);
    const std::vector<Run> runs{{at(from.data()), at(to.data()), 64}};
    { const auto ticket = copier->submit(runs, 1, CopyDirection::kDeviceToHost, {}); }
    expect(to == Bytes(64, 3), "a ticket waits when it goes");
    DeviceCopier::Ticket kept;
    std::fill(from.begin(), from.end(), 4);
    {
      auto moved = copier->submit(runs, 1, CopyDirection::kDeviceToHost, {});
      kept = std::move(moved);
    }
    expect(to == Bytes(64, 3), "a ticket that was moved waits later");
    kept.wait();
    kept.wait();
    expect(to == Bytes(64, 4), "a ticket that was moved");
  }
  // An end that asking does not bring: the lane blocks.
  device->questions = UINT32_MAX;
  Bytes from(64, 5), to(64, 0);
  copier->submit(std::vector<Run>{{at(from.data()), at(to.data()), 64}}, 1, CopyDirection::kDeviceToHost, {}).wait();
  expect(to == Bytes(64, 5), "a copy that takes longer than expected");
  // One that should take so long that nobody asks for it.
  Bytes much(64 << 20, 6), room(64 << 20, 0);
  const std::vector<Run> whole{{at(much.data()), at(room.data()), 64 << 20}};
  copier->submit(whole, 1, CopyDirection::kDeviceToHost, {}).wait();
  expect(room == much, "a long copy");
  device->destroy_event(0, event);
  device->destroy_stream(0, stream);
}

// Every call fails once: the copy throws or is right, the only lane is not lost, and nothing stays behind.
uint64_t check_failures(Scenes& scenes) {
  uint64_t failures = 0;
  for (const CopyWay way : {CopyWay::kBatchedDma, CopyWay::kKernel, CopyWay::kBulkKernel, CopyWay::kPerFragmentDma}) {
    for (int call = 0;; ++call) {
      auto device = std::make_shared<QueuedDevice>();
      device->most_descriptors = 100;
      device->fails_at = call;
      bool failed = false;
      Scene scene = scenes.one(250, 20, 16);
      try {
        const auto copier = make(device, 1);
        try {
          copier->submit(scene.runs, 250, CopyDirection::kHostToDevice, {}, way).wait();
          expect(scene.to == scene.wanted, "bytes where no call failed");
        } catch (const DeviceError&) {
          failed = true;
          scene.runs.pop_back();
          copier->submit(scene.runs, 249, CopyDirection::kHostToDevice, {}, way).wait();
        }
      } catch (const DeviceError&) {
        failed = true;  // the constructor
      }
      expect(device->alive() == 0, "something stays behind after a failure");
      if (device->fails_at >= 0) break;  // fewer calls than that
      if (failed) ++failures;
    }
  }
  return failures;
}

void check_threads() {
  auto device = std::make_shared<QueuedDevice>();
  const auto copier = make(device, 3);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Scenes scenes(t);
      for (int i = 0; i < 40; ++i) {
        Scene scene = scenes.one(1 + scenes.below(300), 50, 16);
        const CopyWay way = kWays[scenes.below(std::size(kWays))];
        copier->submit(scene.runs, 1, CopyDirection::kHostToDevice, {}, way).wait();
        expect(scene.to == scene.wanted, "bytes of one thread among others");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(copier->totals().fragments == 240, "copies of all threads");
  const auto log = device->log();
  expect(std::count(log.begin(), log.end(), "create_stream") <= 2 + 3, "more lanes than allowed");
}

void check_chooser() {
  CopyThresholds thresholds;
  thresholds.dma_from_bytes = 100000;
  thresholds.h2d_grids = {11, 12, 13, 14}, thresholds.d2h_grids = {21, 22, 23, 24};
  thresholds.bulk_h2d_grids = {1, 2, 3, 4}, thresholds.bulk_d2h_grids = {5, 6, 7, 8};
  thresholds.bulk[1] = true;
  const CopyAbilities all{true, true, true};
  const auto choose = [&](uint64_t mean, CopyDirection direction, CopyWay way = CopyWay::kAuto,
                          CopyAbilities abilities = {true, true, true}, bool aligned = true) {
    return choose_way({1000, mean * 1000, mean, aligned}, direction, thresholds, abilities, way);
  };
  const auto is = [](CopyChoice choice, CopyWay way, unsigned grid) { return choice.way == way && choice.grid == grid; };
  const auto in = CopyDirection::kHostToDevice, out = CopyDirection::kDeviceToHost,
             within = CopyDirection::kDeviceToDevice;
  expect(is(choose(4095, in), CopyWay::kKernel, 11), "below the first step");
  expect(is(choose(4096, in), CopyWay::kBulkKernel, 2), "the first step");
  expect(is(choose(4096, in, CopyWay::kAuto, all, false), CopyWay::kKernel, 12), "not aligned");
  expect(is(choose(4096, in, CopyWay::kAuto, {true, false, true}), CopyWay::kKernel, 12), "no bulk copies");
  expect(is(choose(16384, out), CopyWay::kKernel, 23), "outward");
  expect(is(choose(99999, out), CopyWay::kKernel, 24), "just below DMA");
  expect(is(choose(100000, out), CopyWay::kBatchedDma, 0), "DMA");
  expect(is(choose(100000, within), CopyWay::kKernel, 14), "no DMA within a device");
  expect(is(choose(100, in, CopyWay::kAuto, {false, false, true}), CopyWay::kBatchedDma, 0), "no kernels");
  expect(is(choose(100, in, CopyWay::kAuto, {false, false, false}), CopyWay::kPerFragmentDma, 0), "nothing but DMA");
  expect(is(choose(100, within, CopyWay::kBatchedDma), CopyWay::kPerFragmentDma, 0), "asked for within a device");
  expect(is(choose(100, in, CopyWay::kBulkKernel), CopyWay::kBulkKernel, 1), "asked for");
  expect(is(choose(4096, out), CopyWay::kBulkKernel, 6), "bulk copies outward");
  expect(is(choose_way({440, 440 * 4096, 4096, true}, in, thresholds, all, CopyWay::kAuto), CopyWay::kKernel, 12),
         "a plan in the launch");
  expect(is(choose_way({441, 441 * 4096, 4096, true}, in, thresholds, all, CopyWay::kAuto), CopyWay::kBulkKernel, 2),
         "a plan in memory");
  expect(choose(100, in).most == 22, "a launch that is over soon");
  thresholds.grid_cap = 5;
  expect(choose(100, in).most == 5, "a launch that is over soon, capped");
  expect(is(choose(100, in), CopyWay::kKernel, 5), "capped");
}

void check_calibration() {
  const GridTime times[] = {{8, 200}, {16, 130}, {32, 107}, {64, 100}, {96, 101}};
  expect(fewest_blocks(times).grid == 32, "the fewest blocks that are hardly slower");
  const GridTime noisy[] = {{64, 100}, {32, 100}, {16, 108.1}};
  expect(fewest_blocks(noisy).grid == 32, "the fewest in any order");
  auto device = std::make_shared<QueuedDevice>();
  {
    const auto copier = make(device);
    CopyThresholds before = copier->thresholds();
    before.grid_cap = 7;
    copier->set_thresholds(before);
    const CopyThresholds made = calibrate(*copier);
    expect(copier->totals().calls == 0, "measuring does not count");
    expect(made.grid_cap == 7 && copier->thresholds().grid_cap == 7, "the user's cap is kept");
    expect(copier->thresholds().h2d_grids == before.h2d_grids, "the copier's own thresholds are kept");
    for (const auto* grids : {&made.h2d_grids, &made.d2h_grids, &made.bulk_h2d_grids, &made.bulk_d2h_grids}) {
      for (const unsigned grid : *grids) expect(grid > 0, "a grid was measured");
    }
    for (size_t i = 0; i < CopyThresholds::kClasses; ++i) {
      expect(made.h2d_grids[i] >= CopyThresholds{}.h2d_grids[i], "measuring adds blocks, and takes none away");
    }
  }
  {
    const auto copier = make(device, 1, {});
    device->clear_log();
    expect(calibrate(*copier).h2d_grids == CopyThresholds{}.h2d_grids && device->log().empty(), "no kernels");
  }
  expect(device->alive() == 0, "the memory of a calibration");
}

void check_cuts(Scenes& scenes) {
  for (int i = 0; i < 20000; ++i) {
    const uint64_t runs = 1 + scenes.below(1000000);
    const uint64_t longest = scenes.below(2) == 0 ? 1 + scenes.below(100000) : UINT64_MAX >> scenes.below(40);
    const uint64_t bytes = longest + (runs - 1) * std::min<uint64_t>(longest, 1 + scenes.below(5000));
    if (bytes < longest) continue;
    const uint32_t largest = scenes.below(2) == 0 ? kPlainPartBytes : kBulkPartBytes;
    const PlanCut made = cut_plan({runs, bytes, longest, true}, largest);
    const PlanCut close = cut_closely({runs, bytes, longest, true}, largest);
    expect(close.cut.parts == 1 || close.longest_piece >= longest, "parts that may be empty");
    for (const PlanCut& each : {made, close}) {
      expect(each.cut.part_bytes <= largest && each.cut.part_bytes % kPartUnit == 0 && each.cut.part_bytes > 0,
             "the bytes of a part");
      expect(uint64_t{each.cut.parts} * each.cut.part_bytes == each.longest_piece, "the parts of a piece");
    }
    expect(uint64_t{made.cut.parts} * 65536 <= kMaxParts + (uint64_t{1} << 20), "the parts of a plan");
    if (runs == 1 && longest < 1000000) expect(made.longest_piece >= longest, "a single run is not split");
  }
}

}  // namespace
}  // namespace umbp

int main(int, char** argv) {
  const auto plans = std::strtoull(argv[1], nullptr, 10);
  umbp::Scenes scenes(std::strtoull(argv[2], nullptr, 10));
  uint64_t bytes = 0;
  umbp::check_random_plans(plans, scenes, &bytes);
  umbp::check_large_plans(scenes);
  umbp::check_windows(scenes);
  umbp::check_even_plans(scenes);
  umbp::check_small_plans(scenes);
  umbp::check_launches();
  umbp::check_turns();
  umbp::check_order();
  const uint64_t failures = umbp::check_failures(scenes);
  umbp::check_threads();
  umbp::check_chooser();
  umbp::check_calibration();
  umbp::check_cuts(scenes);
  std::printf("plans %llu bytes %llu failures %llu\n", plans, static_cast<unsigned long long>(bytes),
              static_cast<unsigned long long>(failures));
  return 0;
}
