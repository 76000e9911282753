"""The pool against its twin: random calls on a pool so small that it evicts all the time."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from patterns import GUARD_NBYTES, Memory, Places, pattern
from pool_client import open_pool
from pool_twin import Ask, Held, PoolTwin

from sglang_umbp import PageLayout, Pool, Session, Status

KIB = 1 << 10
CAPACITY = 16 * KIB
SMALLEST = CAPACITY // 64
"""What a put makes at least when a pass over the names took long; so exactly one object more."""
KEYS: list[str | bytes] = ["", "\0", b"\xff", "ключ", *map(str, range(16))]
FRAGMENTS = {"k": [300, 64, 500, 1], "v": [1728, 129]}
ROWS = 6
ROW_GAP = 40
"""Sentinel bytes between the rows of a fragment."""
MAX_BATCH = 6

keys_of_batch = st.lists(st.sampled_from(KEYS), min_size=1, max_size=MAX_BATCH)
seeds = st.integers(0, 2**32 - 1)


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def tiling(generator: random.Random, nbytes: int) -> list[tuple[int, int]]:
    """Ranges (offset, nbytes) that tile an object, in random order."""
    count = min(generator.randrange(0, 5), nbytes - 1)
    borders = [0, *sorted(generator.sample(range(1, nbytes), count)), nbytes]
    ranges = [(low, high - low) for low, high in pairwise(borders)]
    generator.shuffle(ranges)
    return ranges


def spoil(generator: random.Random, ranges: list[tuple[int, int]], nbytes: int) -> tuple[list[tuple[int, int]], Status]:
    """The ranges with one mistake, and the answer that it must get."""
    index = generator.randrange(len(ranges))
    offset = ranges[index][0]
    before, after = ranges[:index], ranges[index + 1 :]
    mistakes = [
        ([*before, *after], Status.NOT_TILED if len(ranges) > 1 else Status.BAD_RANGE),
        ([*ranges, ranges[index]], Status.NOT_TILED),
        ([*ranges, (offset, 0)], Status.BAD_RANGE),
        ([*ranges, (nbytes, 1)], Status.BAD_RANGE),
        ([*before, (offset, nbytes - offset + 1), *after], Status.BAD_RANGE),
    ]
    return generator.choice(mistakes)


@dataclass
class OpenSession:
    session: Session
    objects: list[list[Held] | None]
    component: str | None  # None: raw keys


class ExactMachine(RuleBasedStateMachine):
    """Every answer and every byte is predicted. Sizes are such that fragments never matter."""

    index_entries = 65_536  # the slack that comes with them keeps fragmentation away

    @initialize()
    def open(self) -> None:
        self.pool = self.make_pool()
        self.twin = PoolTwin(CAPACITY, self.index_entries)
        self.space = self.pool.namespace("model", list(FRAGMENTS))
        self.make_memories()
        self.sessions: list[OpenSession] = []
        self.version = 0

    def make_pool(self, **settings: Any) -> Pool:
        return open_pool(
            CAPACITY,
            deadline_s=0,
            session_quota_bytes=1 << 40,
            copy_threads=1,
            index_entries=self.index_entries,
            **settings,
        )

    def make_memories(self) -> None:
        """What calls name that make no memory of their own."""
        self.source, self.destination, self.pages = (self.new_memory(64 * KIB) for _ in range(3))
        self.bases: dict[str, list[int]] = {}
        places = Places(self.pages)
        self.layouts = {name: self.make_layout(name, places) for name in FRAGMENTS}

    def new_memory(self, nbytes: int) -> Memory:
        """Memory that the pool may be told to use, until drop_memory."""
        memory = Memory(nbytes)
        self.pool.register_array(memory.array)
        return memory

    def drop_memory(self, memory: Memory) -> None:
        self.pool.unregister_memory(memory.address)

    def make_layout(self, component: str, places: Places) -> PageLayout:
        sizes = FRAGMENTS[component]
        strides = [size + ROW_GAP for size in sizes]
        self.bases[component] = [places.take(stride * ROWS) for stride in strides]
        return self.pool.page_layout(
            self.space,
            component,
            rows=ROWS,
            bases=[self.pages.address + base for base in self.bases[component]],
            strides=strides,
            sizes=sizes,
            object_offsets=np.cumsum([0, *sizes[:-1]]),
        )

    # Names of twin and pool -----------------------------------------------------------------------

    def twin_key(self, component: str | None, key: str | bytes) -> Hashable:
        return component, key.encode() if isinstance(key, str) else key

    def where(self, component: str | None) -> Any:
        return None if component is None else self.space.component(component)

    def new_data(self, nbytes: int) -> np.ndarray:
        self.version += 1
        return pattern(self.version, nbytes)

    def sizes_of(self, component: str | None, keys: Sequence[Any], seed: int) -> list[int]:
        """Mostly the size under which a key is stored, so that puts meet existing objects."""
        generator = random.Random(seed)
        sizes: dict[Any, int] = {}
        chosen = []
        for key in keys:
            name = self.twin_key(component, key)
            usual = SMALLEST + zlib.crc32(repr(name).encode()) % 3000
            if name in self.twin.objects:
                usual = self.twin.objects[name].nbytes
            usual = sizes.get(name, usual)
            odd = generator.choice([SMALLEST, CAPACITY // 3, CAPACITY, CAPACITY + 1])
            sizes[name] = odd if generator.random() < 0.15 else usual
            chosen.append(sizes[name])
        return chosen

    # Puts -----------------------------------------------------------------------------------------

    components = st.sampled_from([None, "k", "v"])

    @rule(component=components, keys=keys_of_batch, seed=seeds)
    def put_whole(self, component: str | None, keys: list[Any], seed: int) -> None:
        sizes = self.sizes_of(component, keys, seed)
        asks = [Ask(self.twin_key(component, key), self.new_data(size)) for key, size in zip(keys, sizes, strict=True)]
        room = self.new_memory(sum(sizes) + 1)
        at, addresses = 0, []
        for ask in asks:
            addresses.append(room.write(at, ask.data))
            at += ask.nbytes
        answers = self.pool.put(keys, addresses, sizes, namespace=self.where(component), status=True)
        self.drop_memory(room)
        assert answers == self.twin.put(asks)

    @rule(component=components, keys=keys_of_batch, seed=seeds, arrays=st.booleans())
    def put_ranges(self, component: str | None, keys: list[Any], seed: int, arrays: bool) -> None:
        generator = random.Random(seed)
        sizes = [min(size, 4 * KIB) for size in self.sizes_of(component, keys, seed)]
        places = Places(self.source)
        places.clear()
        asks, columns = [], ([], [], [])
        for key, size in zip(keys, sizes, strict=True):
            ask = Ask(self.twin_key(component, key), self.new_data(size))
            ranges = tiling(generator, size)
            if generator.random() < 0.1:
                ranges, ask.refusal = spoil(generator, ranges, size)
            asks.append(ask)
            parts = [self.source.write(places.take(n), pattern_part(ask.data, low, n)) for low, n in ranges]
            columns[0].append(parts)
            columns[1].append([n for _, n in ranges])
            columns[2].append([low for low, _ in ranges])
        positional, named = as_arrays(columns) if arrays else (columns, {})
        answers = self.pool.put_ranges(keys, sizes, *positional, namespace=self.where(component), status=True, **named)
        assert answers == self.twin.put(asks)
        self.source.check()

    @rule(component=st.sampled_from(sorted(FRAGMENTS)), keys=keys_of_batch, seed=seeds)
    def put_pages(self, component: str, keys: list[Any], seed: int) -> None:
        rows = random.Random(seed).sample(range(ROWS), len(keys))
        self.pages.reset()
        asks = self.page_asks(component, keys, rows)
        assert self.pool.put_pages(self.layouts[component], keys, rows, status=True) == self.twin.put(asks)
        self.pages.check()

    @rule(keys=st.lists(keys_of_batch, min_size=0, max_size=2), turn=st.booleans(), seed=seeds)
    def put_components(self, keys: list[list[Any]], turn: bool, seed: int) -> None:
        """One batch: no part makes room at the cost of another one."""
        generator = random.Random(seed)
        components = sorted(FRAGMENTS, reverse=turn)[: len(keys)]
        rows = [generator.sample(range(ROWS), len(some)) for some in keys]
        self.pages.reset()
        asks = [self.page_asks(*part) for part in zip(components, keys, rows, strict=True)]
        parts = [(self.layouts[name], *part) for name, *part in zip(components, keys, rows, strict=True)]
        answers = self.pool.put_components(parts, status=True)
        assert list(map(len, answers)) == list(map(len, keys))
        assert list(chain(*answers)) == self.twin.put(list(chain(*asks)))
        self.pages.check()

    def page_asks(self, component: str, keys: list[Any], rows: list[int]) -> list[Ask]:
        """Writes new pages into the rows."""
        layout = self.layouts[component]
        asks = []
        for key, row in zip(keys, rows, strict=True):
            ask = Ask(self.twin_key(component, key), self.new_data(layout.object_bytes))
            self.each_fragment(component, row, (0, layout.fragments), ask.data, self.pages.write)
            asks.append(ask)
        return asks

    def each_fragment(
        self,
        component: str,
        row: int,
        layers: tuple[int, int],
        data: np.ndarray,
        call: Callable[[int, np.ndarray], object],
    ) -> None:
        """Calls with the offset in self.pages and the bytes of each fragment of a page."""
        sizes = FRAGMENTS[component]
        starts = np.cumsum([0, *sizes])
        for j in range(*layers):
            at = self.bases[component][j] + row * (sizes[j] + ROW_GAP)
            call(at, data[starts[j] : starts[j + 1]])

    # Gets -----------------------------------------------------------------------------------------

    @rule(component=components, keys=keys_of_batch, wrong=st.integers(0, 5))
    def get_whole(self, component: str | None, keys: list[Any], wrong: int) -> None:
        names = [self.twin_key(component, key) for key in keys]
        there = [self.twin.objects.get(name) for name in names]
        sizes = [held.nbytes if held else 100 for held in there]
        if wrong < len(sizes):
            sizes[wrong] += (-1, 1)[wrong % 2]
        room = self.new_memory(sum(sizes) + GUARD_NBYTES * (len(sizes) + 1))
        places, expected, addresses = Places(room), [], []
        for held, size in zip(there, sizes, strict=True):
            place = places.take(size)
            addresses.append(room.address + place)
            if held is None:
                expected.append(Status.MISSING)
            elif held.nbytes != size:
                expected.append(Status.SIZE_MISMATCH)
            else:
                expected.append(Status.OK)
                room.expect(place, held.data)
        answers = self.pool.get(keys, addresses, sizes, namespace=self.where(component), status=True)
        assert answers == expected
        room.check()
        self.drop_memory(room)
        self.twin.use(names)

    def ask_ranges(
        self, objects: Sequence[Held | None], seed: int, missing: Status
    ) -> tuple[tuple[list[Any], list[Any], list[Any]], list[Status]]:
        """Random ranges of objects, some outside; the answers, with the bytes in the destination."""
        generator = random.Random(seed)
        places = Places(self.destination)
        places.clear()
        columns: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        expected = []
        for held in objects:
            nbytes = held.nbytes if held else 1000
            ranges = []
            for _ in range(generator.randrange(1, 4)):
                offset = generator.randrange(nbytes)
                ranges.append((offset, generator.randrange(1, min(2000, nbytes - offset) + 1)))
            good = generator.random() < 0.85
            if not good:
                bad = generator.choice([(nbytes, 1), (0, nbytes + 1), (5, 0), (2**64 - 1, 2)])
                ranges.insert(generator.randrange(len(ranges) + 1), bad)
            offsets = [places.take(min(n, 20 * KIB)) for _, n in ranges]
            columns[0].append([self.destination.address + at for at in offsets])
            columns[1].append([n for _, n in ranges])
            columns[2].append([low for low, _ in ranges])
            expected.append(missing if held is None else Status.OK if good else Status.BAD_RANGE)
            if expected[-1] is Status.OK:
                for at, (low, n) in zip(offsets, ranges, strict=True):
                    self.destination.expect(at, held.data[low : low + n])
        return columns, expected

    @rule(component=components, keys=keys_of_batch, seed=seeds, arrays=st.booleans())
    def get_ranges(self, component: str | None, keys: list[Any], seed: int, arrays: bool) -> None:
        keys = keys[:2]
        names = [self.twin_key(component, key) for key in keys]
        there = [self.twin.objects.get(name) for name in names]
        columns, expected = self.ask_ranges(there, seed, Status.MISSING)
        positional, named = as_arrays(columns) if arrays else (columns, {})
        answers = self.pool.get_ranges(keys, *positional, namespace=self.where(component), status=True, **named)
        assert answers == expected
        self.destination.check()
        self.twin.use(names)

    def expect_pages(
        self,
        component: str,
        objects: Sequence[Held | None],
        rows: Sequence[int],
        layers: tuple[int, int],
        missing: Status,
    ) -> list[Status]:
        """The answers of a get of pages; what it must write is expected in self.pages, reset before."""
        expected = []
        for held, row in zip(objects, rows, strict=True):
            if held is None:
                expected.append(missing)
            elif held.nbytes != self.layouts[component].object_bytes:
                expected.append(Status.SIZE_MISMATCH)
            else:
                expected.append(Status.OK)
                self.each_fragment(component, row, layers, held.data, self.pages.expect)
        return expected

    def rows_and_layers(self, component: str, count: int, seed: int) -> tuple[list[int], tuple[int, int]]:
        generator = random.Random(seed)
        begin = generator.randrange(self.layouts[component].fragments)
        end = generator.randrange(begin, self.layouts[component].fragments) + 1
        return generator.sample(range(ROWS), count), (begin, end)

    @rule(component=st.sampled_from(sorted(FRAGMENTS)), keys=keys_of_batch, seed=seeds)
    def get_pages(self, component: str, keys: list[Any], seed: int) -> None:
        rows, layers = self.rows_and_layers(component, len(keys), seed)
        names = [self.twin_key(component, key) for key in keys]
        there = [self.twin.objects.get(name) for name in names]
        self.pages.reset()
        expected = self.expect_pages(component, there, rows, layers, Status.MISSING)
        layout = self.layouts[component]
        assert self.pool.get_pages(layout, keys, rows, layers, status=True) == expected
        self.pages.check()
        self.twin.use(names)

    @rule(keys=st.lists(keys_of_batch, min_size=0, max_size=2), turn=st.booleans(), seed=seeds)
    def get_components(self, keys: list[list[Any]], turn: bool, seed: int) -> None:
        components = sorted(FRAGMENTS, reverse=turn)[: len(keys)]
        parts, expected, names = [], [], []
        self.pages.reset()
        for component, some in zip(components, keys, strict=True):
            rows, layers = self.rows_and_layers(component, len(some), seed)
            parts.append((self.layouts[component], some, rows, layers))
            names += [self.twin_key(component, key) for key in some]
            there = [self.twin.objects.get(name) for name in names[-len(some) :]]
            expected.append(self.expect_pages(component, there, rows, layers, Status.MISSING))
        assert self.pool.get_components(parts, status=True) == expected
        self.pages.check()
        self.twin.use(names)

    # Look-ups, removal, sessions ------------------------------------------------------------------

    def page_keys(self, named: bool, key: Any) -> list[Hashable]:
        return [self.twin_key(component, key) for component in (FRAGMENTS if named else [None])]

    @rule(named=st.booleans(), keys=keys_of_batch)
    def exists(self, named: bool, keys: list[Any]) -> None:
        space = self.space if named else None
        there = [all(name in self.twin.objects for name in self.page_keys(named, key)) for key in keys]
        assert self.pool.exists(keys, namespace=space) == there
        prefix = there.index(False) if False in there else len(there)
        assert self.pool.exists_prefix(keys, namespace=space) == prefix

    @rule(named=st.booleans(), keys=st.lists(st.sampled_from(KEYS), max_size=2))
    def remove(self, named: bool, keys: list[Any]) -> None:
        width = len(FRAGMENTS) if named else 1
        names = [name for key in keys for name in self.page_keys(named, key)]
        removed = self.twin.remove(names)
        expected = [any(removed[at : at + width]) for at in range(0, len(removed), width)]
        assert self.pool.remove(keys, namespace=self.space if named else None) == expected

    @rule(seed=seeds)
    def clear_rarely(self, seed: int) -> None:
        if seed % 8 == 0:
            self.pool.clear()
            self.twin.clear()

    @precondition(lambda self: len(self.sessions) < 3)
    @rule(named=st.booleans(), keys=keys_of_batch)
    def pin(self, named: bool, keys: list[Any]) -> None:
        session = self.pool.pin(keys, namespace=self.space if named else None)
        pages = self.twin.pin([self.page_keys(named, key) for key in keys])
        assert session.hits == [page is not None for page in pages]
        assert session.nbytes == sum(held.nbytes for page in pages if page for held in page)
        self.sessions.append(OpenSession(session, pages, "both" if named else None))

    @precondition(lambda self: self.sessions)
    @rule(seed=seeds)
    def close_session(self, seed: int) -> None:
        opened = self.sessions.pop(seed % len(self.sessions))
        opened.session.close()
        self.twin.release(opened.objects)

    @precondition(lambda self: self.sessions)
    @rule(seed=seeds)
    def read_session(self, seed: int) -> None:
        opened = self.sessions[seed % len(self.sessions)]
        named = opened.component is not None
        component = sorted(FRAGMENTS)[seed % 2] if named else None
        part = list(FRAGMENTS).index(component) if component else 0
        first = seed % len(opened.objects)
        there = [page[part] if page else None for page in opened.objects[first : first + 2]]
        columns, expected = self.ask_ranges(there, seed, Status.NOT_PINNED)
        answers = opened.session.get_ranges(*columns, first=first, component=component, status=True)
        assert answers == expected
        self.destination.check()
        if component:
            self.read_session_pages(opened, component, there, first, seed)
            self.read_session_components(opened, first, seed)

    def read_session_components(self, opened: OpenSession, first: int, seed: int) -> None:
        parts, expected = [], []
        self.pages.reset()
        for number, component in enumerate(FRAGMENTS):
            there = [page[number] if page else None for page in opened.objects[first : first + 3]]
            rows, layers = self.rows_and_layers(component, len(there), seed)
            parts.append((self.layouts[component], rows, layers))
            expected.append(self.expect_pages(component, there, rows, layers, Status.NOT_PINNED))
        assert opened.session.get_components(parts, first=first, status=True) == expected
        self.pages.check()

    def read_session_pages(
        self,
        opened: OpenSession,
        component: str,
        there: Sequence[Held | None],
        first: int,
        seed: int,
    ) -> None:
        rows, layers = self.rows_and_layers(component, len(there), seed)
        self.pages.reset()
        expected = self.expect_pages(component, there, rows, layers, Status.NOT_PINNED)
        layout = self.layouts[component]
        answers = opened.session.get_pages(layout, rows, layers, first=first, status=True)
        assert answers == expected
        self.pages.check()

    # Always ---------------------------------------------------------------------------------------

    @invariant()
    def sizes_agree(self) -> None:
        stats = self.pool.stats()
        assert stats.objects == len(self.twin.objects)
        assert stats.live_bytes == self.twin.live_bytes
        assert stats.live_bytes <= stats.used_bytes <= CAPACITY
        assert stats.used_bytes == CAPACITY - self.twin.free_bytes()
        assert stats.evicted == self.twin.evicted
        assert stats.sessions == len(self.sessions)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        try:
            for component in (None, *FRAGMENTS):
                for key in KEYS:
                    self.get_whole(component, [key], MAX_BATCH)
        finally:
            self.pool.close()


class FewEntriesMachine(ExactMachine):
    """The index is full before the bytes are: small objects, and a bucket has words for all of them."""

    index_entries = 8

    def sizes_of(self, component: str | None, keys: Sequence[Any], seed: int) -> list[int]:
        return [min(size, SMALLEST + 64) for size in super().sizes_of(component, keys, seed)]


def pattern_part(data: np.ndarray, low: int, nbytes: int) -> np.ndarray:
    """nbytes of data from low on; what lies outside the object is anything."""
    part = np.zeros(nbytes, dtype=np.uint8)
    inside = data[low : low + nbytes]
    part[: inside.nbytes] = inside
    return part


def as_arrays(
    columns: tuple[list[Any], list[Any], list[Any]],
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    starts = np.cumsum([0, *map(len, columns[0])], dtype=np.uint64)
    flat = [np.array([value for part in column for value in part], dtype=np.uint64) for column in columns]
    return flat, {"starts": starts}


class LooseMachine(RuleBasedStateMachine):
    """Sizes without order in an arena without slack: who is evicted is open, bytes are not."""

    @initialize()
    def open(self) -> None:
        self.pool = open_pool(CAPACITY, deadline_s=0, index_entries=64)
        self.memory = Memory(5 * CAPACITY)
        self.pool.register_array(self.memory.array)
        self.stored: dict[Any, np.ndarray] = {}
        self.sessions: list[tuple[Session, list[Any], list[np.ndarray | None]]] = []
        self.version = 0

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True),
        sizes=st.lists(st.one_of(st.integers(1, 200), st.integers(1, CAPACITY)), min_size=5, max_size=5),
    )
    def put(self, keys: list[Any], sizes: list[int]) -> None:
        datas = []
        for size in sizes[: len(keys)]:
            self.version += 1
            datas.append(pattern(self.version, size))
        self.memory.reset()
        addresses = [self.memory.write(CAPACITY * i, data) for i, data in enumerate(datas)]
        answers = self.pool.put(keys, addresses, [data.nbytes for data in datas], status=True)
        for key, data, answer in zip(keys, datas, answers, strict=True):
            if answer is Status.OK:
                self.stored[key] = data
            elif answer is Status.EXISTS:
                assert self.stored[key].nbytes == data.nbytes
            else:
                assert answer in (Status.SIZE_MISMATCH, Status.NO_SPACE)
        pinned = any(data is not None for _, _, datas in self.sessions for data in datas)
        if not pinned and sum(data.nbytes for data in datas) <= CAPACITY:
            assert Status.NO_SPACE not in answers
        assert self.present(keys) == [bool(answer) for answer in self.answered(keys, answers)]

    def answered(self, keys: list[Any], answers: list[Status]) -> list[bool]:
        """What must be readable: whatever was answered True, and objects of another size."""
        return [
            bool(answer) or (answer is Status.SIZE_MISMATCH and self.pool.exists([key])[0])
            for key, answer in zip(keys, answers, strict=True)
        ]

    def present(self, keys: list[Any]) -> list[bool]:
        """Reads each key that was ever stored; the bytes of what is there are checked."""
        found = []
        for key in keys:
            data = self.stored.get(key, np.zeros(1, dtype=np.uint8))
            self.memory.reset()
            place = GUARD_NBYTES
            (answer,) = self.pool.get([key], [self.memory.address + place], [data.nbytes])
            if answer:
                self.memory.expect(place, data)
            self.memory.check()
            found.append(answer)
        return found

    @rule()
    def read_everything(self) -> None:
        exists = self.pool.exists(KEYS)
        assert self.present(KEYS) == exists

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3))
    def remove(self, keys: list[Any]) -> None:
        self.pool.remove(keys)
        assert not any(self.pool.exists(keys))

    @precondition(lambda self: len(self.sessions) < 3)
    @rule(keys=keys_of_batch)
    def pin(self, keys: list[Any]) -> None:
        session = self.pool.pin(keys)
        held = [self.stored[key] if hit else None for key, hit in zip(keys, session.hits, strict=True)]
        self.sessions.append((session, keys, held))

    @precondition(lambda self: self.sessions)
    @rule(number=seeds)
    def read_and_close_session(self, number: int) -> None:
        session, _, held = self.sessions.pop(number % len(self.sessions))
        for page, data in enumerate(held):
            self.memory.reset()
            size = 1 if data is None else data.nbytes
            ranges = [[self.memory.address + GUARD_NBYTES]], [[size]], [[0]]
            assert session.get_ranges(*ranges, first=page) == [data is not None]
            if data is not None:
                self.memory.expect(GUARD_NBYTES, data)
            self.memory.check()
        session.close()

    @invariant()
    def capacity_holds(self) -> None:
        stats = self.pool.stats()
        assert stats.live_bytes <= stats.used_bytes <= CAPACITY

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.close()


@pytest.mark.soak
@pytest.mark.timeout(900)  # a failure is made small for up to five minutes
def test_the_pool_answers_as_its_twin_in_plain_python(soak_scale: int) -> None:
    run_machine(ExactMachine, examples=250 * soak_scale, steps=50)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_pool_of_few_index_entries_answers_as_its_twin(soak_scale: int) -> None:
    run_machine(FewEntriesMachine, examples=100 * soak_scale, steps=50)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_whatever_the_sizes_every_answer_true_is_byte_exact(soak_scale: int) -> None:
    run_machine(LooseMachine, examples=200 * soak_scale, steps=40)
