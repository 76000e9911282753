"""The host copier and the copy pool: every size, alignment, instruction set and thread count."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sglang_umbp import _native
from sglang_umbp.errors import InvalidBatchError

SENTINEL = 0xEE
NEVER = (1 << 64) - 1
"""The threshold that switches non-temporal stores off."""
DEADLINE_S = 60


def available_isas() -> list[str]:
    found = []
    for isa in ("avx512", "avx2", "neon", "plain"):
        try:
            found.append(_native.HostCopier(0, isa).isa)
        except InvalidBatchError:
            continue
    return found


ISAS = available_isas()


def pattern(nbytes: int, seed: int = 0) -> np.ndarray:
    """Bytes that depend on their position, without a short period and never SENTINEL."""
    position = np.arange(nbytes, dtype=np.uint64) + np.uint64(seed)
    mixed = (position * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (mixed % np.uint64(SENTINEL)).astype(np.uint8)


def aligned(nbytes: int) -> np.ndarray:
    """SENTINEL bytes that begin at a cache line."""
    whole = np.full(nbytes + 64, SENTINEL, dtype=np.uint8)
    skip = -whole.ctypes.data % 64
    return whole[skip : skip + nbytes]


class Case:
    """Fragments between two arrays, by offsets; destinations do not overlap."""

    def __init__(self, src: np.ndarray, src_at: list[int], dst_at: list[int], sizes: Sequence[int]):
        self.src, self.src_at, self.dst_at, self.sizes = src, src_at, dst_at, sizes
        ends = [at + n for at, n in zip(dst_at, sizes, strict=True)]
        self.dst = aligned(max(ends, default=0) + 64)
        self.expected = self.dst.copy()
        for s, d, n in zip(src_at, dst_at, sizes, strict=True):
            self.expected[d : d + n] = src[s : s + n]

    def run(self, copier: _native.HostCopier | _native.CopyPool) -> None:
        copier.copy(
            np.array(self.dst_at, dtype=np.uint64) + np.uint64(self.dst.ctypes.data),
            np.array(self.src_at, dtype=np.uint64) + np.uint64(self.src.ctypes.data),
            np.array(self.sizes, dtype=np.uint64),
        )

    def check(self, copier: _native.HostCopier | _native.CopyPool) -> None:
        self.dst.fill(SENTINEL)
        self.run(copier)
        wrong = np.flatnonzero(self.dst != self.expected)
        assert wrong.size == 0, f"{wrong.size} wrong bytes, the first at {wrong[0]}"


def spread(sizes: Sequence[int], *, dst_skew: int = 0, src_skew: int = 0, seed: int = 0) -> Case:
    """Sources in order; destinations in a random order, with whole lines of sentinels between."""
    src_at = [src_skew + at for at in itertools.accumulate(sizes, initial=0)]
    dst_at = [0] * len(sizes)
    at = 64 + dst_skew
    for i in np.random.default_rng(seed).permutation(len(sizes)):
        dst_at[i] = at
        at += sizes[i] // 64 * 64 + 192
    return Case(pattern(sum(sizes) + 64, seed), src_at[:-1], dst_at, sizes)


# --- one thread --------------------------------------------------------------------------------

LARGER_BYTES = (1023, 1728, 2049, 4095, 8448, 8449, 37440, 65537, 1 << 20, (1 << 20) + 1)
THRESHOLDS = pytest.mark.parametrize("nt_min_bytes", [0, 100, NEVER], ids=str)


@pytest.mark.parametrize("isa", ISAS)
@THRESHOLDS
@pytest.mark.parametrize("dst_skew", [0, 1, 31, 63])
@pytest.mark.parametrize("src_skew", [0, 1, 32, 63])
def test_every_small_size_is_copied_exactly(isa, nt_min_bytes, dst_skew, src_skew):
    sizes = list(range(301))
    spread(sizes, dst_skew=dst_skew, src_skew=src_skew).check(_native.HostCopier(nt_min_bytes, isa))


@pytest.mark.parametrize("isa", ISAS)
@THRESHOLDS
@pytest.mark.parametrize("dst_skew", [0, 17])
@pytest.mark.parametrize("src_skew", [0, 5])
def test_larger_sizes_are_copied_exactly(isa, nt_min_bytes, dst_skew, src_skew):
    case = spread(LARGER_BYTES, dst_skew=dst_skew, src_skew=src_skew)
    case.check(_native.HostCopier(nt_min_bytes, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dst_skew", range(64))
def test_every_alignment_of_the_destination_is_copied_exactly(isa, dst_skew):
    sizes = [1, 63, 64, 65, 127, 128, 129, 1728]
    case = spread(sizes, dst_skew=dst_skew, src_skew=dst_skew * 7 % 64)
    case.check(_native.HostCopier(0, isa))


@pytest.mark.parametrize("isa", ISAS)
def test_sizes_on_both_sides_of_the_threshold_mix(isa):
    sizes = [n for n in (1, 1727, 1728, 1729, 64, 37440, 8448, 200) for _ in range(5)]
    for nt_min_bytes in (1727, 1728, 1729, 8448, 8449):
        spread(sizes, seed=nt_min_bytes).check(_native.HostCopier(nt_min_bytes, isa))


@pytest.fixture
def page_before_a_hole() -> np.ndarray:
    """A page of source bytes; the page behind it cannot be read."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    src = np.frombuffer(pages, dtype=np.uint8, count=mmap.PAGESIZE)
    src[:] = pattern(mmap.PAGESIZE)
    hole = ctypes.c_void_p(src.ctypes.data + mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(hole, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return src


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 700, mmap.PAGESIZE])
def test_nothing_behind_the_source_is_read(isa, nbytes, page_before_a_hole):
    at = mmap.PAGESIZE - nbytes
    Case(page_before_a_hole, [at], [64], [nbytes]).check(_native.HostCopier(0, isa))


def test_no_runs_are_no_work():
    spread([]).check(_native.HostCopier(0))


def test_empty_runs_touch_nothing():
    spread([0, 100, 0, 0, 2000, 0]).check(_native.HostCopier(0))
    spread([0, 0]).check(_native.HostCopier(0))


def test_auto_is_the_best_instruction_set_there_is():
    assert _native.HostCopier(0).isa == ISAS[0]
    assert _native.HostCopier(4096).nt_min_bytes == 4096


def test_an_instruction_set_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(InvalidBatchError, match=f"'sse9' is not available.*{', '.join(ISAS)}"):
        _native.HostCopier(0, "sse9")


def test_arrays_of_different_lengths_are_refused():
    one, two = np.ones(1, np.uint64), np.ones(2, np.uint64)
    with pytest.raises(InvalidBatchError, match="dst has 2 entries, src has 1"):
        _native.HostCopier(0).copy(two, one, one)
    with pytest.raises(InvalidBatchError, match="sizes has 2 entries, src has 1"):
        _native.CopyPool(_native.HostCopier(0), 1).copy(one, one, two)


# --- several threads ---------------------------------------------------------------------------

POOL_SHAPES = {
    "one big run": [6_000_001],
    "big runs": [1_000_003] * 5,
    "big between tiny": [1, 64] * 50 + [3_000_007] + [65, 1728] * 50,
    "c128": [1728] * 1_000,
    "c4": [37_440] * 64,
    "tiny": [1, 3, 64, 100] * 2_000,
    "two tiny": [10, 20],
    "none": [],
    "empty runs": [0, 700_001, 0, 700_001, 0],
}


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("nt_min_bytes", [1024, NEVER], ids=["nt", "memcpy"])
@pytest.mark.parametrize("shape", POOL_SHAPES)
def test_a_pool_copies_exactly(threads, nt_min_bytes, shape):
    case = spread(POOL_SHAPES[shape], dst_skew=9, src_skew=3)
    pool = _native.CopyPool(_native.HostCopier(nt_min_bytes), threads)
    assert pool.threads == max(threads, 1)
    for _ in range(3):
        case.check(pool)


def call_repeatedly(pool: _native.CopyPool, lane: int, start: threading.Barrier) -> None:
    case = spread([1728, 37_440, 8448, 5] * 30 + [500_001 + lane], seed=lane)
    start.wait(DEADLINE_S)
    for _ in range(60):
        case.check(pool)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_many_threads_call_one_pool_at_once(threads):
    callers = 8
    pool = _native.CopyPool(_native.HostCopier(1024), threads)
    start = threading.Barrier(callers)
    with ThreadPoolExecutor(callers) as executor:
        lanes = [executor.submit(call_repeatedly, pool, lane, start) for lane in range(callers)]
        for lane in lanes:
            lane.result(timeout=DEADLINE_S)


def test_pools_come_and_go():
    case = spread([40_000] * 40)
    for threads in (1, 2, 3) * 20:
        case.check(_native.CopyPool(_native.HostCopier(1024), threads))


def exit_code_of_child(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_abandoned_pool_works_alone_in_a_forked_child_and_is_destroyed_there():
    case = spread([300_000] * 8)
    pool = _native.CopyPool(_native.HostCopier(1024), 3)
    case.check(pool)

    def in_child() -> None:
        nonlocal pool
        pool.abandon()
        assert pool.threads == 1
        case.check(pool)
        del pool

    assert exit_code_of_child(in_child) == 0
    case.check(pool)


# --- floors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["memcpy", "nt"])
@pytest.mark.parametrize("threads", [1, 2])
def test_floors_copy_everything_and_report_nanoseconds(mode, threads):
    if mode == "nt" and ISAS == ["plain"]:
        pytest.skip("this CPU has no non-temporal stores")

    class Floor:
        def copy(self, dst: np.ndarray, src: np.ndarray, sizes: np.ndarray) -> None:
            assert 0 < _native.floor_copy(dst, src, sizes, mode, threads) < DEADLINE_S * 10**9

    for sizes in ([1728] * 101, [37_440] * 3, list(range(200)), [5]):
        spread(sizes, dst_skew=13, src_skew=7).check(Floor())


def test_other_floors_are_refused():
    one = np.zeros(1, np.uint64)
    with pytest.raises(InvalidBatchError, match="floor mode 'movsb'"):
        _native.floor_copy(one, one, one, "movsb")
    with pytest.raises(InvalidBatchError, match="1 or 2 threads, not 3"):
        _native.floor_copy(one, one, one, "memcpy", 3)
