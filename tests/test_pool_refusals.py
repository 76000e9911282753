"""Malformed batches raise before a byte moves, and the pool goes on as if nothing had been asked."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from patterns import Memory, object_of
from pool_client import PoolClient, open_pool

from sglang_umbp import (
    ForkedPoolError,
    InvalidBatchError,
    PageLayout,
    Pool,
    PoolClosedError,
    RegionError,
    UmbpError,
    UnregisteredMemoryError,
)

KIB = 1 << 10
MIB = 1 << 20
ROWS = 8
FRAGMENT_NBYTES = 64

Call = Callable[[PoolClient], object]


@pytest.fixture
def client() -> Iterator[PoolClient]:
    with open_pool(MIB) as pool:
        yield with_objects(pool)


def with_objects(pool: Pool) -> PoolClient:
    """A client of a pool that holds "a" and "b" of 1 KiB, and pages "a" and "b" of layout_of."""
    client = PoolClient(pool, 64 * KIB)
    assert all(client.put(["a", "b"], KIB))
    assert all(client.put(["a", "b"], 2 * FRAGMENT_NBYTES, namespace=layout_of(client).component))
    client.source.reset()
    client.destination.reset()
    return client


def layout_of(client: PoolClient, base: int | None = None) -> PageLayout:
    """Two fragments a page, in the client's destination unless told otherwise."""
    base = client.destination.address if base is None else base
    return client.pool.page_layout(
        client.pool.namespace("model", ["kv"]),
        "kv",
        rows=ROWS,
        bases=[base, base + 4096],
        strides=[FRAGMENT_NBYTES] * 2,
        sizes=[FRAGMENT_NBYTES] * 2,
        object_offsets=[0, FRAGMENT_NBYTES],
    )


def expect_refusal(client: PoolClient, call: Call, error: type[Exception] | tuple[type[Exception], ...]) -> None:
    """The call raises, no destination byte and no object changes, nothing stays allocated."""
    before = client.pool.stats()
    with pytest.raises(error):
        call(client)
    client.destination.check()
    after = client.pool.stats()
    assert (after.objects, after.used_bytes, after.hits, after.bytes_written) == (
        before.objects,
        before.used_bytes,
        before.hits,
        before.bytes_written,
    )
    assert client.pool.exists(["new"]) == [False]
    assert all(client.get(["a", "b"], KIB))


def addresses_of(client: PoolClient) -> list[int]:
    """Two places of 1 KiB that do not touch."""
    return [client.destination.address, client.destination.address + 2 * KIB]


# Shapes -------------------------------------------------------------------------------------------

SHAPES: dict[str, Call] = {
    "get: fewer addresses than keys": lambda c: c.pool.get(["a", "b"], addresses_of(c)[:1], [KIB, KIB]),
    "get: fewer sizes than keys": lambda c: c.pool.get(["a", "b"], addresses_of(c), [KIB]),
    "get: more addresses and sizes than keys": lambda c: c.pool.get(["a"], addresses_of(c), [KIB, KIB]),
    "get: keys without addresses": lambda c: c.pool.get(["a"], [], []),
    "put: fewer sizes than keys": lambda c: c.pool.put(["new", "b"], addresses_of(c), [KIB]),
    "put: more keys than addresses": lambda c: c.pool.put(["new", "b"], addresses_of(c)[:1], [KIB]),
    "get_ranges: fewer lists than keys": lambda c: c.pool.get_ranges(["a", "b"], [addresses_of(c)], [[1, 1]], [[0, 0]]),
    "get_ranges: columns of different lengths": lambda c: c.pool.get_ranges(
        ["a", "b"], [[addresses_of(c)[0]], [addresses_of(c)[1]]], [[1], [1]], [[0]]
    ),
    "get_ranges: inner lists of different lengths": lambda c: c.pool.get_ranges(
        ["a"], [addresses_of(c)], [[1, 1]], [[0]]
    ),
    "get_ranges: an inner list too long": lambda c: c.pool.get_ranges(["a"], [addresses_of(c)], [[1, 1]], [[0, 1, 2]]),
    "put_ranges: fewer object sizes than keys": lambda c: c.pool.put_ranges(
        ["new", "b"], [1], [[a] for a in addresses_of(c)], [[1], [1]], [[0], [0]]
    ),
    "put_ranges: more object sizes than keys": lambda c: c.pool.put_ranges(
        ["new"], [1, 1], [addresses_of(c)[:1]], [[1]], [[0]]
    ),
    "get_pages: fewer rows than hashes": lambda c: c.pool.get_pages(layout_of(c), ["a", "b"], [0]),
    "get_pages: more rows than hashes": lambda c: c.pool.get_pages(layout_of(c), ["a"], [0, 1]),
    "put_pages: fewer rows than hashes": lambda c: c.pool.put_pages(layout_of(c), ["new", "b"], [0]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_lengths_that_differ_raise(client: PoolClient, name: str) -> None:
    expect_refusal(client, SHAPES[name], InvalidBatchError)


STARTS = {
    "empty": [],
    "too few": [0, 2],
    "too many": [0, 1, 2, 2],
    "not from 0": [1, 1, 2],
    "not to the end": [0, 1, 1],
    "beyond the end": [0, 1, 3],
    "descending": [0, 3, 2],
    "huge in the middle": [0, 2**64 - 1, 2],
}


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS)
def test_starts_that_do_not_divide_the_ranges_among_the_keys_raise(client: PoolClient, starts: list[int]) -> None:
    columns = [np.array(addresses_of(client)), np.array([1, 1]), np.array([0, 0])]
    for form in (list, lambda values: np.array(values, dtype=np.uint64)):
        expect_refusal(
            client,
            lambda c, form=form: c.pool.get_ranges(["a", "b"], *columns, starts=form(starts)),
            InvalidBatchError,
        )


def test_flat_columns_of_different_lengths_raise(client: PoolClient) -> None:
    columns = [np.array(addresses_of(client)), np.array([1]), np.array([0, 0])]
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        chosen = [columns[i] for i in order]
        expect_refusal(
            client,
            lambda c, chosen=chosen: c.pool.get_ranges(["a", "b"], *chosen, starts=[0, 1, 2]),
            InvalidBatchError,
        )


# Values -------------------------------------------------------------------------------------------

BAD_INTEGERS: dict[str, tuple[Any, type[Exception] | tuple[type[Exception], ...]]] = {
    "negative": ([-1], InvalidBatchError),
    "negative in an int64 array": (np.array([-1]), InvalidBatchError),
    "the least int64": (np.array([-(2**63)]), InvalidBatchError),
    "2**64": ([2**64], InvalidBatchError),
    "float": ([1.0], TypeError),
    "numpy float": ([np.float64(1)], TypeError),
    "None in a list": ([None], TypeError),
    "None": (None, TypeError),
    "str in a list": (["1"], TypeError),
    "one str": ("1", TypeError),
    "bytes": (b"\1", TypeError),
    "bytearray": (bytearray(b"\1"), TypeError),
    "one number": (1, TypeError),
    "float64 array": (np.array([1.0]), TypeError),
    "int32 array": (np.array([1], dtype=np.int32), TypeError),
    "uint32 array": (np.array([1], dtype=np.uint32), TypeError),
    "bool array": (np.array([True]), TypeError),
    "object array": (np.array([1], dtype=object), TypeError),
    "big-endian array": (np.array([1], dtype=">i8"), TypeError),
    "two-dimensional array": (np.array([[1]]), TypeError),
    "zero-dimensional array": (np.array(1), TypeError),
    "strided array": (np.array([1, 2, 3])[::2], TypeError),
    "reversed array": (np.array([1, 2])[::-1], TypeError),
}


@pytest.mark.parametrize("name", BAD_INTEGERS)
def test_what_is_no_unsigned_integer_raises_wherever_it_stands(client: PoolClient, name: str) -> None:
    bad, error = BAD_INTEGERS[name]
    place = [client.destination.address]
    calls: list[Call] = [
        lambda c: c.pool.get(["a"], bad, [KIB]),
        lambda c: c.pool.get(["a"], place, bad),
        lambda c: c.pool.put(["new"], bad, [KIB]),
        lambda c: c.pool.put(["new"], place, bad),
        lambda c: c.pool.put_ranges(["new"], bad, [place], [[1]], [[0]]),
        lambda c: c.pool.get_ranges(["a"], bad, [1], [0], starts=[0, 1]),
        lambda c: c.pool.get_ranges(["a"], place, bad, [0], starts=[0, 1]),
        lambda c: c.pool.get_ranges(["a"], place, [1], bad, starts=[0, 1]),
    ]
    if bad is not None:
        calls.append(lambda c: c.pool.get_ranges(["a"], place, [1], [0], starts=bad))
    for call in calls:
        expect_refusal(client, call, (error, InvalidBatchError))


def test_a_list_of_lists_with_a_bad_number_in_the_last_key_raises(client: PoolClient) -> None:
    first, second = addresses_of(client)
    for bad in (-1, 2**64, 1.5, None, "x"):
        expect_refusal(
            client,
            lambda c, bad=bad: c.pool.get_ranges(["a", "b"], [[first], [second]], [[5], [5]], [[0], [bad]]),
            (InvalidBatchError, TypeError),
        )


def test_an_address_range_that_wraps_raises_even_without_strict_registration() -> None:
    with open_pool(MIB, strict_registration=False) as pool:
        client = with_objects(pool)
        address = 2**64 - 512
        expect_refusal(client, lambda c: c.pool.get(["a"], [address], [KIB]), InvalidBatchError)
        expect_refusal(client, lambda c: c.pool.put(["new"], [address], [KIB]), InvalidBatchError)


class OnlyNumpyCanReadIt:
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array([0])


def test_objects_that_only_convert_to_arrays_are_no_columns(client: PoolClient) -> None:
    column = OnlyNumpyCanReadIt()
    expect_refusal(client, lambda c: c.pool.get(["a"], column, [KIB]), TypeError)


class Emptier:
    """A number that empties a list when it is asked for."""

    def __init__(self, victim: list[object]) -> None:
        self._victim = victim

    def __index__(self) -> int:
        self._victim.clear()
        return 0


def test_a_list_that_changes_while_it_is_read_harms_nothing(client: PoolClient) -> None:
    def ask(c: PoolClient) -> None:
        addresses = [c.destination.address + number for number in range(KIB)]
        offsets: list[object] = [0] * KIB
        offsets[1] = Emptier(offsets)
        c.pool.get_ranges(["a"], [addresses], [[1] * KIB], [offsets])

    expect_refusal(client, ask, InvalidBatchError)


def test_an_outer_list_that_changes_while_it_is_read_harms_nothing(client: PoolClient) -> None:
    def ask(c: PoolClient) -> None:
        offsets: list[object] = []
        offsets += [[Emptier(offsets)], [0]]
        c.pool.get_ranges(["a", "b"], [[c.destination.address], [c.destination.address + 1]], [[1], [1]], offsets)

    expect_refusal(client, ask, InvalidBatchError)


# Keys ---------------------------------------------------------------------------------------------

BAD_KEYS: dict[str, Any] = {
    "one str": "a",
    "one bytes": b"a",
    "None": None,
    "None in a list": ["a", None],
    "int in a list": ["a", 1],
    "bytearray in a list": [bytearray(b"a")],
    "nested list": [["a"]],
    "a number": 5,
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_what_is_no_sequence_of_str_or_bytes_raises(client: PoolClient, name: str) -> None:
    keys = BAD_KEYS[name]
    place, sizes, rows = addresses_of(client)[:1], [KIB], [0]
    calls: list[Call] = [
        lambda c: c.pool.get(keys, place, sizes),
        lambda c: c.pool.put(keys, place, sizes),
        lambda c: c.pool.get_ranges(keys, [place], [sizes], [[0]]),
        lambda c: c.pool.get_pages(layout_of(c), keys, rows),
        lambda c: c.pool.put_pages(layout_of(c), keys, rows),
        lambda c: c.pool.exists(keys),
        lambda c: c.pool.exists_prefix(keys),
        lambda c: c.pool.pin(keys),
        lambda c: c.pool.remove(keys),
    ]
    for call in calls:
        expect_refusal(client, call, TypeError)


# Destinations and memory --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([(0, 100), (0, 100)], id="the same"),
        pytest.param([(0, 100), (99, 100)], id="by one byte"),
        pytest.param([(99, 100), (0, 100)], id="by one byte, descending"),
        pytest.param([(500, 10), (0, 100), (300, 50), (340, 161)], id="unsorted"),
        pytest.param([(0, 1000), (400, 1)], id="one inside the other"),
        pytest.param([(0, 1000), (10, 1), (900, 5)], id="two inside the first"),
        pytest.param([(0, 1), (0, 1000)], id="the same start"),
    ],
)
def test_destinations_that_overlap_raise(client: PoolClient, ranges: list[tuple[int, int]]) -> None:
    base = client.destination.address
    addresses, sizes = [base + at for at, _ in ranges], [nbytes for _, nbytes in ranges]
    one_key = [[addresses], [sizes], [[0] * len(ranges)]]
    expect_refusal(client, lambda c: c.pool.get_ranges(["a"], *one_key), InvalidBatchError)
    many_keys = [[[value] for value in column] for column in (addresses, sizes, [0] * len(sizes))]
    keys = ["a", "missing"] * len(ranges)
    expect_refusal(
        client,
        lambda c: c.pool.get_ranges(keys[: len(ranges)], *many_keys),
        InvalidBatchError,
    )


def test_overlapping_destinations_of_whole_objects_raise(client: PoolClient) -> None:
    base = client.destination.address
    expect_refusal(
        client,
        lambda c: c.pool.get(["a", "b"], [base + KIB - 1, base], [KIB, KIB]),
        InvalidBatchError,
    )


def test_sources_of_a_put_may_overlap(client: PoolClient) -> None:
    address = client.source.address
    assert client.pool.put(["x", "y"], [address, address + 1], [100, 100]) == [True, True]


@pytest.mark.parametrize("rows", [[1, 1], [0, 3, 5, 0], np.array([7, 7])])
def test_a_row_that_stands_twice_in_one_get_raises(client: PoolClient, rows: Any) -> None:
    hashes = ["a"] * len(rows)
    expect_refusal(client, lambda c: c.pool.get_pages(layout_of(c), hashes, rows), InvalidBatchError)
    assert all(client.pool.get_pages(layout_of(client), ["a", "b"], [0, 1]))


@pytest.mark.parametrize(
    "rows",
    [
        [ROWS],
        [-1],
        [0, 2**40],
        np.array([2**63], dtype=np.uint64),
        np.array([2**64 - 1], dtype=np.uint64),
        [2**64],
        [0.0],
        np.array([1.0]),
        [True],
        [None],
        ["0"],
        [[0]],
        np.zeros((1, 1), dtype=np.int64),
        np.int64(0),
        None,
        (row for row in [0]),
    ],
    ids=repr,
)
def test_rows_outside_the_layout_or_no_integers_raise(client: PoolClient, rows: Any) -> None:
    error = (InvalidBatchError, ValueError, TypeError)
    count = len(rows) if hasattr(rows, "__len__") else 1
    hashes = ["a", "new"][:count]
    expect_refusal(client, lambda c: c.pool.get_pages(layout_of(c), hashes, rows), error)
    expect_refusal(client, lambda c: c.pool.put_pages(layout_of(c), hashes, rows), error)


@pytest.mark.parametrize("layers", [(0, 0), (1, 1), (1, 0), (0, 3), (2, 3), (-1, 1), (0, 2**64)])
def test_fragments_that_the_layout_does_not_have_raise(client: PoolClient, layers: tuple[int, int]) -> None:
    expect_refusal(
        client,
        lambda c: c.pool.get_pages(layout_of(c), ["a"], [0], layers),
        (InvalidBatchError, TypeError),
    )


def test_unregistered_memory_raises_in_strict_mode(client: PoolClient) -> None:
    memory = Memory(64 * KIB)
    address = memory.address
    inside = client.destination.address
    calls: list[Call] = [
        lambda c: c.pool.get(["a"], [address], [KIB]),
        lambda c: c.pool.get(["a", "b"], [inside, address], [KIB, KIB]),
        lambda c: c.pool.get(["missing"], [address], [KIB]),
        lambda c: c.pool.put(["new"], [address], [KIB]),
        lambda c: c.pool.put(["a"], [address], [KIB]),  # exists, and still is refused
        lambda c: c.pool.get_ranges(["a"], [[inside, address]], [[1, 1]], [[0, 0]]),
        lambda c: c.pool.get_pages(layout_of(c, address), ["a"], [0]),
        lambda c: c.pool.put_pages(layout_of(c, address), ["new"], [0]),
    ]
    for call in calls:
        expect_refusal(client, call, UnregisteredMemoryError)
    memory.check()


def test_the_refusal_names_address_and_size(client: PoolClient) -> None:
    with pytest.raises(UnregisteredMemoryError, match="1024 bytes at address 4660 "):
        client.pool.get(["a"], [0x1234], [KIB])


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_range_that_leaves_its_region_by_one_byte_raises(client: PoolClient, shift: int) -> None:
    memory = client.destination
    address = memory.address - 1 if shift < 0 else memory.address + memory.nbytes - KIB + 1
    expect_refusal(client, lambda c: c.pool.get(["a"], [address], [KIB]), UnregisteredMemoryError)


def test_a_range_across_the_border_of_two_regions_raises(client: PoolClient) -> None:
    memory = Memory(4 * KIB)
    client.pool.register_memory(memory.address, 2 * KIB)
    client.pool.register_memory(memory.address + 2 * KIB, 2 * KIB)
    across = memory.address + 2 * KIB - 1
    expect_refusal(client, lambda c: c.pool.get(["a"], [across], [KIB]), UnregisteredMemoryError)
    expect_refusal(client, lambda c: c.pool.put(["new"], [across], [2]), UnregisteredMemoryError)
    memory.check()


def test_a_page_needs_only_its_own_rows_registered(client: PoolClient) -> None:
    memory = Memory(16 * KIB)
    layout = layout_of(client, memory.address)
    for fragment in (0, 4096):  # rows 2 and 3 of each fragment, and nothing else
        client.pool.register_memory(memory.address + fragment + 2 * FRAGMENT_NBYTES, 128)
    assert client.pool.get_pages(layout, ["a", "b"], [2, 3]) == [True, True]
    for row, key in ((2, "a"), (3, "b")):
        data = object_of(key, 2 * FRAGMENT_NBYTES)
        memory.expect(row * FRAGMENT_NBYTES, data[:FRAGMENT_NBYTES])
        memory.expect(4096 + row * FRAGMENT_NBYTES, data[FRAGMENT_NBYTES:])
    expect_refusal(
        client,
        lambda c: c.pool.get_pages(layout, ["a", "b"], [2, 4]),
        UnregisteredMemoryError,
    )
    memory.check()


def test_after_unregister_the_memory_is_refused(client: PoolClient) -> None:
    memory = Memory(4 * KIB)
    client.pool.register_array(memory.array)
    assert client.pool.get(["a"], [memory.address], [KIB]) == [True]
    memory.reset()
    client.pool.unregister_memory(memory.address)
    expect_refusal(client, lambda c: c.pool.get(["a"], [memory.address], [KIB]), UnregisteredMemoryError)
    memory.check()
    with pytest.raises(RegionError):
        client.pool.unregister_memory(memory.address)


def test_registering_twice_is_a_no_op_and_overlap_is_refused(client: PoolClient) -> None:
    pool, base, nbytes = client.pool, client.source.address, client.source.nbytes
    pool.register_memory(base, nbytes)
    for address, size in ((base, nbytes + 1), (base, 1), (base + 1, 1), (base - 1, 2), (base, 0)):
        with pytest.raises(RegionError):
            pool.register_memory(address, size)
    assert pool.stats().regions == 2


def test_a_grown_region_covers_its_new_bytes(client: PoolClient) -> None:
    memory = Memory(4 * KIB)
    client.pool.register_memory(memory.address, KIB)
    client.pool.register_memory(memory.address, 4 * KIB, grow=True)
    place = memory.expect(3 * KIB, object_of("a", KIB))
    assert client.pool.get(["a"], [place], [KIB]) == [True]
    memory.check()


def test_an_array_that_is_not_contiguous_is_not_registered(client: PoolClient) -> None:
    with pytest.raises(InvalidBatchError):
        client.pool.register_array(np.zeros((4, 4), dtype=np.uint8)[:, :2])


# Layouts and namespaces ---------------------------------------------------------------------------


def make_layout(client: PoolClient, **changes: Any) -> PageLayout:
    base = client.destination.address
    arguments: dict[str, Any] = {
        "rows": 4,
        "bases": [base, base + 4096],
        "strides": [64, 64],
        "sizes": [64, 64],
        "object_offsets": [0, 64],
    }
    space = client.pool.namespace("model", ["kv"])
    return client.pool.page_layout(space, "kv", **{**arguments, **changes})


BAD_LAYOUTS: dict[str, dict[str, Any]] = {
    "no row": {"rows": 0},
    "no fragment": {"bases": [], "strides": [], "sizes": [], "object_offsets": []},
    "fewer strides": {"strides": [64]},
    "fewer sizes": {"sizes": [64]},
    "more offsets": {"object_offsets": [0, 64, 128]},
    "a fragment of no bytes": {"sizes": [64, 0]},
    "a gap in the object": {"object_offsets": [0, 65]},
    "overlap in the object": {"object_offsets": [0, 63]},
    "an object that begins late": {"object_offsets": [1, 65]},
    "rows that overlap": {"strides": [63, 64]},
    "rows in one place": {"strides": [0, 64]},
    "fragments that overlap": {"bases": [1 << 20, (1 << 20) + 255]},
    "interleaved fragments that meet": {
        "bases": [1 << 20, (1 << 20) + 63],
        "strides": [128, 128],
    },
    "an end beyond 2**64": {"bases": [2**64 - 255, 0]},
    "a stride that wraps": {"strides": [2**63, 64]},
    "negative base": {"bases": [-1, 0]},
    "logical layers of another length": {"logical_layers": [0]},
    "logical layers that descend": {"logical_layers": [1, 0]},
    "negative logical layers": {"logical_layers": [-1, 0]},
}


@pytest.mark.parametrize("name", BAD_LAYOUTS)
def test_a_layout_that_does_not_tile_or_overlaps_is_refused(client: PoolClient, name: str) -> None:
    with pytest.raises(InvalidBatchError):
        make_layout(client, **BAD_LAYOUTS[name])


def test_interleaved_fragments_are_a_layout(client: PoolClient) -> None:
    base = client.destination.address
    layout = make_layout(client, bases=[base, base + 64], strides=[128, 128])
    assert client.pool.get_pages(layout, ["a", "b"], [3, 0]) == [True, True]
    client.destination.expect(3 * 128, object_of("a", 128))
    client.destination.expect(0, object_of("b", 128))
    client.destination.check()


def test_a_component_that_is_not_there_is_refused(client: PoolClient) -> None:
    space = client.pool.namespace("model", ["k", "v"])
    with pytest.raises(KeyError, match="'x'"):
        space.component("x")
    with pytest.raises(InvalidBatchError, match="k, v"):
        client.pool.get(["a"], [client.destination.address], [1], namespace=space)
    for components in ([], ["k", "k"], "kv"):
        with pytest.raises(InvalidBatchError):
            client.pool.namespace("other", components)


# Life of a pool -----------------------------------------------------------------------------------


def every_call(client: PoolClient, layout: PageLayout) -> dict[str, Callable[[], object]]:
    pool, place = client.pool, [client.destination.address]
    return {
        "put": lambda: pool.put(["new"], place, [1]),
        "get": lambda: pool.get(["a"], place, [1]),
        "put_ranges": lambda: pool.put_ranges(["new"], [1], [place], [[1]], [[0]]),
        "get_ranges": lambda: pool.get_ranges(["a"], [place], [[1]], [[0]]),
        "put_pages": lambda: pool.put_pages(layout, ["new"], [0]),
        "get_pages": lambda: pool.get_pages(layout, ["a"], [0]),
        "put_components": lambda: pool.put_components([(layout, ["new"], [0])]),
        "get_components": lambda: pool.get_components([(layout, ["a"], [0])]),
        "get_components of nothing": lambda: pool.get_components([]),
        "empty get": lambda: pool.get([], [], []),
        "exists": lambda: pool.exists(["a"]),
        "exists_prefix": lambda: pool.exists_prefix(["a"]),
        "pin": lambda: pool.pin(["a"]),
        "remove": lambda: pool.remove(["a"]),
        "clear": pool.clear,
        "flush": pool.flush,
        "stats": pool.stats,
        "locate": lambda: pool.locate(["a"]),
        "namespace": lambda: pool.namespace("a new one", ["kv"]),
        "register_memory": lambda: pool.register_memory(1, 1),
        "unregister_memory": lambda: pool.unregister_memory(place[0]),
    }


def test_every_call_of_a_closed_pool_raises(client: PoolClient) -> None:
    layout, session = layout_of(client), client.pool.pin(["a"])
    calls = every_call(client, layout)
    client.pool.close()
    client.pool.close()
    assert client.pool.closed
    calls["session"] = lambda: session.get_ranges([[layout.rows]], [[1]], [[0]])
    for name, call in calls.items():
        with pytest.raises(PoolClosedError):
            raise AssertionError(f"{name} returned {call()!r}")
    session.close()
    client.destination.check()


def test_calls_before_open_raise_and_open_works_once() -> None:
    pool = Pool(capacity_bytes=MIB)
    assert pool.closed
    for call in (pool.stats, pool.flush, pool.clear, lambda: pool.exists(["a"])):
        with pytest.raises(PoolClosedError):
            call()
    pool.close()
    with pool.open():
        assert pool.exists(["a"]) == [False]
        with pytest.raises(InvalidBatchError, match="open already"):
            pool.open()
    with pytest.raises(InvalidBatchError, match="was closed"):
        pool.open()


def test_settings_and_keyword_arguments_together_are_refused(client: PoolClient) -> None:
    with pytest.raises(InvalidBatchError):
        Pool(client.pool.settings, copy_threads=1)


def test_reads_through_a_closed_session_raise(client: PoolClient) -> None:
    session = client.pool.pin(["a"])
    session.close()
    session.close()
    with pytest.raises(InvalidBatchError, match="closed"):
        session.get_ranges([[client.destination.address]], [[1]], [[0]])
    client.destination.check()


def test_reads_through_a_session_that_was_dropped_and_then_closed_raise() -> None:
    with open_pool(MIB, session_quota_bytes=KIB) as pool:
        client = with_objects(pool)
        first = pool.pin(["a"], firm=False)
        second = pool.pin(["b"], firm=False)
        ranges = [[client.destination.address]], [[1]], [[0]]
        assert first.dropped
        assert first.get_ranges(*ranges) == [True]  # looked up anew
        client.destination.reset()
        first.close()
        with pytest.raises(InvalidBatchError, match="closed"):
            first.get_ranges(*ranges)
        client.destination.check()
        second.close()


def test_pages_beyond_the_session_raise(client: PoolClient) -> None:
    session = client.pool.pin(["a", "b"])
    place = client.destination.address
    for first, count in ((0, 3), (1, 2), (2, 1), (3, 0), (2**64 - 1, 2)):
        columns = [[[place + at] for at in range(count)], [[1]] * count, [[0]] * count]
        with pytest.raises(InvalidBatchError):
            session.get_ranges(*columns, first=first)
    client.destination.check()
    assert session.get_ranges([], [], [], first=2) == []


def test_a_layout_of_another_namespace_is_refused_by_a_session(client: PoolClient) -> None:
    with pytest.raises(InvalidBatchError, match="namespace"):
        client.pool.pin(["a"]).get_pages(layout_of(client), [0])
    client.destination.check()


def test_a_forked_child_does_not_own_the_pool(client: PoolClient) -> None:
    layout = layout_of(client)
    calls = every_call(client, layout)
    child = os.fork()
    if child == 0:
        os._exit(sum(not raises_forked(call) for name, call in calls.items() if name != "flush"))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.get(["a"], KIB)[0]


def raises_forked(call: Callable[[], object]) -> bool:
    try:
        call()
    except ForkedPoolError:
        return True
    except BaseException:
        return False
    return False


def test_every_error_is_one_of_ours_and_the_built_in_that_fits() -> None:
    assert issubclass(InvalidBatchError, UmbpError)
    assert issubclass(InvalidBatchError, ValueError)
    assert issubclass(UnregisteredMemoryError, InvalidBatchError)
    assert issubclass(RegionError, ValueError)
    assert issubclass(PoolClosedError, RuntimeError)
    assert issubclass(ForkedPoolError, RuntimeError)


# Numbers that change after they were checked ---------------------------------------------------------


def test_arrays_that_change_during_a_call_lead_nowhere_else() -> None:
    """The first object lands on the array of addresses; the last key is in the get's second slice."""
    count = 2048 + 1
    with open_pool(MIB) as pool:
        trap = np.zeros(8, np.uint8)  # registered nowhere
        objects = np.full((count, 8), 7, np.uint8)
        objects[0] = np.array([trap.ctypes.data], np.uint64).view(np.uint8)
        destination = np.zeros((count, 8), np.uint8)
        addresses = destination.ctypes.data + 8 * np.arange(count, dtype=np.uint64)
        addresses[0] = addresses.ctypes.data + 8 * (count - 1)
        for array in (objects, destination, addresses):
            pool.register_array(array)
        keys = [str(number) for number in range(count)]
        assert all(pool.put(keys, [row.ctypes.data for row in objects], [8] * count))
        assert all(pool.get(keys, addresses, np.full(count, 8, np.uint64)))
        assert not trap.any()
        assert (destination[1:] == 7).all()


def test_a_layout_of_a_trillion_rows_costs_no_memory(client: PoolClient) -> None:
    client.pool.register_array(rows := np.zeros((ROWS, FRAGMENT_NBYTES), np.uint8))
    layout = client.pool.page_layout(
        client.pool.namespace("model", ["tall"]),
        "tall",
        rows=1 << 40,
        bases=[rows.ctypes.data],
        strides=[FRAGMENT_NBYTES],
        sizes=[FRAGMENT_NBYTES],
        object_offsets=[0],
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows[0] = 7
    assert all(client.pool.put_pages(layout, ["p"], [0]))
    assert client.pool.get_pages(layout, ["p", "p"], [1, 3]) == [True, True]
    assert (rows[[1, 3]] == 7).all()
    with pytest.raises(InvalidBatchError, match="row 3 stands twice"):
        client.pool.get_pages(layout, ["p", "p"], [3, 3])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * KIB


def test_a_layout_whose_object_has_2_to_the_64_bytes_is_refused(client: PoolClient) -> None:
    """Their sum is 0 in 64 bits."""
    with pytest.raises(InvalidBatchError, match=r"2\^64 bytes"):
        client.pool.page_layout(
            client.pool.namespace("model", ["kv"]),
            "kv",
            rows=1,
            bases=[0, 1 << 63],
            strides=[0, 0],
            sizes=[1 << 63, 1 << 63],
            object_offsets=[0, 1 << 63],
        )


def test_layer_groups_without_end_are_refused(client: PoolClient) -> None:
    with pytest.raises(InvalidBatchError, match="layers; allowed"):
        layout_of(client).layer_groups(1, 1 << 62)


def test_keys_of_more_than_a_mebibyte_are_refused_and_of_a_mebibyte_are_not() -> None:
    with Pool(capacity_bytes=1 << 20) as pool:
        source = np.zeros(64, dtype=np.uint8)
        pool.register_array(source)
        assert pool.put(["x" * (1 << 20)], [source.ctypes.data], [64]) == [True]
        with pytest.raises(InvalidBatchError, match=f"key 1 has {(1 << 20) + 1} bytes"):
            pool.exists(["a", b"x" * ((1 << 20) + 1)])
