"""Overlapping destinations of a get are refused, whatever the number, sizes, order and places of the ranges.

The key is missing, so that nothing is copied and addresses may be any.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from sglang_umbp import Pool
from sglang_umbp.errors import InvalidBatchError

U64 = npt.NDArray[np.uint64]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(capacity_bytes=1 << 20, strict_registration=False) as opened:
        yield opened


def is_refused(pool: Pool, addresses: U64, sizes: U64) -> bool:
    starts = np.array([0, len(addresses)], dtype=np.uint64)
    try:
        pool.get_ranges(["missing"], addresses, sizes, np.zeros_like(sizes), starts=starts)
    except InvalidBatchError as error:
        if "destinations overlap" not in str(error):
            raise
        return True
    return False


def overlap(addresses: U64, sizes: U64) -> bool:
    """The plain answer, with Python's integers."""
    extents = sorted((int(a), int(n)) for a, n in zip(addresses, sizes, strict=True) if n)
    return any(low + nbytes > high for (low, nbytes), (high, _) in pairwise(extents))


def disjoint(random: np.random.Generator, count: int, largest: int, largest_gap: int) -> tuple[U64, U64]:
    """Ranges that share no byte, in random order."""
    sizes = random.integers(1, largest + 1, count, dtype=np.uint64)
    gaps = random.integers(0, largest_gap + 1, count, dtype=np.uint64)
    addresses = np.cumsum(sizes + gaps) - sizes + np.uint64(random.integers(1, 1 << 45))
    order = random.permutation(count)
    return addresses[order], sizes[order]


SHAPES = [(1, 9, 0), (100, 64, 0), (255, 1, 1), (256, 1, 0), (300, 1 << 20, 1 << 30), (3000, 40_000, 5), (5000, 64, 1)]


@pytest.mark.parametrize(("count", "largest", "gap"), SHAPES)
def test_neighbours_that_share_no_byte_are_accepted(pool: Pool, count: int, largest: int, gap: int) -> None:
    random = np.random.default_rng(count)
    for _ in range(5):
        assert not is_refused(pool, *disjoint(random, count, largest, gap))


@pytest.mark.parametrize(("count", "largest", "gap"), SHAPES[1:])
def test_one_shared_byte_among_many_ranges_is_refused(pool: Pool, count: int, largest: int, gap: int) -> None:
    random = np.random.default_rng(count)
    for _ in range(10):
        addresses, sizes = disjoint(random, count, largest, gap)
        victim, intruder = random.choice(count, 2, replace=False)
        addresses[intruder] = addresses[victim] + sizes[victim] - np.uint64(1)
        assert is_refused(pool, addresses, sizes)


def test_any_ranges_are_judged_as_plain_python_judges_them(pool: Pool, soak_scale: int) -> None:
    random = np.random.default_rng(5)
    seen = {True: 0, False: 0}
    for _ in range(400 * soak_scale):
        count = int(random.integers(1, 900))
        spread = int(count * 2.0 ** random.uniform(0, 34))
        addresses = random.integers(1, spread + 2, count, dtype=np.uint64)
        sizes = random.integers(0, 1 + int(2.0 ** random.uniform(0, 8)), count, dtype=np.uint64)
        expected = overlap(addresses, sizes)
        seen[expected] += 1
        assert is_refused(pool, addresses, sizes) == expected
    assert min(seen.values()) > 20


@pytest.mark.parametrize("count", [2, 1000])
def test_ranges_at_the_end_of_the_address_space(pool: Pool, count: int) -> None:
    sizes = np.full(count, 16, dtype=np.uint64)
    addresses = np.uint64(2**64 - 16) - np.arange(count, dtype=np.uint64) * np.uint64(16)
    addresses = np.random.default_rng(1).permutation(addresses)
    assert not is_refused(pool, addresses, sizes)
    addresses[addresses.argmax()] -= np.uint64(1)
    assert is_refused(pool, addresses, sizes)
    addresses[:] = addresses[1]
    assert is_refused(pool, addresses, sizes)


def test_ranges_of_neighbouring_keys_must_not_overlap_either(pool: Pool) -> None:
    with pytest.raises(InvalidBatchError, match=r"destinations overlap: 10 bytes at address 100 and 5 .* address 109"):
        pool.get_ranges(["x", "y"], [[100, 200], [109]], [[10, 10], [5]], [[0, 0], [0]])
