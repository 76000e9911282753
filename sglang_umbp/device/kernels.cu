// Copies the pieces of a plan between pinned host memory and device memory. One source for NVRTC and hipRTC; what a
// plan is, and what launches must keep to, stands in native/core/device_kernels.h. Reads no other file.

#if defined(__HIP__) || defined(__HIPCC_RTC__)
#define UMBP_HIP 1
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define UMBP_CUDA 1
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Piece {
  u64 src;
  u64 dst;
  u64 nbytes;
};

struct EvenPiece {
  int src;
  int dst;
};

struct Even {
  u64 src;
  u64 dst;
  u32 nbytes;
  u32 src_shift;
  u32 dst_shift;
  u32 reserved;
};

struct Cut {
  u32 count;
  u32 parts;
  u32 part_bytes;
  u32 share;
};

struct Segment {
  Even even;
  u32 first_piece;
  u32 first_part;
  u32 parts;
  u32 part_bytes;
};

#define UMBP_SMALL_SEGMENTS 8
#define UMBP_SMALL_PIECES 440
struct SmallPlan {
  u32 segments;
  u32 parts;
  u32 share;
  u32 reserved;
  Segment segment[UMBP_SMALL_SEGMENTS];
  EvenPiece pieces[UMBP_SMALL_PIECES];
};

struct Part {
  u64 src;
  u64 dst;
  u32 nbytes;
};

#define UMBP_PLAIN_THREADS 512
#define UMBP_SMALL_THREADS 128
#ifndef UMBP_UNROLL
#define UMBP_UNROLL 4  // loads of one thread that are in flight together
#endif
#define UMBP_GROUP 32  // threads that copy one part

#if defined(UMBP_CUDA) || defined(UMBP_HIP)
#define UMBP_UNROLLED _Pragma("unroll")
#else
#define UMBP_UNROLLED
#endif

#if defined(UMBP_CUDA)
#define UMBP_CONSTANT_PARAMETER __grid_constant__
typedef uint4 Word16;
template <class Word>
__device__ __forceinline__ Word load_once(const Word* from) {
  return __ldcs(from);
}
template <class Word>
__device__ __forceinline__ void store_once(Word* to, Word word) {
  __stcs(to, word);
}
template <class Value>
__device__ __forceinline__ Value of_lane(Value value, u32 lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
#else
#define UMBP_CONSTANT_PARAMETER
typedef u32 Word16 __attribute__((vector_size(16)));
template <class Word>
__device__ __forceinline__ Word load_once(const Word* from) {
  return __builtin_nontemporal_load(from);
}
template <class Word>
__device__ __forceinline__ void store_once(Word* to, Word word) {
  __builtin_nontemporal_store(word, to);
}
#endif
#if defined(UMBP_HIP)
template <class Value>
__device__ __forceinline__ Value of_lane(Value value, u32 lane) {
  return __shfl(value, lane, UMBP_GROUP);
}
#endif

// Part k of a piece; 0 bytes where the piece does not reach so far.
__device__ __forceinline__ Part part_of(const Piece& piece, u32 k, u32 part_bytes) {
  const u64 offset = static_cast<u64>(k) * part_bytes;
  if (offset >= piece.nbytes) return {piece.src, piece.dst, 0};
  const u64 rest = piece.nbytes - offset;
  return {piece.src + offset, piece.dst + offset, rest < part_bytes ? static_cast<u32>(rest) : part_bytes};
}

// Both addresses are multiples of sizeof(Word).
template <class Word>
__device__ __forceinline__ void copy_words(u64 dst, u64 src, u32 words, u32 lane) {
  Word* const to = reinterpret_cast<Word*>(dst);
  const Word* const from = reinterpret_cast<const Word*>(src);
  for (u32 first = lane; first < words; first += UMBP_GROUP * UMBP_UNROLL) {
    Word held[UMBP_UNROLL];
    UMBP_UNROLLED
    for (u32 i = 0; i < UMBP_UNROLL; ++i) {
      if (first + i * UMBP_GROUP < words) held[i] = load_once(from + first + i * UMBP_GROUP);
    }
    UMBP_UNROLLED
    for (u32 i = 0; i < UMBP_UNROLL; ++i) {
      if (first + i * UMBP_GROUP < words) store_once(to + first + i * UMBP_GROUP, held[i]);
    }
  }
}

// The bytes up to the first multiple of sizeof(Word), whole words, the bytes that are left.
template <class Word>
__device__ __forceinline__ void copy_with_edges(const Part& part, u32 lane) {
  const u32 below = static_cast<u32>(0 - part.dst) & (sizeof(Word) - 1);
  const u32 head = below < part.nbytes ? below : part.nbytes;
  const u32 words = (part.nbytes - head) / sizeof(Word);
  const u32 body = head + words * sizeof(Word);
  copy_words<u8>(part.dst, part.src, head, lane);
  copy_words<Word>(part.dst + head, part.src + head, words, lane);
  copy_words<u8>(part.dst + body, part.src + body, part.nbytes - body, lane);
}

// With the widest words that are aligned on both sides at once.
__device__ __forceinline__ void copy_part(const Part& part, u32 lane) {
  const u32 all = static_cast<u32>(part.dst | part.src) | part.nbytes;
  const u32 apart = static_cast<u32>(part.dst - part.src);
  if ((all & 15) == 0) {
    copy_words<Word16>(part.dst, part.src, part.nbytes / 16, lane);
  } else if ((apart & 15) == 0) {
    copy_with_edges<Word16>(part, lane);
  } else if ((apart & 7) == 0) {
    copy_with_edges<u64>(part, lane);
  } else if ((apart & 3) == 0) {
    copy_with_edges<u32>(part, lane);
  } else if ((apart & 1) == 0) {
    copy_with_edges<u16>(part, lane);
  } else {
    copy_words<u8>(part.dst, part.src, part.nbytes, lane);
  }
}

__device__ __forceinline__ Piece piece_of(const Even& even, const EvenPiece& at) {
  return {even.src + (static_cast<u64>(static_cast<long long>(at.src)) << even.src_shift),
          even.dst + (static_cast<u64>(static_cast<long long>(at.dst)) << even.dst_shift), even.nbytes};
}

// Plans: how many parts, how many of them a group takes at a time, and which is part number w.
struct ListedPlan {
  const Piece* pieces;
  Cut cut;
  __device__ __forceinline__ u32 total() const { return cut.count * cut.parts; }
  __device__ __forceinline__ u32 share() const { return cut.share; }
  __device__ __forceinline__ Part part(u32 w) const {
    return part_of(pieces[w / cut.parts], w % cut.parts, cut.part_bytes);
  }
};

struct EvenPlan {
  const EvenPiece* pieces;
  Even even;
  Cut cut;
  __device__ __forceinline__ u32 total() const { return cut.count * cut.parts; }
  __device__ __forceinline__ u32 share() const { return cut.share; }
  __device__ __forceinline__ Part part(u32 w) const {
    return part_of(piece_of(even, pieces[w / cut.parts]), w % cut.parts, cut.part_bytes);
  }
};

struct ArgumentPlan {
  const SmallPlan* plan;
  __device__ __forceinline__ u32 total() const { return plan->parts; }
  __device__ __forceinline__ u32 share() const { return plan->share; }
  __device__ __forceinline__ Part part(u32 w) const {
    u32 s = 0;
    while (s + 1 < plan->segments && plan->segment[s + 1].first_part <= w) ++s;
    const Segment& segment = plan->segment[s];
    const u32 of_segment = w - segment.first_part;
    const EvenPiece& at = plan->pieces[segment.first_piece + of_segment / segment.parts];
    return part_of(piece_of(segment.even, at), of_segment % segment.parts, segment.part_bytes);
  }
};

// The parts that a group has taken, one a thread: the threads read their pieces all at once, which for a plan in host
// memory is one way there instead of many.
#if defined(UMBP_CUDA) || defined(UMBP_HIP)
template <class Plan>
class Share {
 public:
  __device__ __forceinline__ Share(const Plan& plan, u32 first, u32 lane)
      : held_(lane < plan.share() && first + lane < plan.total() ? plan.part(first + lane) : Part{0, 0, 0}) {}
  __device__ __forceinline__ Part part(u32 i) const {
    return {of_lane(held_.src, i), of_lane(held_.dst, i), of_lane(held_.nbytes, i)};
  }

 private:
  Part held_;
};
#else  // threads run one after the other: nothing can be handed from one to another
template <class Plan>
class Share {
 public:
  Share(const Plan& plan, u32 first, u32) : plan_(&plan), first_(first) {}
  Part part(u32 i) const { return plan_->part(first_ + i); }

 private:
  const Plan* plan_;
  u32 first_;
};
#endif

// Groups of threads take shares in turn; a group asks for its next share before it copies the one that it has.
template <u32 threads, class Plan>
__device__ __forceinline__ void copy_plan(const Plan& plan) {
  const u32 groups_a_block = threads / UMBP_GROUP;
  const u32 lane = threadIdx.x % UMBP_GROUP;
  const u32 stride = gridDim.x * groups_a_block * plan.share();
  const u32 total = plan.total();
  u32 first = (blockIdx.x * groups_a_block + threadIdx.x / UMBP_GROUP) * plan.share();
  Share<Plan> next(plan, first, lane);
  while (first < total) {
    const Share<Plan> share = next;
    const u32 parts = total - first < plan.share() ? total - first : plan.share();
    first += stride;
    next = Share<Plan>(plan, first, lane);
    for (u32 i = 0; i < parts; ++i) copy_part(share.part(i), lane);
  }
}

extern "C" __global__ void __launch_bounds__(UMBP_SMALL_THREADS)
    umbp_copy_small(const UMBP_CONSTANT_PARAMETER SmallPlan plan) {
  copy_plan<UMBP_SMALL_THREADS>(ArgumentPlan{&plan});
}

extern "C" __global__ void __launch_bounds__(UMBP_PLAIN_THREADS)
    umbp_copy_plain(const Piece* pieces, const Cut cut) {
  copy_plan<UMBP_PLAIN_THREADS>(ListedPlan{pieces, cut});
}

extern "C" __global__ void __launch_bounds__(UMBP_PLAIN_THREADS)
    umbp_copy_even(const EvenPiece* pieces, const Even even, const Cut cut) {
  copy_plan<UMBP_PLAIN_THREADS>(EvenPlan{pieces, even, cut});
}

#if defined(UMBP_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Bulk asynchronous copies (TMA without tensors): memory -> shared memory -> memory, without registers. Every thread
// works alone on parts of its own, each in turn in one of its stages: while a part is written out of its stage, the
// next ones are on their way into the others.
#define UMBP_BULK_THREADS 32
#ifndef UMBP_BULK_STAGES
#define UMBP_BULK_STAGES 2
#endif
#ifndef UMBP_BULK_PART
#define UMBP_BULK_PART 3456
#endif

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void expect_one(u64* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void begin_load(u8* stage, u64* barrier, u64 src, u32 nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(nbytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(stage)),
      "l"(src), "r"(nbytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void wait_for_load(u64* barrier, u32 parity) {
  u32 done = 0;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}

__device__ __forceinline__ void begin_store(u64 dst, const u8* stage, u32 nbytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(shared_address(stage)),
               "r"(nbytes)
               : "memory");
}

struct Destination {
  u64 dst;
  u32 nbytes;
  u32 reserved;
};

extern "C" __global__ void __launch_bounds__(UMBP_BULK_THREADS)
    umbp_copy_bulk(const Piece* pieces, const Cut cut) {
  extern __shared__ __align__(128) u8 stages[];
  __shared__ u64 barriers[UMBP_BULK_STAGES][UMBP_BULK_THREADS];
  __shared__ Destination destinations[UMBP_BULK_STAGES][UMBP_BULK_THREADS];
  const u32 lane = threadIdx.x;
  for (u32 s = 0; s < UMBP_BULK_STAGES; ++s) expect_one(&barriers[s][lane]);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");

  const u32 total = cut.count * cut.parts;
  const u32 stride = gridDim.x * UMBP_BULK_THREADS;
  u32 ahead = blockIdx.x * UMBP_BULK_THREADS + lane;  // the next part to load
  Piece piece = {0, 0, 0};
  if (ahead < total) piece = pieces[ahead / cut.parts];
  u32 loading = 0;  // stage of the next part to load
  u32 loaded = 0;   // parts that were begun and not yet stored
  const auto load_next = [&] {
    if (ahead >= total) return;
    const Part part = part_of(piece, ahead % cut.parts, cut.part_bytes);
    destinations[loading][lane] = {part.dst, part.nbytes, 0};
    if (part.nbytes != 0) {
      begin_load(stages + (loading * UMBP_BULK_THREADS + lane) * UMBP_BULK_PART, &barriers[loading][lane], part.src,
                 part.nbytes);
    }
    ahead += stride;
    if (ahead < total) piece = pieces[ahead / cut.parts];
    loading = loading + 1 == UMBP_BULK_STAGES ? 0 : loading + 1;
    ++loaded;
  };
  for (u32 s = 0; s + 1 < UMBP_BULK_STAGES; ++s) load_next();
  u32 storing = 0;
  u32 parities = 0;  // of each stage's next load
  while (loaded != 0) {
    const Destination to = destinations[storing][lane];
    if (to.nbytes != 0) {
      wait_for_load(&barriers[storing][lane], (parities >> storing) & 1);
      parities ^= 1u << storing;
      begin_store(to.dst, stages + (storing * UMBP_BULK_THREADS + lane) * UMBP_BULK_PART, to.nbytes);
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    --loaded;
    storing = storing + 1 == UMBP_BULK_STAGES ? 0 : storing + 1;
    // Every store but the one just begun has left its stage: the next load goes where the one before it was.
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    load_next();
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif
