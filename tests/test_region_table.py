"""The table of registered buffers: edges of the address space, neighbours, threads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_umbp import _native
from sglang_umbp.errors import RegionError

TOP = 1 << 64
BASE = 0x10000
NBYTES = 0x1000
DEADLINE_S = 30


@pytest.fixture
def table() -> _native.RegionTable:
    """One region, [BASE, BASE + NBYTES)."""
    table = _native.RegionTable()
    table.add(BASE, NBYTES)
    return table


def extents(table: _native.RegionTable) -> list[tuple[int, int]]:
    return [(region.base, region.nbytes) for region in table.regions()]


# --- look-up -----------------------------------------------------------------------------------


def test_an_empty_table_holds_nothing():
    table = _native.RegionTable()
    assert len(table) == 0
    assert table.regions() == []
    assert table.find(0, 1) is None
    assert table.find(TOP - 1, 1) is None


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [
        (BASE, 1),
        (BASE, NBYTES),
        (BASE + 1, NBYTES - 1),
        (BASE + NBYTES - 1, 1),
    ],
)
def test_a_range_inside_a_region_is_found(table, address, nbytes):
    assert table.find(address, nbytes).base == BASE


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [
        (BASE - 1, 1),
        (BASE - 1, 2),
        (BASE, NBYTES + 1),
        (BASE + NBYTES - 1, 2),
        (BASE + NBYTES, 1),
        (0, 1),
        (TOP - 1, 1),
    ],
)
def test_a_range_that_is_not_wholly_inside_is_not_found(table, address, nbytes):
    assert table.find(address, nbytes) is None


def test_an_empty_range_is_in_no_region(table):
    assert table.find(BASE, 0) is None
    assert table.find(BASE + NBYTES, 0) is None


def test_a_range_that_wraps_is_not_found(table):
    assert table.find(BASE + 8, TOP - 8) is None
    assert table.find(BASE, TOP - 1) is None
    assert table.find(BASE + 1, TOP - 1) is None


def test_a_range_over_two_adjacent_regions_is_in_neither(table):
    table.add(BASE + NBYTES, NBYTES)
    assert table.find(BASE + NBYTES - 1, 2) is None
    assert table.find(BASE + NBYTES - 1, 1).base == BASE
    assert table.find(BASE + NBYTES, 1).base == BASE + NBYTES


def test_the_top_of_the_address_space_is_registered_and_found():
    table = _native.RegionTable()
    table.add(TOP - 4096, 4096)
    table.add(0, 4096)
    assert table.find(TOP - 1, 1).base == TOP - 4096
    assert table.find(TOP - 4096, 4096).base == TOP - 4096
    assert table.find(TOP - 1, 2) is None
    assert table.find(0, 4096).base == 0
    assert table.find(TOP - 4097, 1) is None


def test_look_ups_agree_with_a_linear_scan():
    rng = random.Random(0)
    table = _native.RegionTable()
    known: list[tuple[int, int]] = []
    at = 0
    for _ in range(200):
        at += rng.choice((0, 0, 1, 5))
        known.append((at, rng.randrange(1, 20)))
        at += known[-1][1]
    for base, nbytes in rng.sample(known, len(known)):
        table.add(base, nbytes)
    assert extents(table) == known
    for _ in range(20_000):
        address, nbytes = rng.randrange(at + 3), rng.randrange(1, 25)
        holders = [b for b, n in known if b <= address and address + nbytes <= b + n]
        found = table.find(address, nbytes)
        assert ([found.base] if found else []) == holders


def test_every_find_takes_the_shared_lock_once(table):
    before = table.shared_acquisitions
    table.find(BASE, 1)
    table.find(0, 1)
    assert table.shared_acquisitions == before + 2


# --- registration ------------------------------------------------------------------------------


def test_a_region_keeps_its_attributes():
    table = _native.RegionTable()
    table.add(
        BASE,
        NBYTES,
        kind=_native.MemoryKind.PINNED_HOST,
        device=3,
        device_alias=0x7000,
        mode=_native.RegionMode.LOCAL_COPY_ONLY,
    )
    (region,) = table.regions()
    assert region.kind == _native.MemoryKind.PINNED_HOST
    assert (region.device, region.device_alias) == (3, 0x7000)
    assert region.mode == _native.RegionMode.LOCAL_COPY_ONLY


def test_ids_are_never_zero_and_never_used_again(table):
    table.add(BASE + NBYTES, 1)
    ids = {region.id for region in table.regions()}
    table.remove(BASE)
    table.add(BASE, NBYTES)
    again = table.find(BASE, 1).id
    assert 0 not in ids
    assert len(ids) == 2
    assert again not in ids


def test_the_same_extent_twice_is_a_no_op(table):
    before = table.find(BASE, 1).id
    table.add(BASE, NBYTES)
    table.add(BASE, NBYTES, grow=True)
    assert extents(table) == [(BASE, NBYTES)]
    assert table.find(BASE, 1).id == before


def test_the_same_extent_with_other_attributes_is_refused(table):
    with pytest.raises(RegionError, match="kind, device, device alias or mode differ"):
        table.add(BASE, NBYTES, kind=_native.MemoryKind.DEVICE, device=0)
    assert table.find(BASE, 1).kind == _native.MemoryKind.HOST


@pytest.mark.parametrize("nbytes", [NBYTES - 1, NBYTES + 1])
def test_the_same_base_with_another_size_is_refused(table, nbytes):
    with pytest.raises(RegionError, match=f"0x10000 \\+ {nbytes} bytes.*0x10000 \\+ 4096 bytes"):
        table.add(BASE, nbytes)
    assert extents(table) == [(BASE, NBYTES)]


def test_grow_enlarges_a_region_and_keeps_its_id(table):
    before = table.find(BASE, 1).id
    table.add(BASE, 2 * NBYTES, grow=True)
    assert table.find(BASE, 2 * NBYTES).id == before
    assert len(table) == 1


def test_grow_adds_a_region_that_was_not_there(table):
    table.add(BASE + NBYTES, 1, grow=True)
    assert len(table) == 2


def test_grow_does_not_shrink(table):
    with pytest.raises(RegionError, match="larger size"):
        table.add(BASE, NBYTES - 1, grow=True)


def test_grow_does_not_overlap_the_next_region(table):
    table.add(BASE + NBYTES + 16, NBYTES)
    with pytest.raises(RegionError, match="overlaps"):
        table.add(BASE, NBYTES + 17, grow=True)
    table.add(BASE, NBYTES + 16, grow=True)
    assert extents(table) == [(BASE, NBYTES + 16), (BASE + NBYTES + 16, NBYTES)]


@pytest.mark.parametrize(
    ("base", "nbytes"),
    [
        (BASE - 1, 2),
        (BASE - 1, NBYTES + 2),
        (BASE + 1, 1),
        (BASE + NBYTES - 1, 1),
        (BASE + NBYTES - 1, 2),
        (0, TOP - 1),
    ],
)
def test_an_overlap_is_refused_and_names_both_extents(table, base, nbytes):
    message = f"0x{base:x} \\+ {nbytes} bytes: it overlaps the registered 0x10000 \\+ 4096 bytes"
    with pytest.raises(RegionError, match=message):
        table.add(base, nbytes)
    assert extents(table) == [(BASE, NBYTES)]


def test_neighbours_that_touch_are_no_overlap(table):
    table.add(BASE - 1, 1)
    table.add(BASE + NBYTES, 1)
    assert len(table) == 3


def test_zero_bytes_are_refused():
    with pytest.raises(RegionError, match="size is 0"):
        _native.RegionTable().add(BASE, 0)


@pytest.mark.parametrize(("base", "nbytes"), [(TOP - 1, 2), (2, TOP - 1), (TOP - 8, 9)])
def test_an_end_beyond_the_address_space_is_refused(base, nbytes):
    with pytest.raises(RegionError, match="beyond the address space"):
        _native.RegionTable().add(base, nbytes)


def test_a_removed_region_is_not_found(table):
    table.add(BASE + NBYTES, NBYTES)
    table.remove(BASE)
    assert table.find(BASE, 1) is None
    assert table.find(BASE + NBYTES, 1) is not None


@pytest.mark.parametrize("base", [0, BASE - 1, BASE + 1, BASE + NBYTES, TOP - 1])
def test_removing_an_unknown_base_is_refused(table, base):
    with pytest.raises(RegionError, match=f"0x{base:x}: no region starts there"):
        table.remove(base)
    assert len(table) == 1


# --- threads -----------------------------------------------------------------------------------


def churn(table: _native.RegionTable, lane: int, rounds: int) -> None:
    base = BASE + (2 + lane) * NBYTES
    for _ in range(rounds):
        table.add(base, NBYTES)
        assert table.find(base, NBYTES).base == base
        table.add(base, NBYTES, grow=True)
        table.remove(base)
        assert table.find(base, 1) is None


def find_steadily(table: _native.RegionTable, done: threading.Event) -> int:
    looks = 0
    while not done.is_set():
        assert table.find(BASE, NBYTES).base == BASE
        looks += 1
    return looks


def test_threads_find_while_others_add_and_remove(table):
    done = threading.Event()
    with ThreadPoolExecutor(8) as threads:
        finders = [threads.submit(find_steadily, table, done) for _ in range(4)]
        churners = [threads.submit(churn, table, lane, 500) for lane in range(4)]
        try:
            for future in churners:
                future.result(timeout=DEADLINE_S)
        finally:
            done.set()
        assert all(future.result(timeout=DEADLINE_S) > 0 for future in finders)
    assert extents(table) == [(BASE, NBYTES)]


def try_to_add(table: _native.RegionTable, base: int) -> bool:
    try:
        table.add(base, NBYTES)
    except RegionError:
        return False
    return True


def test_of_overlapping_adds_at_once_exactly_one_succeeds(table):
    with ThreadPoolExecutor(8) as threads:
        for round_ in range(1, 200):
            base = BASE + 2 * round_ * NBYTES
            added = threads.map(lambda i, b=base: try_to_add(table, b + i), range(8))
            assert sum(added) == 1
    assert len(table) == 200
