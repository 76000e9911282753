#include "work_split.h"

#include <algorithm>
#include <utility>

#include "copy_kernels.h"

namespace umbp {
namespace {

// About 2 us of copying: what a thread may have to wait for another one at the end.
constexpr uint64_t kSmallestPartBytes = 16 << 10;

class Splitter {
 public:
  Splitter(uint64_t total_bytes, unsigned threads, size_t runs)
      : left_bytes_(total_bytes), threads_(threads) {
    parts_.pieces.reserve(runs + 16);
    parts_.starts.push_back(0);
    open_part();
  }

  void add(Run run) {
    while (run.nbytes > room_bytes_ + kSmallestPartBytes / 2) {
      const uint64_t nbytes = cut_bytes(run);
      put({run.src, run.dst, nbytes});
      run = {run.src + nbytes, run.dst + nbytes, run.nbytes - nbytes};
    }
    put(run);
  }

  WorkParts finish() {
    if (parts_.starts.back() != parts_.pieces.size()) parts_.starts.push_back(parts_.pieces.size());
    return std::move(parts_);
  }

 private:
  // At least room_bytes_, up to the next destination line.
  uint64_t cut_bytes(const Run& run) const {
    return room_bytes_ + (-(run.dst + room_bytes_)) % kLineBytes;
  }

  void put(const Run& piece) {
    parts_.pieces.push_back(piece);
    left_bytes_ -= piece.nbytes;
    room_bytes_ -= std::min(room_bytes_, piece.nbytes);
    if (room_bytes_ == 0) {
      parts_.starts.push_back(parts_.pieces.size());
      open_part();
    }
  }

  void open_part() { room_bytes_ = std::max(kSmallestPartBytes, left_bytes_ / (2 * threads_)); }

  WorkParts parts_;
  uint64_t left_bytes_;
  uint64_t room_bytes_ = 0;
  unsigned threads_;
};

}  // namespace

WorkParts split_work(const Run* runs, size_t n, uint64_t total_bytes, unsigned threads) {
  Splitter splitter(total_bytes, threads, n);
  for (size_t i = 0; i < n; ++i) splitter.add(runs[i]);
  return splitter.finish();
}

}  // namespace umbp
