"""The planner against a plain-Python twin; its runs are executed on real bytes by the copier."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from sglang_umbp import _native
from sglang_umbp.errors import InvalidBatchError

TOP = 1 << 64
SENTINEL = 0xEE
FRAGMENT_BYTES = (1, 7, 64, 65, 200, 1728)
"""Sizes of the random mappings: below, at and above one cache line, and a real one."""


class Fragment(NamedTuple):
    src: int
    dst: int
    nbytes: int
    src_region: int = 1
    dst_region: int = 2


Run = tuple[int, int, int]


def twin(fragments: Iterable[Iterable[int]]) -> list[Run]:
    """The runs by Python's unbounded integers, where nothing can wrap."""
    runs: list[Run] = []
    regions: list[int] = []
    grew = ""
    for src, dst, nbytes, *ids in fragments:
        if runs and regions == ids:
            low_src, low_dst, length = runs[-1]
            if grew != "down" and src == low_src + length and dst == low_dst + length:
                runs[-1], grew = (low_src, low_dst, length + nbytes), "up"
                continue
            if grew != "up" and src + nbytes == low_src and dst + nbytes == low_dst:
                runs[-1], grew = (src, dst, length + nbytes), "down"
                continue
        runs.append((src, dst, nbytes))
        regions, grew = ids, ""
    return runs


def plan(fragments: Iterable[Fragment]) -> list[Run]:
    columns = np.array(list(fragments), dtype=np.uint64).reshape(-1, 5).T
    src, dst, nbytes = (np.ascontiguousarray(column) for column in columns[:3])
    src_region, dst_region = (column.astype(np.uint32) for column in columns[3:])
    runs = _native.plan_runs(src, dst, nbytes, src_region, dst_region)
    return list(zip(*(column.tolist() for column in runs), strict=True))


def address_of(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def pattern(nbytes: int) -> np.ndarray:
    """Bytes that depend on their position, without a short period and never SENTINEL."""
    position = np.arange(nbytes, dtype=np.uint64)
    mixed = (position * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (mixed % np.uint64(SENTINEL)).astype(np.uint8)


def assert_partition(fragments: list[Fragment], runs: list[Run]) -> None:
    """Each run is the extent of the next few fragments, of one pair of regions, none left over."""
    rest = iter(fragments)
    for src, dst, nbytes in runs:
        members: list[Fragment] = []
        while sum(member.nbytes for member in members) < nbytes:
            members.append(next(rest))
        assert sum(member.nbytes for member in members) == nbytes
        assert len({member.dst - member.src for member in members}) == 1
        assert min(member.src for member in members) == src
        assert min(member.dst for member in members) == dst
        assert max(member.src + member.nbytes for member in members) == src + nbytes
        assert len({member[3:] for member in members}) == 1
    assert next(rest, None) is None


# --- exhaustive --------------------------------------------------------------------------------

IDS = range(4)
SIZE_CYCLES = ((1, 1, 1, 1, 1), (1, 2, 3, 1, 2), (2, 1, 1, 3, 2))
"""Fragment i of a sequence has the cycle's i-th size, in the units in which ids are spaced."""
SLOT_BYTES = 8
"""Bytes of one mapping on each side: a sentinel, ids 0..3 with up to 3 units from each, another."""


def all_sequences(length: int) -> np.ndarray:
    """Every pair of (src ids, dst ids) sequences: shape (16**length, length, 2)."""
    pairs = np.array(list(itertools.product(IDS, IDS)))
    choice = np.indices((len(pairs),) * length).reshape(length, -1).T
    return pairs[choice]


def as_fragments(sequences: np.ndarray, sizes: np.ndarray, src: int, dst: int) -> np.ndarray:
    """Shape (mappings * length, 5); mapping k has its own slot and its own region ids."""
    mappings, length, _ = sequences.shape
    slot = np.arange(mappings)[:, None]
    fragments = np.empty((mappings, length, 5), dtype=np.int64)
    fragments[:, :, 0] = src + slot * SLOT_BYTES + 1 + sequences[:, :, 0]
    fragments[:, :, 1] = dst + slot * SLOT_BYTES + 1 + sequences[:, :, 1]
    fragments[:, :, 2] = sizes
    fragments[:, :, 3] = fragments[:, :, 4] = slot
    return fragments.reshape(-1, 5)


def expected_bytes(sequences: np.ndarray, sizes: np.ndarray, src: np.ndarray) -> np.ndarray:
    """The destination after copying fragment by fragment, in order."""
    dst = np.full_like(src, SENTINEL)
    slot = np.arange(len(sequences))
    for i, size in enumerate(sizes):
        for unit in range(1, size + 1):
            dst[slot, sequences[:, i, 1] + unit] = src[slot, sequences[:, i, 0] + unit]
    return dst


def chunks(sequences: np.ndarray, size: int = 1 << 16) -> Iterator[np.ndarray]:
    for begin in range(0, len(sequences), size):
        yield sequences[begin : begin + size]


@pytest.mark.parametrize("cycle", SIZE_CYCLES, ids=str)
@pytest.mark.parametrize("length", range(1, 6))
def test_every_short_mapping_plans_like_the_twin_and_copies_the_right_bytes(length, cycle):
    sizes = np.array(cycle[:length])
    copier = _native.HostCopier(nt_min_bytes=0)
    for sequences in chunks(all_sequences(length)):
        src = pattern(len(sequences) * SLOT_BYTES).reshape(-1, SLOT_BYTES)
        dst = np.full_like(src, SENTINEL)
        fragments = as_fragments(sequences, sizes, address_of(src), address_of(dst))
        columns = [np.ascontiguousarray(fragments[:, i], dtype=np.uint64) for i in range(3)]
        regions = [np.ascontiguousarray(fragments[:, i], dtype=np.uint32) for i in (3, 4)]
        run_src, run_dst, run_nbytes = _native.plan_runs(*columns, *regions)
        runs = np.stack([run_src, run_dst, run_nbytes], axis=1)
        assert np.array_equal(runs, np.array(twin(fragments.tolist()), dtype=np.uint64))
        copier.copy(run_dst, run_src, run_nbytes)
        assert np.array_equal(dst, expected_bytes(sequences, sizes, src))


# --- random mappings ---------------------------------------------------------------------------


def random_layout(rng: random.Random, sizes: list[int], order: list[int]) -> list[int]:
    """Offsets of fragments laid out in `order`, mostly touching, behind 64 bytes of sentinel."""
    offsets = [0] * len(sizes)
    at = 64
    for i in order:
        at += rng.choice((0, 0, 0, 0, 1, 8, 64))
        offsets[i] = at
        at += sizes[i]
    return offsets


def random_order(rng: random.Random, count: int) -> list[int]:
    """Ascending, descending and shuffled stretches of 0..count-1."""
    order: list[int] = []
    for begin in range(0, count, 8):
        stretch = list(range(begin, min(begin + 8, count)))
        how = rng.randrange(4)
        if how == 0:
            rng.shuffle(stretch)
        order += reversed(stretch) if how == 1 else stretch
    return order


def random_mapping(rng: random.Random) -> list[Fragment]:
    """Offsets instead of addresses; every destination is another one; regions begin anywhere."""
    count = rng.randrange(1, 33)
    few = rng.sample(FRAGMENT_BYTES, rng.randrange(1, 4))
    sizes = [rng.choice(few) for _ in range(count)]
    order = random_order(rng, count)
    src = random_layout(rng, sizes, order)
    dst = random_layout(rng, sizes, order if rng.random() < 0.6 else random_order(rng, count))
    if count > 1 and rng.random() < 0.2:  # a source that is read twice
        i = rng.randrange(1, count)
        src[i], sizes[i] = src[i - 1], min(sizes[i - 1], sizes[i])
    borders = [rng.choice(src), rng.choice(dst)] if rng.random() < 0.5 else [0, 0]
    return [
        Fragment(s, d, n, 1 + (s >= borders[0]), 1 + (d >= borders[1])) for s, d, n in zip(src, dst, sizes, strict=True)
    ]


def at_addresses(fragments: list[Fragment], src: int, dst: int) -> list[Fragment]:
    return [f._replace(src=f.src + src, dst=f.dst + dst) for f in fragments]


def execute(copier: _native.HostCopier, runs: list[Run]) -> None:
    src, dst, nbytes = (np.array(column, dtype=np.uint64) for column in zip(*runs, strict=True))
    copier.copy(dst, src, nbytes)


@pytest.mark.parametrize("seed", range(10))
def test_random_mappings_plan_like_the_twin_and_copy_the_right_bytes(seed):
    rng = random.Random(seed)
    copier = _native.HostCopier(nt_min_bytes=(0, 128, TOP - 1)[seed % 3])
    src = pattern(80_000)
    for _ in range(1_000):
        mapping = random_mapping(rng)
        dst = np.full(max(f.dst + f.nbytes for f in mapping) + 64, SENTINEL, dtype=np.uint8)
        expected = dst.copy()
        for f in mapping:
            expected[f.dst : f.dst + f.nbytes] = src[f.src : f.src + f.nbytes]
        fragments = at_addresses(mapping, address_of(src), address_of(dst))
        runs = plan(fragments)
        assert runs == twin(fragments)
        assert_partition(fragments, runs)
        execute(copier, runs)
        assert np.array_equal(dst, expected)


# --- edges -------------------------------------------------------------------------------------


def test_an_empty_batch_has_no_runs():
    assert plan([]) == []


def test_a_run_grows_upwards():
    assert plan([Fragment(0, 100, 10), Fragment(10, 110, 5)]) == [(0, 100, 15)]


def test_a_run_grows_downwards():
    assert plan([Fragment(10, 110, 5), Fragment(0, 100, 10)]) == [(0, 100, 15)]


def test_a_run_does_not_turn():
    up_then_down = [Fragment(20, 120, 10), Fragment(30, 130, 10), Fragment(10, 110, 10)]
    down_then_up = [Fragment(20, 120, 10), Fragment(10, 110, 10), Fragment(30, 130, 10)]
    assert plan(up_then_down) == [(20, 120, 20), (10, 110, 10)]
    assert plan(down_then_up) == [(10, 110, 20), (30, 130, 10)]


def test_a_repeat_starts_a_new_run():
    assert plan([Fragment(0, 100, 10)] * 2) == [(0, 100, 10)] * 2


def test_mismatched_directions_start_a_new_run():
    assert plan([Fragment(10, 110, 10), Fragment(20, 100, 10)]) == [(10, 110, 10), (20, 100, 10)]


def test_adjacency_on_one_side_alone_starts_a_new_run():
    assert len(plan([Fragment(0, 100, 10), Fragment(10, 111, 10)])) == 2
    assert len(plan([Fragment(0, 100, 10), Fragment(11, 110, 10)])) == 2


@pytest.mark.parametrize("ids", [(9, 2), (1, 9), (9, 9)])
def test_a_region_boundary_starts_a_new_run(ids):
    assert len(plan([Fragment(0, 100, 10), Fragment(10, 110, 10, *ids)])) == 2
    assert len(plan([Fragment(10, 110, 10), Fragment(0, 100, 10, *ids)])) == 2


def test_a_run_behind_a_region_boundary_may_grow_either_way():
    first = [Fragment(0, 100, 10), Fragment(10, 110, 10)]
    other = [Fragment(30, 130, 10, 3, 3), Fragment(20, 120, 10, 3, 3)]
    assert plan(first + other) == [(0, 100, 20), (20, 120, 20)]


def test_fragments_at_address_zero_are_planned():
    assert plan([Fragment(0, 0, 8), Fragment(8, 8, 8)]) == [(0, 0, 16)]
    assert plan([Fragment(8, 8, 8), Fragment(0, 0, 8)]) == [(0, 0, 16)]


EDGE_ADDRESSES = (0, 1, 8, (1 << 63) - 8, 1 << 63, TOP - 24, TOP - 16, TOP - 8)


def test_no_merge_wraps_around_the_address_space():
    """All pairs of 8- and 16-byte fragments at the edges, against integers that cannot wrap."""
    places = [(a, n) for a in EDGE_ADDRESSES for n in (8, 16) if a + n <= TOP]
    pairs = [(s, d, n) for s, n in places for d, m in places if m == n]
    fragments: list[Fragment] = []
    for k, (first, second) in enumerate(itertools.product(pairs, pairs)):
        fragments += [Fragment(*first, k, k), Fragment(*second, k, k)]
    assert plan(fragments) == twin(fragments)


def test_the_top_of_the_address_space_is_no_neighbour_of_address_zero():
    top = Fragment(TOP - 8, TOP - 8, 8)
    zero = Fragment(0, 0, 8)
    assert len(plan([top, zero])) == len(plan([zero, top])) == 2
    assert plan([Fragment(TOP - 16, TOP - 16, 8), top]) == [(TOP - 16, TOP - 16, 16)]
    assert plan([top, Fragment(TOP - 16, TOP - 16, 8)]) == [(TOP - 16, TOP - 16, 16)]


@pytest.mark.parametrize("side", ["src", "dst"])
def test_a_fragment_that_ends_beyond_the_address_space_is_refused(side):
    fragment = Fragment(64, 64, 8)._replace(**{side: TOP - 7})
    with pytest.raises(InvalidBatchError, match="fragment 1 of 8 bytes ends beyond"):
        plan([Fragment(0, 0, 8), fragment])


def test_an_empty_fragment_is_refused():
    with pytest.raises(InvalidBatchError, match="fragment 0 has 0 bytes"):
        plan([Fragment(0, 0, 0)])


def test_arrays_of_different_lengths_are_refused():
    two, three = np.ones(2, np.uint64), np.ones(3, np.uint64)
    ids = np.ones(2, np.uint32)
    with pytest.raises(InvalidBatchError, match="dst has 3 entries, src has 2"):
        _native.plan_runs(two, three, two, ids, ids)
