// Many callers on one CopyPool and on one RegionTable, to be run under ThreadSanitizer (from
// core/): g++ -std=c++20 -O1 -g -fsanitize=thread -pthread -I.
// ../../../tests/native/copy_pool_threads.cpp
//     copy_*.cpp host_copy.cpp region_table.cpp work_split.cpp
// Exits with 0 if every byte was right. One argument: rounds a caller (12).
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "copy_pool.h"
#include "region_table.h"

namespace {

constexpr unsigned kCallers = 4;
int rounds = 12;
constexpr size_t kFragmentBytes = 37'440;
constexpr size_t kFragments = 48;

uint8_t pattern(size_t position, int round, unsigned caller) {
  return static_cast<uint8_t>(position * 2654435761u >> 13 ^ round * 31 ^ caller * 7);
}

struct Buffers {
  std::vector<uint8_t> src = std::vector<uint8_t>(kFragments * kFragmentBytes);
  std::vector<uint8_t> dst = std::vector<uint8_t>(kFragments * kFragmentBytes);
  std::vector<umbp::Run> runs;

  Buffers() {
    for (size_t i = 0; i < kFragments; ++i) {
      const size_t j = (i * 7) % kFragments;
      runs.push_back({reinterpret_cast<uint64_t>(&src[i * kFragmentBytes]),
                      reinterpret_cast<uint64_t>(&dst[j * kFragmentBytes]), kFragmentBytes});
    }
  }

  void fill(int round, unsigned caller) {
    for (size_t k = 0; k < src.size(); ++k) src[k] = pattern(k, round, caller);
  }

  size_t wrong_bytes() const {
    size_t wrong = 0;
    for (size_t i = 0; i < kFragments; ++i) {
      const size_t j = (i * 7) % kFragments;
      for (size_t k = 0; k < kFragmentBytes; ++k) {
        wrong += src[i * kFragmentBytes + k] != dst[j * kFragmentBytes + k];
      }
    }
    return wrong;
  }
};

size_t call_repeatedly(umbp::CopyPool& pool, unsigned caller) {
  Buffers buffers;
  size_t wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    buffers.fill(round, caller);
    pool.copy(buffers.runs.data(), buffers.runs.size());
    wrong += buffers.wrong_bytes();
  }
  return wrong;
}

size_t copy_at_once(uint64_t nt_min_bytes, unsigned threads) {
  umbp::CopyPool pool(umbp::HostCopier(nt_min_bytes), threads);
  std::atomic<size_t> wrong{0};
  std::vector<std::thread> callers;
  for (unsigned i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] { wrong += call_repeatedly(pool, i); });
  }
  for (std::thread& caller : callers) caller.join();
  return wrong;
}

void look_up_repeatedly(const umbp::RegionTable& table, std::atomic<size_t>& missing) {
  for (int i = 0; i < 20'000; ++i) {
    const umbp::RegionTable::View view = table.view();
    missing += view.find(4096, 4096) == nullptr;
    view.find(65536, 1);
  }
}

size_t look_up_at_once() {
  umbp::RegionTable table;
  table.add({.base = 4096, .nbytes = 4096});
  std::atomic<size_t> missing{0};
  std::vector<std::thread> readers;
  for (unsigned i = 0; i < kCallers; ++i) {
    readers.emplace_back([&] { look_up_repeatedly(table, missing); });
  }
  for (int i = 0; i < 2'000; ++i) {
    table.add({.base = 65536, .nbytes = 4096});
    table.remove(65536);
  }
  for (std::thread& reader : readers) reader.join();
  return missing;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) rounds = std::atoi(argv[1]);
  size_t faults = look_up_at_once();
  // By memcpy too: ThreadSanitizer sees its accesses, and not non-temporal stores.
  for (unsigned threads = 1; threads <= 3; ++threads) {
    faults += copy_at_once(1024, threads) + copy_at_once(UINT64_MAX, threads);
  }
  std::printf("%zu faults\n", faults);
  return faults == 0 ? 0 : 1;
}
