"""Pages of several components as one batch of a get: bytes, answers, refusals, sessions, node clients, devices."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from component_rig import GAP, ROWS, SIZES, ComponentRows, offsets_of, page_of
from device_rig import UNTOUCHED, DeviceRig, device_rig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_process import serving
from node_rig import short_directory
from pool_client import open_pool
from waiting import wait_until

from sglang_umbp import InvalidBatchError, NodePool, PageLayout, Pool, PoolClosedError, PoolSettings, Status
from sglang_umbp.errors import UnregisteredMemoryError

MIB = 1 << 20
KEYS = [f"page {number}" for number in range(10)]
OK, MISSING = Status.OK, Status.MISSING


@pytest.fixture
def pool() -> Iterator[Pool]:
    with open_pool(MIB, copy_threads=1, hugepages=False) as pool:
        yield pool


@pytest.fixture
def rows(pool: Pool) -> ComponentRows:
    rows = ComponentRows(pool, spare=8192)
    rows.store(KEYS)
    return rows


# --- what is read ------------------------------------------------------------------------------


def test_pages_of_several_components_and_namespaces_are_read_by_one_call(rows: ComponentRows) -> None:
    before = rows.pool.stats()
    answers = rows.get(
        [("c4", KEYS[:4], [3, 0, 11, 7]), ("indexer", KEYS[2:7], [1, 2, 3, 15, 0]), ("c128", KEYS[9:], [12])]
    )
    assert answers == [[OK] * 4, [OK] * 5, [OK]]
    after = rows.pool.stats()
    assert after.get_calls - before.get_calls == 1
    assert after.hits - before.hits == 10
    assert after.region_locks - before.region_locks == 1
    assert after.owner_locks - before.owner_locks == 1  # that of stats()
    assert after.bytes_read - before.bytes_read == sum(
        pages * sum(SIZES[name]) for name, pages in (("c4", 4), ("indexer", 5), ("c128", 1))
    )


@pytest.mark.parametrize("shared", [True, False], ids=["one list", "equal lists"])
def test_parts_that_name_the_same_keys_are_parts_of_their_own(rows: ComponentRows, shared: bool) -> None:
    keys = KEYS[3:6]
    parts = [(name, keys if shared else list(keys), [place, place + 4, place + 2]) for place, name in enumerate(SIZES)]
    assert rows.get(parts) == [[OK] * 3] * 3


def test_windows_of_fragments_are_those_of_each_part(rows: ComponentRows) -> None:
    first = [("c4", KEYS[:2], [5, 6], (1, 3)), ("indexer", KEYS[:2], [6, 5], (0, 1)), ("c128", KEYS[:2], [1, 2], None)]
    assert rows.get(first) == [[OK] * 2] * 3
    assert rows.get([("c4", KEYS[:2], [5, 6], (3, 4)), ("c4", KEYS[:2], [5, 6], (0, 1))]) == [[OK] * 2] * 2
    assert rows.get([("indexer", KEYS[:2], [6, 5], (1, 2))]) == [[OK] * 2]


def test_each_item_has_its_own_answer_and_what_failed_is_not_touched(rows: ComponentRows) -> None:
    layout = rows.layouts["indexer"]
    rows.pool.put(["short"], [rows.memory.address], [64], namespace=layout.component)
    answers = rows.get(
        [
            ("c4", ["none", KEYS[1], "none"], [0, 1, 2]),
            ("indexer", [KEYS[1], "short", KEYS[1], "none"], [4, 1, 2, 3]),
            ("c128", ["short", KEYS[0]], [9, 8]),
        ]
    )
    assert answers == [
        [MISSING, OK, MISSING],
        [OK, Status.SIZE_MISMATCH, OK, MISSING],
        [MISSING, OK],
    ]
    gets = rows.pool.stats().gets
    assert (gets[OK], gets[MISSING], gets[Status.SIZE_MISMATCH]) == (4, 4, 1)
    bools = rows.pool.get_components(rows.parts([("c4", ["none", KEYS[1]], [3, 1])]))
    assert bools == [[False, True]]
    assert all(type(answer) is bool for answer in bools[0])


def test_parts_without_pages_and_no_parts_at_all(rows: ComponentRows) -> None:
    assert rows.get([("c4", [], []), ("indexer", KEYS[:1], [2]), ("c128", [], []), ("c4", KEYS[:1], [3])]) == [
        [],
        [OK],
        [],
        [OK],
    ]
    assert rows.get([("c4", [], [])]) == [[]]
    assert rows.pool.get_components([]) == rows.pool.get_components(()) == []
    assert rows.pool.stats().get_calls == 1


def test_a_batch_of_several_slices_whose_border_lies_within_a_part(pool: Pool) -> None:
    count = 1500  # 2,048 objects are a slice
    memory = np.zeros((2, count, 8), np.uint8)
    pool.register_array(memory)
    space = pool.namespace("many", ["a", "b"])
    layouts = [
        pool.page_layout(space, name, rows=count, bases=[part.ctypes.data], strides=[8], sizes=[8], object_offsets=[0])
        for name, part in zip("ab", memory, strict=True)
    ]
    stored = np.arange(2 * count, dtype=np.uint64).view(np.uint8).reshape(2, count, 8)
    memory[:] = stored
    keys = [str(number) for number in range(count)]
    assert all(all(part) for part in pool.put_components([(layout, keys, range(count)) for layout in layouts]))
    memory[:] = 0xEE
    wanted = [key if number % 7 else "none" for number, key in enumerate(keys)]
    rows = [random.Random(part).sample(range(count), count) for part in range(2)]
    answers = pool.get_components([(layout, wanted, own) for layout, own in zip(layouts, rows, strict=True)])
    assert answers == [[number % 7 != 0 for number in range(count)]] * 2
    for part, own in enumerate(rows):
        expected = np.full((count, 8), 0xEE, np.uint8)
        for number, row in enumerate(own):
            if number % 7:
                expected[row] = stored[part, number]
        assert np.array_equal(memory[part], expected)
    assert pool.stats().get_calls == 1


names_of_parts = st.lists(st.sampled_from(sorted(SIZES)), max_size=5)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=names_of_parts, seed=st.integers(0, 2**32))
def test_it_does_what_one_get_a_part_does(rows: ComponentRows, names: list[str], seed: int) -> None:
    one_by_one = ComponentRows(rows.pool)
    rows.memory.reset()
    generator = random.Random(seed)
    free = {name: generator.sample(range(ROWS), ROWS) for name in SIZES}
    parts: list[Any] = []
    for name in names:
        keys = [generator.choice([*KEYS, "none", "nowhere"]) for _ in range(generator.randrange(4))]
        own = [free[name].pop() for _ in keys]
        begin, end = sorted(generator.sample(range(len(SIZES[name]) + 1), 2))
        parts.append((name, keys, own, generator.choice([None, (begin, end)])))
    answers = rows.get(parts)
    assert answers == [one_by_one.pool.get_pages(one_by_one.layouts[name], *rest, status=True) for name, *rest in parts]
    assert np.array_equal(rows.memory.array[: one_by_one.memory.nbytes], one_by_one.memory.array)
    rows.pool.unregister_memory(one_by_one.memory.address)


def test_what_is_evicted_meanwhile_is_missed_and_never_wrong() -> None:
    with open_pool(64 << 10, copy_threads=1, hugepages=False) as pool:
        rows, source = ComponentRows(pool), np.zeros(2048, np.uint8)
        pool.register_array(source)
        stop, failed = threading.Event(), []

        def churn() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                if not pool.put([f"filler {number}"], [source.ctypes.data], [2048])[0]:
                    failed.append(number)

        thread = threading.Thread(target=churn)
        thread.start()
        seen = {OK: 0, MISSING: 0}
        generator = random.Random(3)
        try:
            for turn in range(400):
                if turn % 8 == 0:
                    rows.store(KEYS[:4], ["c4", "c128"])
                own = generator.sample(range(ROWS), 8)
                rows.memory.reset()
                for answers in rows.get([("c4", KEYS[:4], own[:4]), ("c128", KEYS[:4], own[4:])]):
                    for answer in answers:
                        seen[answer] += 1
                if turn >= 40 and all(seen.values()):
                    break
        finally:
            stop.set()
            thread.join()
        assert not failed
        assert all(seen.values()), seen


# --- what is refused ---------------------------------------------------------------------------

Parts = Callable[[ComponentRows], Any]


def overlay(rows: ComponentRows, offset: int, stride: int, nbytes: int = 64, count: int = 8) -> PageLayout:
    """A layout of another component in the spare bytes of the buffer."""
    space = rows.pool.namespace(f"overlay {offset} {stride} {nbytes}", ["x"])
    base = rows.memory.address + rows.memory.nbytes - 8192 + offset
    return rows.pool.page_layout(
        space, "x", rows=count, bases=[base], strides=[stride], sizes=[nbytes], object_offsets=[0]
    )


REFUSED: dict[str, tuple[Parts, type[Exception], str]] = {
    "a row twice in a part": (lambda r: [("c4", KEYS[:2], [1, 1])], InvalidBatchError, "row 1 stands twice"),
    "a row in two parts of a layout": (
        lambda r: [("c4", KEYS[:2], [1, 2]), ("c128", KEYS[:1], [2]), ("c4", KEYS[2:3], [2])],
        InvalidBatchError,
        "destinations overlap",
    ),
    "a row in two windows that meet": (
        lambda r: [("c4", KEYS[:1], [1], (0, 2)), ("c4", KEYS[:1], [1], (1, 3))],
        InvalidBatchError,
        "destinations overlap",
    ),
    "fewer rows than keys": (lambda r: [("c4", KEYS[:1], [0]), ("c128", KEYS[:2], [1])], InvalidBatchError, "2 keys"),
    "more rows than keys": (lambda r: [("c4", KEYS[:1], [0]), ("c128", KEYS[:1], [1, 2])], InvalidBatchError, "1 keys"),
    "a row beyond": (lambda r: [("c4", KEYS[:1], [0]), ("c128", KEYS[:1], [ROWS])], InvalidBatchError, "row 16"),
    "a negative row": (lambda r: [("c4", KEYS[:1], [0]), ("c128", KEYS[:1], [-1])], InvalidBatchError, "row -1"),
    "no such fragments": (lambda r: [("c4", KEYS[:1], [0], (0, 5))], InvalidBatchError, r"\[0, 5\)"),
    "an empty window": (lambda r: [("c4", KEYS[:1], [0], (1, 1))], InvalidBatchError, r"\[1, 1\)"),
    "three numbers for a window": (lambda r: [("c4", KEYS[:1], [0], (0, 1, 2))], InvalidBatchError, "3 entries"),
    "no rows": (lambda r: [("c4", KEYS[:1])], InvalidBatchError, "a part is a tuple"),
    "five members": (lambda r: [("c4", KEYS[:1], [0], None, None)], InvalidBatchError, "a part is a tuple"),
    "rows of another type": (lambda r: [("c4", KEYS[:1], "0")], InvalidBatchError, "rows must be"),
    "one string for keys": (lambda r: [("c4", "a", [0])], TypeError, "sequence"),
    "a number for a key": (lambda r: [("c4", [1], [0])], TypeError, "allowed: str or bytes"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_malformed_batch_is_refused_before_a_byte_moves(rows: ComponentRows, case: str) -> None:
    parts, error, words = REFUSED[case]
    before = rows.pool.stats()
    given = [(rows.layouts[name], *rest) for name, *rest in parts(rows)]
    with pytest.raises(error, match=words):
        rows.pool.get_components([(rows.layouts["indexer"], KEYS[:1], [0]), *given])
    rows.memory.check()
    after = rows.pool.stats()
    assert (after.hits, after.misses) == (before.hits, before.misses)


@pytest.mark.parametrize("part", [7, None, [1, 2, 3], (), "abc", ("layout", KEYS[:1], [0]), (None, KEYS[:1], [0])])
def test_a_part_that_is_none_is_refused(rows: ComponentRows, part: Any) -> None:
    for call in (rows.pool.get_components, rows.pool.put_components):
        with pytest.raises((InvalidBatchError, TypeError), match="part"):
            call([(rows.layouts["c4"], KEYS[:1], [0]), part])
    rows.memory.check()
    with pytest.raises(TypeError):
        rows.pool.get_components(7)  # type: ignore[call-overload]


def test_layouts_over_the_same_memory_are_refused_where_their_rows_meet(rows: ComponentRows) -> None:
    one, same = overlay(rows, 0, 128), overlay(rows, 0, 128)
    between, shifted, wide = overlay(rows, 64, 128), overlay(rows, 63, 128), overlay(rows, 0, 256, nbytes=129)

    def get(*parts: tuple[PageLayout, list[int]]) -> list[list[bool]]:
        return rows.pool.get_components([(layout, ["none"] * len(own), own) for layout, own in parts])

    assert get((one, [0, 1, 2]), (between, [0, 1, 2])) == [[False] * 3] * 2
    assert get((one, [0, 2, 4]), (same, [1, 3])) == [[False] * 3, [False] * 2]
    assert get((one, [0, 2]), (shifted, [1, 4])) == [[False] * 2] * 2
    assert get((one, [2, 7]), (wide, [0, 2])) == [[False] * 2] * 2
    for parts in (
        [(one, [0, 2, 4]), (same, [3, 4])],
        [(one, [5, 2]), (shifted, [0, 2])],
        [(shifted, [2]), (rows.layouts["c4"], [0]), (one, [2])],
        [(one, [3]), (wide, [1])],
        [(one, [7]), (wide, [3])],
        [(wide, [1]), (one, [3])],
    ):
        with pytest.raises(InvalidBatchError, match="destinations overlap"):
            get(*parts)
    rows.memory.check()


def test_memory_that_nobody_registered_is_refused(rows: ComponentRows) -> None:
    foreign = np.full(ROWS * 64, 0xEE, np.uint8)
    layout = rows.pool.page_layout(
        rows.spaces["c128"],
        "c128",
        rows=ROWS,
        bases=[foreign.ctypes.data],
        strides=[64],
        sizes=[64],
        object_offsets=[0],
    )
    with pytest.raises(UnregisteredMemoryError):
        rows.pool.get_components([(rows.layouts["c4"], KEYS[:1], [0]), (layout, KEYS[:1], [0])])
    rows.memory.check()
    assert (foreign == 0xEE).all()


def test_a_layout_of_another_pool_finds_nothing(rows: ComponentRows) -> None:
    with open_pool(MIB) as other:
        foreign = ComponentRows(other)
        foreign.store(KEYS)
        rows.pool.register_array(foreign.memory.array)
        parts = [(foreign.layouts["c4"], KEYS[:2], [0, 1]), (rows.layouts["c4"], KEYS[:2], [0, 1])]
        assert rows.pool.get_components(parts) == [[False] * 2, [True] * 2]
        assert rows.pool.get_pages(foreign.layouts["c4"], KEYS[:2], [0, 1]) == [False] * 2
        foreign.memory.check()
        rows.pool.unregister_memory(foreign.memory.address)


def test_before_open_and_after_close_and_in_a_subclass(rows: ComponentRows) -> None:
    with pytest.raises(PoolClosedError):
        Pool(PoolSettings(capacity_bytes=MIB)).get_components([])
    parts = rows.parts([("c4", KEYS[:1], [0])])
    assert type(rows.pool.get_components).__module__ == "nanobind"  # no frame of Python's between

    class Counting(Pool):
        calls = 0

        def get_components(self, *args: Any, **more: Any) -> Any:
            self.calls += 1
            return super().get_components(*args, **more)

    with Counting(PoolSettings(capacity_bytes=MIB)).open() as counting:
        assert counting.get_components([]) == []
        assert counting.calls == 1
    rows.pool.close()
    with pytest.raises(PoolClosedError):
        rows.pool.get_components(parts)


class Fresh(Sequence[Any]):
    """Parts that exist only while somebody holds them."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self._make, self._count = make, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if place >= self._count:
            raise IndexError(place)
        return self._make(place)


def test_parts_that_are_made_while_they_are_read_stay_alive(rows: ComponentRows) -> None:
    def make(place: int) -> Any:
        layout = rows.pool.page_layout(
            rows.spaces["c128"],
            "c128",
            rows=ROWS,
            bases=[rows.memory.address + rows.memory.nbytes - 8192],
            strides=[64],
            sizes=[64],
            object_offsets=[0],
        )
        return layout, [KEYS[place]], [place]

    parts = Fresh(make, 8)
    assert rows.pool.get_components(parts) == [[True]] * 8
    for place in range(8):
        rows.memory.expect(rows.memory.nbytes - 8192 + place * 64, page_of("c128", KEYS[place]))
    rows.memory.check()
    assert rows.pool.put_components(parts, status=True) == [[Status.EXISTS]] * 8


# --- sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("firm", [True, False], ids=["firm", "droppable"])
def test_a_session_reads_several_components_by_one_call(rows: ComponentRows, firm: bool) -> None:
    keys = [*KEYS[:5], "none", *KEYS[5:]]
    with rows.pool.pin(keys, namespace=rows.spaces["c4"], firm=firm) as session:
        rows.pool.remove(KEYS, namespace=rows.spaces["c4"])
        before = rows.pool.stats()
        parts: list[Any] = [("c4", [4, 9, 1], (1, 4)), ("indexer", [3, 2])]
        answers = session.get_components([(rows.layouts[name], *rest) for name, *rest in parts], first=4, status=True)
        assert answers == [[OK, Status.NOT_PINNED, OK], [OK, Status.NOT_PINNED]]
        wanted = [("c4", keys[4:7], [4, 9, 1], (1, 4)), ("indexer", keys[4:6], [3, 2])]
        rows.check(wanted, answers)
        after = rows.pool.stats()
        assert (after.get_calls - before.get_calls, after.hits - before.hits) == (1, 3)
        assert session.get_components([]) == []
        assert session.get_components([(rows.layouts["indexer"], [7])]) == [[True]]
        rows.check([("indexer", keys[:1], [7])], [[True]])


def test_a_session_refuses_what_its_get_pages_refuses(rows: ComponentRows) -> None:
    c4, c128 = rows.layouts["c4"], rows.layouts["c128"]
    session = rows.pool.pin(KEYS, namespace=rows.spaces["c4"])
    for parts, words in (
        ([(c4, [0]), (c128, [0])], "the session of"),
        ([(c4, [0]), (c4, [0])], "destinations overlap"),
        ([(c4, [0, 1, 2])], r"pages \[8, 11\)"),
        ([(c4,)], "a part is a tuple"),
        ([(c4, [0], None, None)], "a part is a tuple"),
        ([(c4, [0], (4, 5))], r"\[4, 5\)"),
    ):
        with pytest.raises(InvalidBatchError, match=words):
            session.get_components(parts, first=8)
    session.close()
    with pytest.raises(InvalidBatchError, match="closed"):
        session.get_components([(c4, [0])])
    rows.memory.check()


def test_a_session_that_was_let_go_of_is_read_by_a_look_up() -> None:
    pages = 6
    quota = pages * sum(sum(SIZES[name]) for name in ("c4", "indexer"))
    with open_pool(MIB, copy_threads=1, hugepages=False, session_quota_bytes=quota + 64 * 2 * pages) as pool:
        rows = ComponentRows(pool)
        rows.store(KEYS)
        space = rows.spaces["c4"]
        first = pool.pin(KEYS[:4], namespace=space, firm=False)
        with pool.pin(KEYS[4:9], namespace=space, firm=False):
            assert first.dropped
            pool.remove([KEYS[1]], namespace=space)
            answers = first.get_components(
                [(rows.layouts["c4"], [5, 6]), (rows.layouts["indexer"], [9, 8, 7], (0, 1))], first=1, status=True
            )
            assert answers == [[MISSING, OK], [MISSING, OK, OK]]
            rows.check([("c4", KEYS[1:3], [5, 6]), ("indexer", KEYS[1:4], [9, 8, 7], (0, 1))], answers)


# --- a pool of a node server -------------------------------------------------------------------


@pytest.fixture
def path() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory / "node.sock"


def test_a_node_client_reads_what_another_one_put_and_misses_once_the_server_is_gone(path: Path) -> None:
    parts: list[Any] = [
        ("c4", KEYS[:3], [2, 1, 0]),
        ("c128", ["none", *KEYS[3:5]], [5, 6, 7]),
        ("indexer", KEYS[:1], [1], (0, 1)),
    ]
    values: dict[str, Any] = {"copy_threads": 1, "standalone_address": f"unix:{path}"}
    with (
        serving(path, objects=64) as server,
        NodePool(PoolSettings(**values)).open() as writer,
        NodePool(PoolSettings(**values)).open() as reader,
    ):
        ComponentRows(writer).store(KEYS)
        rows = ComponentRows(reader)
        assert rows.get(parts) == [[OK] * 3, [MISSING, OK, OK], [OK]]
        assert reader.stats().get_calls == 1
        assert type(reader.get_components).__module__ == "nanobind"
        server.end()
        wait_until(lambda: not reader.connected)
        rows.memory.reset()
        assert rows.get(parts) == [[MISSING] * 3, [MISSING] * 3, [MISSING]]
        with pytest.raises(InvalidBatchError, match="destinations overlap"):
            reader.get_components(rows.parts([("c4", KEYS[:1], [0]), ("c4", KEYS[:1], [0])]))


# --- device memory -----------------------------------------------------------------------------


@pytest.fixture(params=["cuda", "hip"])
def rig(request: pytest.FixtureRequest) -> Iterator[DeviceRig]:
    with device_rig(request.param) as rig:
        yield rig


class DeviceRows:
    """Rows of two components on a device, and of a third in host memory."""

    def __init__(self, rig: DeviceRig, pool: Pool, device: int = 0) -> None:
        self.pool = pool
        self.space = pool.namespace("model", list(SIZES))
        self.host = np.full(ROWS * (64 + GAP), UNTOUCHED, np.uint8)
        pool.register_array(self.host)
        self.arrays, self.layouts = {}, {}
        for name in SIZES:
            bases, total = [], 0
            for nbytes in SIZES[name]:
                bases.append(total)
                total += ROWS * (nbytes + GAP)
            if name != "c128":
                self.arrays[name] = rig.array(total, device)
                pool.register_memory(self.arrays[name].address, total)
            address = self.host.ctypes.data if name == "c128" else self.arrays[name].address
            self.layouts[name] = pool.page_layout(
                self.space,
                name,
                rows=ROWS,
                bases=[address + base for base in bases],
                strides=[nbytes + GAP for nbytes in SIZES[name]],
                sizes=list(SIZES[name]),
                object_offsets=offsets_of(name),
            )

    def now(self, name: str) -> np.ndarray:
        return self.host.copy() if name == "c128" else self.arrays[name].now()

    def store(self) -> None:
        source = np.zeros(4096, np.uint8)
        self.pool.register_array(source)
        for name in SIZES:
            for key in KEYS:
                page = page_of(name, key)
                source[: page.nbytes] = page
                assert self.pool.put(
                    [key], [source.ctypes.data], [page.nbytes], namespace=self.layouts[name].component
                ) == [True]

    def check(self, parts: Sequence[Any]) -> None:
        """Exactly these pages are in their rows; everything else is UNTOUCHED."""
        for name in SIZES:
            expected = np.full(self.now(name).nbytes, UNTOUCHED, np.uint8)
            for _, keys, rows, *layers in (part for part in parts if part[0] == name):
                begin, end = layers[0] if layers else (0, len(SIZES[name]))
                for key, row in zip(keys, rows, strict=True):
                    at, page = 0, page_of(name, key)
                    for fragment, nbytes in enumerate(SIZES[name]):
                        if begin <= fragment < end:
                            offset = offsets_of(name)[fragment]
                            place = at + row * (nbytes + GAP)
                            expected[place : place + nbytes] = page[offset : offset + nbytes]
                        at += ROWS * (nbytes + GAP)
            assert np.array_equal(self.now(name), expected), name


PARTS: list[Any] = [
    ("c4", KEYS[:3], [4, 0, 9], (1, 4)),
    ("indexer", KEYS[2:6], [1, 15, 3, 2]),
    ("c128", KEYS[:2], [8, 7]),
]


@pytest.mark.parametrize("by_session", [False, True], ids=["by key", "session"])
def test_parts_on_a_device_and_in_host_memory_are_one_copy(rig: DeviceRig, by_session: bool) -> None:
    with rig.pool(staging_bytes=64 << 10) as pool:
        rows = DeviceRows(rig, pool)
        rows.store()
        wait_until(lambda: pool.stats().devices.pinned_bytes >= 1 << 20)
        before = pool.stats().devices
        parts = [(rows.layouts[name], *rest) for name, *rest in PARTS]
        wanted = PARTS
        if by_session:
            with pool.pin(KEYS, namespace=rows.space) as session:
                answers = session.get_components([(layout, *rest) for layout, _, *rest in parts], first=2)
            wanted = [(name, KEYS[2 : 2 + len(keys)], *rest) for name, keys, *rest in PARTS]
        else:
            answers = pool.get_components(parts)
        assert answers == [[True] * 3, [True] * 4, [True] * 2]
        rows.check(wanted)
        after = pool.stats().devices
        assert sum(after.by_way.values()) - sum(before.by_way.values()) == 1
        assert after.fragments - before.fragments == 3 * 3 + 4 * 2
        one_by_one = pool.stats().devices
        for layout, *rest in parts[:2]:
            assert all(pool.get_pages(layout, *rest))
        assert sum(pool.stats().devices.by_way.values()) - sum(one_by_one.by_way.values()) == 2


def test_parts_on_two_devices(rig: DeviceRig) -> None:
    with rig.pool(staging_bytes=64 << 10) as pool:
        rows, second = DeviceRows(rig, pool), DeviceRows(rig, pool, device=1)
        rows.store()
        parts = [(rows.layouts["c4"], KEYS[:2], [0, 1]), (second.layouts["indexer"], KEYS[:2], [3, 2])]
        assert pool.get_components(parts) == [[True] * 2] * 2
        rows.check([("c4", KEYS[:2], [0, 1])])
        second.check([("indexer", KEYS[:2], [3, 2])])


@pytest.mark.parametrize("by", ["stream", "event"])
def test_no_byte_is_written_before_the_work_that_uses_the_rows_is_done(rig: DeviceRig, by: str) -> None:
    stream, event = rig.api.create_stream(0), rig.api.create_event(0)
    with rig.pool() as pool:
        rows = DeviceRows(rig, pool)
        rows.store()
        array = rows.arrays["indexer"]
        parts = [(rows.layouts[name], *rest) for name, *rest in PARTS]
        rig.fake.queue_write(stream, array.address, np.full(array.nbytes, UNTOUCHED, np.uint8))
        rig.api.record_event(0, event, stream)
        assert pool.get_components(parts, **{by: {"stream": stream, "event": event}[by]}) == [
            [True] * 3,
            [True] * 4,
            [True] * 2,
        ]
        rig.api.synchronize_stream(0, stream)
        rows.check(PARTS)
        with pytest.raises(InvalidBatchError, match=f"{by}="):
            pool.get_components(parts, **{by: 0})
    rig.api.destroy_event(0, event)
    rig.api.destroy_stream(0, stream)
