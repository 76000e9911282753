"""What a pool promises to every caller: the semantics of batch calls, key by key."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from node_process import ServerProcess, serving
from node_rig import short_directory
from patterns import GUARD_NBYTES, Memory, object_of, pattern
from pool_client import PoolClient, open_pool

from sglang_umbp import NodePool, PageLayout, Pool, Status
from sglang_umbp.identity import encode_identity

KIB = 1 << 10
MIB = 1 << 20
OK, EXISTS, MISSING = Status.OK, Status.EXISTS, Status.MISSING


KINDS: dict[str, dict[str, object]] = {
    "default": {},
    "memfd, one thread, no non-temporal stores": {
        "memory": "memfd",
        "copy_threads": 1,
        "nt_copy_min_bytes": 2**63,
        "hugepages": False,
    },
}

NODE = "a client of a node server"


@pytest.fixture(scope="module")
def node_server() -> Iterator[ServerProcess]:
    """A server with a pool of the same size, for all tests of this module."""
    with short_directory() as directory, serving(directory / "node.sock", objects=1024, index_entries=65536) as server:
        yield server


@pytest.fixture(params=[*KINDS, NODE])
def client(request: pytest.FixtureRequest) -> Iterator[PoolClient]:
    if request.param == NODE:
        path = request.getfixturevalue("node_server").path
        with NodePool(standalone_address=f"unix:{path}") as node_pool:
            node_pool.wait_until_connected(0)
            node_pool.clear()
            yield PoolClient(node_pool)
        return
    with open_pool(4 * MIB, **KINDS[request.param]) as pool:
        yield PoolClient(pool)


def ranges_of(client: PoolClient, *ranges: tuple[int, int, int]) -> list[list[list[int]]]:
    """One key's (destination offset, nbytes, object offset) as addresses, sizes, offsets."""
    base = client.destination.address
    return [
        [[base + place for place, _, _ in ranges]],
        [[nbytes for _, nbytes, _ in ranges]],
        [[offset for _, _, offset in ranges]],
    ]


def put_tiled(client: PoolClient, key: str, object_nbytes: int, *ranges: tuple[int, int]) -> Status:
    """Puts one key from (object offset, nbytes) ranges that lie in reverse order in memory."""
    data = object_of(key, object_nbytes)
    client.source.reset()
    at, addresses = GUARD_NBYTES, []
    for offset, nbytes in reversed(ranges):
        part = pattern(1, nbytes)
        part[: max(0, object_nbytes - offset)] = data[offset : offset + nbytes]
        addresses.append(client.source.write(at, part))
        at += nbytes + GUARD_NBYTES
    sizes = [nbytes for _, nbytes in ranges]
    offsets = [offset for offset, _ in ranges]
    (status,) = client.pool.put_ranges([key], [object_nbytes], [addresses[::-1]], [sizes], [offsets], status=True)
    client.source.check()
    return status


# Put ---------------------------------------------------------------------------------------------


def test_what_was_put_is_got_byte_for_byte(client: PoolClient) -> None:
    sizes = [1, 7, 63, 64, 65, 1727, 1728, 4096, 37_440, 131_072]
    keys = [f"key {nbytes}" for nbytes in sizes]
    assert client.put(keys, sizes) == [OK] * len(keys)
    assert client.get(keys, sizes) == [OK] * len(keys)


def test_a_put_has_copied_its_source_when_it_returns(client: PoolClient) -> None:
    client.put(["a"], 4096)
    client.source.array[:] = 0
    assert client.get(["a"], 4096) == [OK]


def test_a_put_of_an_existing_key_of_the_same_size_succeeds_without_a_copy(
    client: PoolClient,
) -> None:
    client.put(["a"], 1000)
    written = client.pool.stats().bytes_written
    address = client.source.write(0, pattern(99, 1000))
    assert client.pool.put(["a"], [address], [1000], status=True) == [EXISTS]
    assert client.pool.put(["a"], [address], [1000]) == [True]
    assert client.pool.stats().bytes_written == written
    assert client.get(["a"], 1000) == [OK]  # the old bytes


@pytest.mark.parametrize("nbytes", [1, 999, 1001, 5000])
def test_a_put_of_an_existing_key_of_another_size_fails_and_keeps_the_object(client: PoolClient, nbytes: int) -> None:
    client.put(["a"], 1000)
    assert client.put(["a"], nbytes) == [Status.SIZE_MISMATCH]
    assert client.get(["a"], 1000) == [OK]
    assert client.pool.stats().objects == 1


def test_of_duplicates_in_one_put_batch_the_first_wins(client: PoolClient) -> None:
    first = client.source.write(0, object_of("a", 500))
    second = client.source.write(1000, pattern(99, 500))
    answers = client.pool.put(["a", "b", "a", b"a"], [first, second, second, second], [500, 100, 500, 500], status=True)
    assert answers == [OK, OK, EXISTS, EXISTS]
    assert client.get(["a"], 500) == [OK]


def test_a_duplicate_of_another_size_fails_and_the_first_stays(client: PoolClient) -> None:
    address = client.source.write(0, object_of("a", 500))
    answers = client.pool.put(["a", "a"], [address, address], [500, 400], status=True)
    assert answers == [OK, Status.SIZE_MISMATCH]
    assert client.get(["a"], 500) == [OK]


def test_a_duplicate_of_a_key_whose_first_put_was_refused_is_stored(client: PoolClient) -> None:
    address = client.source.write(0, object_of("a", 100))
    answers = client.pool.put_ranges(
        ["a", "a"], [100, 100], [[address], [address]], [[99], [100]], [[0], [0]], status=True
    )
    assert answers == [Status.NOT_TILED, OK]
    assert client.get(["a"], 100) == [OK]


def test_put_ranges_tile_the_object_in_any_order(client: PoolClient) -> None:
    borders = [0, 1, 64, 100, 1828, 1829, 3000, 4097]
    ranges = [(low, high - low) for low, high in pairwise(borders)]
    shuffler = random.Random(7)
    for number in range(50):
        shuffler.shuffle(ranges)
        key = f"object {number}"
        assert put_tiled(client, key, 4097, *ranges) == OK
        assert client.get([key], 4097) == [OK]


@pytest.mark.parametrize(
    ("ranges", "status"),
    [
        pytest.param([(0, 40), (60, 40)], Status.NOT_TILED, id="gap in the middle"),
        pytest.param([(1, 99)], Status.NOT_TILED, id="gap at the front"),
        pytest.param([(0, 99)], Status.NOT_TILED, id="gap at the end"),
        pytest.param([(0, 60), (40, 60)], Status.NOT_TILED, id="overlap"),
        pytest.param([(0, 100), (0, 100)], Status.NOT_TILED, id="everything twice"),
        pytest.param([(0, 50), (0, 50)], Status.NOT_TILED, id="overlap of the right sum"),
        pytest.param([(0, 101)], Status.BAD_RANGE, id="longer than the object"),
        pytest.param([(0, 100), (100, 1)], Status.BAD_RANGE, id="beyond the end"),
        pytest.param([(0, 50), (50, 0), (50, 50)], Status.BAD_RANGE, id="an empty range"),
        pytest.param([], Status.BAD_RANGE, id="no range"),
        pytest.param([(2**64 - 1, 100)], Status.BAD_RANGE, id="an offset that wraps"),
    ],
)
def test_put_ranges_that_do_not_tile_the_object_fail_and_store_nothing(
    client: PoolClient, ranges: list[tuple[int, int]], status: Status
) -> None:
    assert put_tiled(client, "a", 100, *ranges) == status
    assert client.pool.exists(["a"]) == [False]
    assert client.pool.stats().used_bytes == 0
    assert client.put(["a"], 100) == [OK]


def test_an_object_of_no_bytes_is_refused(client: PoolClient) -> None:
    assert client.put(["a"], 0) == [Status.BAD_RANGE]
    assert put_tiled(client, "a", 0) == Status.BAD_RANGE
    assert client.pool.exists(["a"]) == [False]


def test_a_fault_of_one_key_of_a_put_never_fails_its_neighbours(client: PoolClient) -> None:
    client.put(["present", "other size"], [100, 50])
    keys = ["good", "gap", "present", "other size", "empty", "too large", "last"]
    sizes = [100, 100, 100, 100, 100, 5 * MIB, 100]
    lists = [[100], [99], [100], [100], [0], [100], [60, 40]]
    client.source.reset()
    base = client.source.write(0, object_of("good", 100))
    last = client.source.write(200, object_of("last", 100))
    addresses = [[base]] * 6 + [[last, last + 60]]
    offsets = [[0]] * 6 + [[0, 60]]
    answers = client.pool.put_ranges(keys, sizes, addresses, lists, offsets, status=True)
    assert answers == [
        OK,
        Status.NOT_TILED,
        EXISTS,
        Status.SIZE_MISMATCH,
        Status.BAD_RANGE,
        Status.NOT_TILED,
        OK,
    ]
    assert client.get(["good", "present", "other size", "last"], [100, 100, 50, 100]) == [OK] * 4


# Get ---------------------------------------------------------------------------------------------


def test_a_missing_key_is_false_and_nothing_is_written(client: PoolClient) -> None:
    client.put(["a"], 100)
    assert client.get(["b", "a", "c"], 100) == [MISSING, OK, MISSING]


@pytest.mark.parametrize("nbytes", [0, 1, 999, 1001, 4 * KIB])
def test_a_whole_get_of_another_size_is_false_and_nothing_is_written(client: PoolClient, nbytes: int) -> None:
    client.put(["a"], 1000)
    (answer,) = client.get(["a"], nbytes)  # checks the sentinels
    assert answer == (Status.BAD_RANGE if nbytes == 0 else Status.SIZE_MISMATCH)


def test_get_ranges_inside_the_object_copy_exactly_those_bytes(client: PoolClient) -> None:
    client.put(["a"], 5000)
    data = object_of("a", 5000)
    ranges = [(300, 1, 0), (17, 100, 4900), (1000, 2000, 7), (4000, 64, 64), (600, 5, 64)]
    assert client.pool.get_ranges(["a"], *ranges_of(client, *ranges)) == [True]
    for place, nbytes, offset in ranges:
        client.destination.expect(place, data[offset : offset + nbytes])
    client.destination.check()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param((500, 1, 100), id="one byte behind the end"),
        pytest.param((500, 2, 99), id="across the end"),
        pytest.param((500, 101, 0), id="longer than the object"),
        pytest.param((500, 0, 0), id="empty"),
        pytest.param((500, 0, 100), id="empty at the end"),
        pytest.param((500, 1, 2**64 - 1), id="an offset that wraps"),
        pytest.param((500, 100, 2**64 - 50), id="an end that wraps into the object"),
    ],
)
def test_a_key_with_a_range_outside_its_object_fails_and_nothing_of_it_moves(
    client: PoolClient, bad: tuple[int, int, int]
) -> None:
    client.put(["a", "b"], 100)
    good, wrong = ranges_of(client, (0, 50, 10)), ranges_of(client, (100, 50, 10), bad)
    both = [first + second for first, second in zip(good, wrong, strict=True)]
    answers = client.pool.get_ranges(["a", "b"], *both, status=True)
    assert answers == [OK, Status.BAD_RANGE]
    client.destination.expect(0, object_of("a", 100)[10:60])
    client.destination.check()


def test_a_key_without_ranges_fails(client: PoolClient) -> None:
    client.put(["a", "b"], 100)
    addresses = [[], [client.destination.address]]
    assert client.pool.get_ranges(["a", "b"], addresses, [[], [100]], [[], [0]]) == [False, True]
    assert client.pool.get_ranges(["a"], [[]], [[]], [[]], status=True) == [Status.BAD_RANGE]


def test_one_key_may_be_read_many_times_in_one_batch(client: PoolClient) -> None:
    client.put(["a"], 3000)
    assert client.get(["a"] * 40, 3000) == [OK] * 40


# Forms of arguments ------------------------------------------------------------------------------


def as_lists(columns: list[list[list[int]]]) -> tuple[list[object], dict[str, object]]:
    return list(columns), {}


def as_flat(
    columns: list[list[list[int]]], convert: Callable[[list[int]], object]
) -> tuple[list[object], dict[str, object]]:
    starts = [0]
    for part in columns[0]:
        starts.append(starts[-1] + len(part))
    flat = [convert([value for part in column for value in part]) for column in columns]
    return flat, {"starts": convert(starts)}


FORMS = {
    "lists of lists": as_lists,
    "tuples of tuples": lambda c: ([tuple(map(tuple, column)) for column in c], {}),
    "lists of arrays": lambda c: ([[np.array(part) for part in column] for column in c], {}),
    "lists of numpy integers": lambda c: (
        [[[np.int64(value) for value in part] for part in column] for column in c],
        {},
    ),
    "flat lists": lambda c: as_flat(c, list),
    "int64 arrays": lambda c: as_flat(c, lambda v: np.array(v, dtype=np.int64)),
    "uint64 arrays": lambda c: as_flat(c, lambda v: np.array(v, dtype=np.uint64)),
}


@pytest.mark.parametrize("form", FORMS)
def test_lists_and_arrays_give_equal_results(client: PoolClient, form: str) -> None:
    sizes, borders = [700, 64, 5000], [[0, 100, 700], [0, 64], [0, 1, 2000, 5000]]
    keys = ["a", "b", "c"]
    columns: list[list[list[int]]] = [[], [], []]
    places = []
    for number, (key, nbytes, edges) in enumerate(zip(keys, sizes, borders, strict=True)):
        client.source.write(number * 8000, object_of(key, nbytes))
        parts = list(pairwise(edges))[::-1]
        columns[0].append([number * 8000 + low for low, _ in parts])
        columns[1].append([high - low for low, high in parts])
        columns[2].append([low for low, _ in parts])
        places.append(number * 8000)
    offset_addresses = columns[0]
    columns[0] = [[client.source.address + at for at in part] for part in offset_addresses]
    positional, named = FORMS[form](columns)
    assert client.pool.put_ranges(keys, sizes, *positional, **named) == [True] * 3
    columns[0] = [[client.destination.address + at for at in part] for part in offset_addresses]
    positional, named = FORMS[form](columns)
    assert client.pool.get_ranges(keys, *positional, **named) == [True] * 3
    for key, nbytes, place in zip(keys, sizes, places, strict=True):
        client.destination.expect(place, object_of(key, nbytes))
    client.destination.check()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_objects_may_be_named_by_arrays(client: PoolClient, dtype: type) -> None:
    client.source.write(0, object_of("a", 300))
    address = np.array([client.source.address], dtype=dtype)
    assert client.pool.put(["a"], address, np.array([300], dtype=dtype)) == [True]
    assert client.get(["a"], 300) == [OK]


def test_read_only_arrays_are_accepted(client: PoolClient) -> None:
    client.put(["a"], 300)
    columns = [np.array([value]) for value in (client.destination.address, 300, 0)]
    starts = np.array([0, 1])
    for array in (*columns, starts):
        array.flags.writeable = False
    assert client.pool.get_ranges(["a"], *columns, starts=starts) == [True]


@pytest.mark.parametrize("wrap", [tuple, iter, lambda keys: (key for key in keys), dict.fromkeys])
def test_keys_may_come_in_any_iterable(client: PoolClient, wrap: Callable) -> None:
    client.put(["a", "c"], 10)
    assert client.pool.exists(wrap(["a", "b", "c"])) == [True, False, True]


def test_the_answers_are_bools_or_statuses(client: PoolClient) -> None:
    address = client.source.address
    assert client.pool.put(["a"], [address], [10]) == [True]
    (status,) = client.pool.put(["a"], [address], [10], status=True)
    assert status is EXISTS
    (answer,) = client.pool.get(["b"], [client.destination.address], [10])
    assert answer is False
    assert [bool(member) for member in Status] == [True] * 2 + [False] * (len(Status) - 2)


def test_empty_batches_give_empty_answers(client: PoolClient) -> None:
    pool, none = client.pool, np.array([], dtype=np.int64)
    assert pool.put([], [], []) == pool.get([], [], []) == []
    assert pool.put_ranges([], [], [], [], []) == pool.get_ranges([], [], [], []) == []
    assert pool.get_ranges([], none, none, none, starts=np.array([0])) == []
    assert pool.exists([]) == pool.remove([]) == []
    assert pool.exists_prefix([]) == 0
    assert len(pool.pin([])) == 0
    layout = one_fragment_layout(client, pool)
    assert pool.put_pages(layout, [], []) == pool.get_pages(layout, [], none) == []


# Keys --------------------------------------------------------------------------------------------


ODD_KEYS: list[str | bytes] = [
    "",
    "\0",
    "a\0",
    "a\0b",
    b"\0\0",
    b"\xff\xfe not utf-8",
    "ключ",
    "鍵",
    "🔑" * 300,
    "e\u0301",
    "\u00e9",  # another key than the one before: nothing is normalised
    " ",
    "a" * 7,
    "a" * 8,
    "a" * 9,
    "k" * MIB,
    "k" * (MIB - 1) + "l",
    b"\x80" * MIB,
]


def test_empty_nul_unicode_and_huge_keys_are_all_different_keys(client: PoolClient) -> None:
    assert client.put(ODD_KEYS, 200) == [OK] * len(ODD_KEYS)
    assert client.pool.exists(ODD_KEYS) == [True] * len(ODD_KEYS)
    assert client.get(ODD_KEYS, 200) == [OK] * len(ODD_KEYS)
    assert client.pool.remove(ODD_KEYS[:3]) == [True] * 3
    assert client.pool.exists(ODD_KEYS) == [False] * 3 + [True] * (len(ODD_KEYS) - 3)


def test_huge_keys_do_not_count_as_capacity() -> None:
    with open_pool(64 * KIB) as pool:
        client = PoolClient(pool)
        keys = [f"{number:02}" + "k" * (MIB - 2) for number in range(16)]
        assert client.put(keys, 4 * KIB) == [OK] * 16
        assert client.get(keys, 4 * KIB) == [OK] * 16


@pytest.mark.parametrize("text", ["a", "", "ключ", "a\0b"])
def test_a_str_and_its_utf8_bytes_are_the_same_key(client: PoolClient, text: str) -> None:
    assert client.put([text], 100) == [OK]
    assert client.put([text.encode()], 100) == [EXISTS]
    assert client.get([text.encode()], 100) == [OK]


def test_a_lone_surrogate_is_refused_before_anything_moves(client: PoolClient) -> None:
    address = client.source.address
    with pytest.raises(UnicodeEncodeError):
        client.pool.put(["a", "\ud800"], [address] * 2, [10, 10])
    with pytest.raises(UnicodeEncodeError):
        client.pool.exists(["\udfff"])
    assert client.pool.exists(["a"]) == [False]


# Namespaces --------------------------------------------------------------------------------------


def test_namespaces_separate_the_same_hash(client: PoolClient) -> None:
    first = client.pool.namespace("model one", ["kv"])
    second = client.pool.namespace("model two", ["kv"])
    assert client.put(["hash"], 100, namespace=first) == [OK]
    assert client.get(["hash"], 100, namespace=second) == [MISSING]
    assert client.get(["hash"], 100) == [MISSING]
    assert client.put(["hash"], 200, namespace=second) == [OK]
    assert client.put(["hash"], 300) == [OK]
    assert client.get(["hash"], 100, namespace=first) == [OK]
    assert client.get(["hash"], 200, namespace=second) == [OK]
    assert client.pool.remove(["hash"], namespace=second) == [True]
    assert client.get(["hash"], 100, namespace=first) == [OK]


def test_components_of_a_namespace_are_separate_objects(client: PoolClient) -> None:
    space = client.pool.namespace("model", ["k", "v", "index"])
    parts = [space.component(name) for name in space.components]
    for number, part in enumerate(parts):
        assert client.put(["hash"], 100 + number, namespace=part) == [OK]
    for number, part in enumerate(parts):
        assert client.get(["hash"], 100 + number, namespace=part) == [OK]
        assert client.get(["hash"], 99, namespace=part) == [Status.SIZE_MISMATCH]


def test_the_same_name_and_components_give_the_same_handle(client: PoolClient) -> None:
    space = client.pool.namespace("model", ["k", "v"])
    assert client.pool.namespace(b"model", ("k", "v")) is space
    assert client.pool.namespace("model", ["v", "k"]) is not space


def test_identities_are_tagged_and_length_delimited(client: PoolClient) -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a9:component", "bc")]
    parts = [client.pool.namespace(name, [part]).component(part) for name, part in pairs]
    for number, part in enumerate(parts):
        assert client.put(["hash"], 100 + number, namespace=part) == [OK]
    for number, part in enumerate(parts):
        assert client.get(["hash"], 100 + number, namespace=part) == [OK]
    assert encode_identity(("a", b"bc")) != encode_identity(("ab", b"c"))
    assert encode_identity(("t", b"a"), ("t", b"b")) != encode_identity(("t", b"ab"))


def test_a_key_is_no_part_of_its_namespace(client: PoolClient) -> None:
    first = client.pool.namespace("a", ["c"])
    client.put(["bc"], 100, namespace=first)
    assert not client.pool.exists(["c"], namespace=client.pool.namespace("ab", ["c"]))[0]


def test_a_page_exists_when_all_its_components_do(client: PoolClient) -> None:
    space = client.pool.namespace("model", ["k", "v"])
    key, value = (space.component(name) for name in "kv")
    client.put(["one", "two", "three"], 50, namespace=key)
    client.put(["one", "three"], 60, namespace=value)
    hashes = ["one", "two", "three", "four"]
    assert client.pool.exists(hashes, namespace=space) == [True, False, True, False]
    assert client.pool.exists_prefix(hashes, namespace=space) == 1
    with client.pool.pin(hashes, namespace=space) as session:
        assert session.hits == [True, False, True, False]
        assert session.prefix == 1
        assert session.nbytes == 220


def test_remove_takes_every_component_of_a_page(client: PoolClient) -> None:
    space = client.pool.namespace("model", ["k", "v"])
    for name in "kv":
        client.put(["one", "two"], 50, namespace=space.component(name))
    client.put(["half"], 50, namespace=space.component("v"))
    assert client.pool.remove(["one", "half", "none"], namespace=space) == [True, True, False]
    assert client.pool.exists(["one", "two"], namespace=space) == [False, True]
    assert client.pool.stats().objects == 2


# Exists, remove, clear, flush --------------------------------------------------------------------


def test_exists_prefix_is_the_length_of_the_leading_run(client: PoolClient) -> None:
    client.put(["a", "b", "d"], 10)
    for keys, length in ((["a", "b", "c", "d"], 2), (["c", "a"], 0), (["a", "b", "d"], 3)):
        assert client.pool.exists_prefix(keys) == length


def test_a_removed_object_is_gone_and_may_be_put_again_with_another_size(
    client: PoolClient,
) -> None:
    client.put(["a", "b"], 100)
    assert client.pool.remove(["a", "c", "a"]) == [True, False, False]
    assert client.get(["a", "b"], 100) == [MISSING, OK]
    assert client.put(["a"], 250) == [OK]
    assert client.get(["a"], 250) == [OK]


def test_after_clear_everything_is_gone_and_puts_work(client: PoolClient) -> None:
    keys = [f"key {number}" for number in range(100)]
    for _ in range(3):
        assert client.put(keys, 1000) == [OK] * 100
        client.pool.clear()
        stats = client.pool.stats()
        assert (stats.objects, stats.live_bytes, stats.used_bytes) == (0, 0, 0)
        assert client.get(keys, 1000) == [MISSING] * 100
    assert client.put(keys, 500) == [OK] * 100
    assert client.get(keys, 500) == [OK] * 100


def test_flush_returns_and_everything_put_is_there(client: PoolClient) -> None:
    client.put(["a"], 100)
    client.pool.flush()
    assert client.get(["a"], 100) == [OK]


# Recency -----------------------------------------------------------------------------------------


def use_by_get(client: PoolClient) -> None:
    client.get(["a"], KIB)


def use_by_put(client: PoolClient) -> None:
    client.put(["a"], KIB)


def use_by_get_ranges(client: PoolClient) -> None:
    client.pool.get_ranges(["a"], *ranges_of(client, (0, 1, 0)))


def use_by_pin(client: PoolClient) -> None:
    client.pool.pin(["a"]).close()


@pytest.mark.parametrize("use", [use_by_get, use_by_put, use_by_get_ranges, use_by_pin])
def test_a_use_refreshes(use: Callable[[PoolClient], None]) -> None:
    with open_pool(4 * KIB) as pool:
        client = PoolClient(pool)
        client.put(["a", "b", "c", "d"], KIB)
        use(client)
        client.put(["e"], KIB)
        assert pool.exists(["a", "b", "c", "d", "e"]) == [True, False, True, True, True]


@pytest.mark.parametrize("refreshes", [False, True])
@pytest.mark.parametrize("prefix", [False, True])
def test_exists_refreshes_by_choice_of_the_setting(refreshes: bool, prefix: bool) -> None:
    with open_pool(2 * KIB, exists_refreshes=refreshes) as pool:
        client = PoolClient(pool)
        client.put(["a", "b"], KIB)
        pool.exists_prefix(["a"]) if prefix else pool.exists(["a"])
        client.put(["c"], KIB)
        assert pool.exists(["a", "b"]) == [refreshes, not refreshes]


# Regions -----------------------------------------------------------------------------------------


def test_the_whole_region_may_be_used_up_to_its_last_byte() -> None:
    with open_pool(MIB) as pool:
        source, destination = Memory(5000), Memory(5000)
        pool.register_array(source.array)
        pool.register_array(destination.array)
        assert pool.put(["a"], [source.write(0, object_of("a", 5000))], [5000]) == [True]
        assert pool.get(["a"], [destination.expect(0, object_of("a", 5000))], [5000]) == [True]
        destination.check()


def test_a_batch_may_use_neighbouring_regions_one_range_in_each(client: PoolClient) -> None:
    client.put(["a"], 2000)
    memory = Memory(4000)
    client.pool.register_memory(memory.address, 1000)
    client.pool.register_memory(memory.address + 1000, 3000)
    base = memory.address
    columns = [[base, base + 1000]], [[1000, 1000]], [[0, 1000]]
    assert client.pool.get_ranges(["a"], *columns) == [True]
    memory.expect(0, object_of("a", 2000))
    memory.check()


def test_without_strict_registration_any_memory_works() -> None:
    with open_pool(MIB, strict_registration=False) as pool:
        source, destination = Memory(3000), Memory(3000)
        pool.register_memory(destination.address, 1000)  # and the rest of it is not
        address = source.write(0, object_of("a", 2000))
        assert pool.put(["a"], [address], [2000]) == [True]
        place = destination.expect(10, object_of("a", 2000))
        assert pool.get(["a"], [place], [2000]) == [True]
        destination.check()


# Batches larger than one slice -------------------------------------------------------------------


@pytest.mark.parametrize("count", [2047, 2048, 2049, 5000])
def test_batches_of_more_than_2048_keys_work(count: int) -> None:
    with open_pool(MIB) as pool:
        client = PoolClient(pool, 5000 * (64 + GUARD_NBYTES) + GUARD_NBYTES)
        keys = [f"key {number}" for number in range(count)]
        there = [key for number, key in enumerate(keys) if number % 1000 != 999]
        assert client.put(there, 64) == [OK] * len(there)
        expected = [number % 1000 != 999 for number in range(count)]
        assert pool.exists(keys) == expected
        assert list(map(bool, client.get(keys, 64))) == expected
        assert pool.exists_prefix(keys) == 999
        assert pool.exists_prefix(there) == len(there)
        assert pool.remove(keys) == expected


def test_exists_of_many_pages_of_several_components_is_right_across_slices() -> None:
    with open_pool(8 * MIB) as pool:
        client = PoolClient(pool, 2 * MIB)
        space = pool.namespace("model", ["a", "b", "c"])
        hashes = [f"page {number}" for number in range(3000)]
        for number, name in enumerate(space.components):
            there = hashes[number:] if number else hashes[:-1]
            assert all(client.put(there, 16, namespace=space.component(name)))
        expected = [2 <= number < 2999 for number in range(3000)]
        assert pool.exists(hashes, namespace=space) == expected
        assert pool.exists_prefix(hashes[2:], namespace=space) == 2997


def test_batches_of_more_than_256_mib_work() -> None:
    nbytes, count = 40 * MIB, 8  # 320 MiB
    with open_pool(nbytes * count) as pool:
        source, destination = Memory(nbytes), Memory(nbytes * count)
        pool.register_array(source.array)
        pool.register_array(destination.array)
        keys = [f"key {number}" for number in range(count)]
        data = pattern(1, nbytes)
        source.write(0, data)
        assert pool.put(keys, [source.address] * count, [nbytes] * count) == [True] * count
        places = [destination.expect(nbytes * number, data) for number in range(count)]
        assert pool.get(keys, places, [nbytes] * count) == [True] * count
        destination.check()


def test_one_object_of_more_than_256_mib_works() -> None:
    nbytes = 300 * MIB
    with open_pool(nbytes) as pool:
        memory = Memory(nbytes)
        pool.register_array(memory.array)
        data = pattern(2, nbytes)
        assert pool.put(["a", "b"], [memory.write(0, data)] * 2, [nbytes, 64], status=True) == [
            OK,
            Status.NO_SPACE,
        ]
        memory.array[:] = 0
        assert pool.get(["a"], [memory.address], [nbytes]) == [True]
        memory.check()


# Pages through a layout --------------------------------------------------------------------------


def one_fragment_layout(client: PoolClient, pool: Pool) -> PageLayout:
    space = pool.namespace("one fragment", ["kv"])
    return pool.page_layout(
        space,
        "kv",
        rows=4,
        bases=[client.destination.address],
        strides=[100],
        sizes=[100],
        object_offsets=[0],
    )


@pytest.mark.parametrize(
    "rows",
    [
        [3, 0, 2],
        (3, 0, 2),
        np.array([3, 0, 2]),
        np.array([3, 0, 2], dtype=np.int32),
        np.array([3, 0, 2], dtype=np.uint8),
        np.array([3, 9, 0, 9, 2])[::2],
        np.array([3, 0, 2], dtype=">i8"),
    ],
    ids=["list", "tuple", "int64", "int32", "uint8", "strided", "big endian"],
)
def test_rows_may_be_any_sequence_of_integers(client: PoolClient, rows: object) -> None:
    layout = one_fragment_layout(client, client.pool)
    hashes = ["a", "b", "c"]
    client.put(hashes, 100, namespace=layout.component)
    assert client.pool.get_pages(layout, hashes, rows) == [True] * 3
    for row, key in zip((3, 0, 2), hashes, strict=True):
        client.destination.expect(row * 100, object_of(key, 100))
    client.destination.check()


def test_rows_may_be_a_tensor_that_numpy_can_read(client: PoolClient) -> None:
    class Tensor:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([2, 1])

    layout = one_fragment_layout(client, client.pool)
    client.put(["a", "b"], 100, namespace=layout.component)
    assert client.pool.get_pages(layout, ["a", "b"], Tensor()) == [True, True]


def test_pages_and_raw_ranges_name_the_same_objects(client: PoolClient) -> None:
    space = client.pool.namespace("mixed", ["kv"])
    base = client.source.address
    layout = client.pool.page_layout(
        space,
        "kv",
        rows=3,
        bases=[base + 1000, base, base + 5000],
        strides=[70, 300, 11],
        sizes=[70, 200, 11],
        object_offsets=[200, 0, 270],
    )
    data = object_of("a", 281)
    client.source.write(1000 + 70, data[200:270])
    client.source.write(300, data[:200])
    client.source.write(5000 + 11, data[270:])
    assert client.pool.put_pages(layout, ["a"], [1], status=True) == [OK]
    assert client.get(["a"], 281, namespace=space) == [OK]
    client.source.reset()
    assert client.pool.get_pages(layout, ["a"], [2], (0, 2)) == [True]
    client.source.expect(1000 + 140, data[200:270])
    client.source.expect(600, data[:200])
    client.source.check()


def test_a_page_of_another_size_than_the_layout_is_false_and_not_written(
    client: PoolClient,
) -> None:
    layout = one_fragment_layout(client, client.pool)
    client.put(["a", "b"], [100, 101], namespace=layout.component)
    answers = client.pool.get_pages(layout, ["a", "b"], [0, 1], status=True)
    assert answers == [OK, Status.SIZE_MISMATCH]
    client.destination.expect(0, object_of("a", 100))
    client.destination.check()


def test_pages_in_batches_of_more_than_one_slice_work() -> None:
    count = 5000
    with open_pool(MIB) as pool:
        memory = Memory(count * 80)
        pool.register_array(memory.array)
        layout = pool.page_layout(
            pool.namespace("many", ["kv"]),
            "kv",
            rows=count,
            bases=[memory.address, memory.address + 24],
            strides=[80, 80],
            sizes=[24, 40],
            object_offsets=[40, 0],
        )
        hashes = [f"page {number}" for number in range(count)]
        rows = random.Random(5).sample(range(count), count)
        in_memory = {key: np.roll(object_of(key, 64), 24) for key in hashes}
        for row, key in zip(rows, hashes, strict=True):
            memory.write(row * 80, in_memory[key])
        assert all(pool.put_pages(layout, hashes, rows))
        memory.check()
        asked = [key if number % 100 else f"none {number}" for number, key in enumerate(hashes)]
        with pool.pin(asked, namespace=layout.component.namespace) as session:
            reads = {
                "pool": lambda: pool.get_pages(layout, asked, rows[::-1]),
                "session": lambda: session.get_pages(layout, rows[::-1]),
            }
            for name, read in reads.items():
                memory.reset()
                assert read() == [number % 100 != 0 for number in range(count)], name
                for row, key in zip(rows[::-1], asked, strict=True):
                    if key in in_memory:
                        memory.expect(row * 80, in_memory[key])
                memory.check()


def test_layer_groups_are_the_fragments_of_consecutive_logical_layers(client: PoolClient) -> None:
    space = client.pool.namespace("layers", ["kv"])

    def layout(logical_layers: list[int] | None) -> PageLayout:
        return client.pool.page_layout(
            space,
            "kv",
            rows=1,
            bases=[1000 * j for j in range(1, 6)],
            strides=[0] * 5,
            sizes=[10] * 5,
            object_offsets=[10 * j for j in range(5)],
            logical_layers=logical_layers,
        )

    assert layout(None).layer_groups(2) == [(0, 2), (2, 4), (4, 5)]
    assert layout([2, 4, 6, 8, 10]).layer_groups(4) == [(0, 1), (1, 3), (3, 5)]
    assert layout([0, 0, 9, 9, 9]).layer_groups(3) == [(0, 2), (2, 2), (2, 2), (2, 5)]
    assert layout([0, 1, 2, 3, 4]).layer_groups(8, 17) == [(0, 5), (5, 5), (5, 5)]
    with pytest.raises(ValueError, match="group_size"):
        layout(None).layer_groups(0)


# Accounting --------------------------------------------------------------------------------------


def test_the_counters_are_exact() -> None:
    with open_pool(10 * KIB) as pool:
        client = PoolClient(pool)
        client.put(["a", "b", "a"], [KIB, 2 * KIB, KIB])  # two stored, one existing
        client.put(["a", "huge"], [KIB - 1, 11 * KIB])  # mismatch, too large
        client.get(["a", "b", "c"], [KIB, 2 * KIB, KIB])  # two hits
        client.get(["a"], 5)  # a miss: another size
        client.pool.get_ranges(["b"], *ranges_of(client, (0, 100, 0), (200, 50, 0)))
        pool.exists(["a", "c"])
        pool.exists_prefix(["a", "c"])
        pool.locate(["a"])
        with pool.pin(["a", "b"]) as session:
            session.get_ranges(*ranges_of(client, (0, 10, 0)))
            stats = pool.stats()
            assert (stats.sessions, stats.pinned_bytes) == (1, 3 * KIB)
        client.put(["c", "d"], [4 * KIB, 4 * KIB])  # evicts a
        pool.remove(["b"])
        stats = pool.stats()
    assert stats.objects == 2
    assert stats.live_bytes == stats.used_bytes == 8 * KIB
    assert stats.retired_bytes == 0
    assert stats.capacity_bytes == 10 * KIB
    assert (stats.evicted, stats.evicted_bytes) == (1, KIB)
    assert stats.bytes_written == 11 * KIB
    assert {status: count for status, count in stats.puts.items() if count} == {
        OK: 4,
        EXISTS: 1,
        Status.SIZE_MISMATCH: 1,
        Status.TOO_LARGE: 1,
    }
    assert (stats.puts_stored, stats.puts_existing, stats.puts_failed) == (4, 1, 2)
    assert (stats.hits, stats.misses) == (4, 2)
    assert stats.bytes_read == 3 * KIB + 150 + 10
    assert (stats.sessions, stats.pinned_bytes) == (0, 0)
    assert (stats.sessions_dropped, stats.pins_cut_short) == (0, 0)
    assert (stats.regions, stats.clients) == (2, 1)
    assert stats.get_calls == 4


def test_a_get_call_counts_once_however_many_slices_it_needs() -> None:
    with open_pool(MIB) as pool:
        client = PoolClient(pool, 5000 * (16 + GUARD_NBYTES) + GUARD_NBYTES)
        keys = [f"key {number}" for number in range(5000)]
        client.put(keys, 16)
        client.get(keys, 16)
        stats = pool.stats()
        assert (stats.get_calls, stats.hits) == (1, 5000)


def test_failed_and_refused_gets_move_no_counter_of_bytes(client: PoolClient) -> None:
    client.put(["a"], 100)
    before = client.pool.stats()
    with pytest.raises(ValueError, match="overlap"):
        client.pool.get(["a", "a"], [client.destination.address] * 2, [100, 100])
    after = client.pool.stats()
    assert (after.hits, after.misses, after.bytes_read) == (
        before.hits,
        before.misses,
        before.bytes_read,
    )


def test_reads_take_no_owner_lock_and_a_get_takes_the_region_lock_once(client: PoolClient) -> None:
    keys = [f"key {number}" for number in range(64)]
    client.put(keys, 512)
    layout = one_fragment_layout(client, client.pool)
    client.put(["page"], 100, namespace=layout.component)
    session = client.pool.pin(keys)
    before = client.pool.stats()
    for _ in range(10):
        client.get(keys, 512)
        client.pool.get_pages(layout, ["page"], [1])
        session.get_ranges(*ranges_of(client, (0, 10, 0)))
        client.pool.exists(keys)
        client.pool.exists_prefix(keys)
        client.pool.pin(keys).close()
    after = client.pool.stats()
    own = 0 if isinstance(client.pool, NodePool) else 1  # that of stats() itself, where the owner is in this process
    assert after.owner_locks - before.owner_locks == own
    assert after.region_locks - before.region_locks == 30
