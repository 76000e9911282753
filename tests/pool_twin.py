"""The pool in plain Python: a dict in the order of last use, and what sessions hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sglang_umbp import Status


@dataclass(eq=False)
class Held:
    """One object; sessions may outlive its place in the index."""

    data: np.ndarray
    pins: int = 0

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass
class Ask:
    """One key of a put. refusal: what is wrong with its ranges, if anything."""

    key: Hashable
    data: np.ndarray
    refusal: Status | None = None

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass
class PoolTwin:
    """Predicts every answer of one thread's calls, with a deadline of 0: nobody waits.

    A removed object that a session holds keeps its room until a pass finds it unnamed; passes run
    in remove, in clear, and when a put lacks room.
    """

    capacity: int
    entries: int
    objects: OrderedDict[Hashable, Held] = field(default_factory=OrderedDict)
    retired: list[Held] = field(default_factory=list)
    evicted: int = 0

    @property
    def live_bytes(self) -> int:
        return sum(held.nbytes for held in self.objects.values())

    def use(self, keys: Iterable[Hashable]) -> None:
        """Marks those that are there as used, in this order. A get of a bad range counts too."""
        for key in keys:
            if key in self.objects:
                self.objects.move_to_end(key)

    def put(self, asks: Sequence[Ask]) -> list[Status]:
        return _Put(self, asks).run()

    def remove(self, keys: Iterable[Hashable]) -> list[bool]:
        removed = [self._retire(key) for key in keys]
        self.free_unnamed()
        return removed

    def clear(self) -> None:
        self.remove(list(self.objects))

    def pin(self, pages: Iterable[Sequence[Hashable]]) -> list[list[Held] | None]:
        """Per page, its objects if all are there; a page is a sequence of keys."""
        session: list[list[Held] | None] = []
        for keys in pages:
            whole = all(key in self.objects for key in keys)
            session.append([self.objects[key] for key in keys] if whole else None)
            if whole:
                self.use(keys)
        for held in (held for page in session if page for held in page):
            held.pins += 1
        return session

    def release(self, session: list[list[Held] | None]) -> None:
        for held in (held for page in session if page for held in page):
            held.pins -= 1

    def free_bytes(self) -> int:
        return self.capacity - self.live_bytes - sum(held.nbytes for held in self.retired)

    def free_entries(self) -> int:
        return self.entries - len(self.objects) - len(self.retired)

    def free_unnamed(self) -> bool:
        """A pass. Returns whether it freed something."""
        before = len(self.retired)
        self.retired = [held for held in self.retired if held.pins]
        return len(self.retired) < before

    def evict(self, nbytes: int, entries: int, members: set[Hashable]) -> bool:
        """The least recently used go until that much is free. Returns whether one went."""
        freed = count = 0
        for key in [key for key, held in self.objects.items() if not held.pins]:
            if freed >= nbytes and count >= entries:
                break
            if key not in members:
                freed += self.objects[key].nbytes
                count += 1
                self._retire(key)
                self.evicted += 1
        self.free_unnamed()
        return count > 0

    def _retire(self, key: Hashable) -> bool:
        if key not in self.objects:
            return False
        self.retired.append(self.objects.pop(key))
        return True


class _Put:
    """One put batch: who is there, who can fit, room, then all of it becomes visible in order."""

    def __init__(self, twin: PoolTwin, asks: Sequence[Ask]) -> None:
        self._twin = twin
        self._asks = asks
        self._answers: list[Status | None] = [self._first_answer(ask) for ask in asks]

    def run(self) -> list[Status]:
        new = self._who_can_fit()
        stored = self._make_room(new)
        for number, ask in enumerate(self._asks):
            if self._answers[number] is None:
                self._answers[number] = self._late_answer(number, new, stored)
            if self._answers[number] is Status.OK:
                self._twin.objects[ask.key] = Held(ask.data)
            if self._answers[number]:
                self._twin.use([ask.key])
        return [answer for answer in self._answers if answer is not None]

    def _first_answer(self, ask: Ask) -> Status | None:
        there = self._twin.objects.get(ask.key)
        if ask.refusal is not None:
            return ask.refusal
        if ask.nbytes > self._twin.capacity:
            return Status.TOO_LARGE
        if there is None:
            return None
        return Status.EXISTS if there.nbytes == ask.nbytes else Status.SIZE_MISMATCH

    def _members(self) -> set[Hashable]:
        return {ask.key for ask, answer in zip(self._asks, self._answers, strict=True) if answer is Status.EXISTS}

    def _who_can_fit(self) -> dict[Hashable, int]:
        """Numbers of the asks that get room beside the members before them, by key."""
        members = self._members()
        total = sum(self._twin.objects[key].nbytes for key in members)
        new: dict[Hashable, int] = {}
        for number, ask in enumerate(self._asks):
            if self._answers[number] is not None or ask.key in new:
                continue
            full = len(members) + len(new) >= self._twin.entries
            if full or total + ask.nbytes > self._twin.capacity:
                self._answers[number] = Status.NO_SPACE
            else:
                new[ask.key] = number
                total += ask.nbytes
        return new

    def _make_room(self, new: dict[Hashable, int]) -> set[int]:
        """Numbers of those that get it; without victims left, who comes first gets what is free."""
        pending = list(new.values())
        taken: set[int] = set()
        twin = self._twin
        while True:
            free = twin.free_bytes() - sum(self._asks[number].nbytes for number in taken)
            entries = twin.free_entries() - len(taken)
            for number in list(pending):
                if self._asks[number].nbytes <= free and entries > 0:
                    free -= self._asks[number].nbytes
                    entries -= 1
                    pending.remove(number)
                    taken.add(number)
            if not pending:
                return taken
            nbytes = sum(self._asks[number].nbytes for number in pending) - free
            lacking = len(pending) - entries
            if not twin.free_unnamed() and not twin.evict(nbytes, lacking, self._members()):
                return taken

    def _late_answer(self, number: int, new: dict[Hashable, int], stored: set[int]) -> Status:
        ask = self._asks[number]
        first = new[ask.key]
        if first not in stored:
            return Status.NO_SPACE
        if first == number:
            return Status.OK
        same = self._asks[first].nbytes == ask.nbytes
        return Status.EXISTS if same else Status.SIZE_MISMATCH
