"""Pages held from a look-up to the load that follows it, so that eviction does not come between.

SGLang asks which pages are there, and loads them milliseconds later in pieces, or never: it has no call that gives a
look-up up. So what is held is bounded in number and age, and sits in droppable sessions, whose room the pool takes
back by itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .._native import Session
from ..layout import Namespace


class Held:
    """The pages of one look-up in one namespace."""

    __slots__ = ("hits", "keys", "namespace", "positions", "session", "since_s")

    def __init__(self, session: Session, keys: Sequence[str], hits: list[bool], since_s: float) -> None:
        self.session = session
        self.namespace = session.namespace
        self.keys = keys if isinstance(keys, list) else list(keys)
        self.hits = hits
        self.positions = {key: place for place, key in enumerate(self.keys)}
        self.since_s = since_s

    def place_of(self, keys: list[str]) -> int | None:
        """Where the run of these keys begins, if the session holds every one of them."""
        place = self.positions.get(keys[0])
        if place is None:
            return None
        end = place + len(keys)
        return place if self.keys[place:end] == keys and all(self.hits[place:end]) else None


@dataclass(frozen=True)
class Place:
    """Pages found in a session: page `first` is the first key that was asked for."""

    session: Session
    first: int


class HeldPages:
    """Sessions between look-up and load, the oldest first. Thread-safe; letting go of one waits for a load from it."""

    def __init__(self, max_lookups: int, max_age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """max_lookups: how many sessions at most, 0 to hold nothing. max_age_s: seconds after which one is let go."""
        self._max_lookups = max_lookups
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._held: deque[Held] = deque()

    @property
    def enabled(self) -> bool:
        """Whether anything is ever held."""
        return self._max_lookups > 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, session: Session, keys: Sequence[str], hits: list[bool]) -> None:
        """Keeps the session of a look-up of these keys, and lets go of what is too old or too many."""
        now_s = self._clock()
        held = Held(session, keys, hits, now_s)
        with self._lock:
            self._held.append(held)
            surplus = self._take_expired(now_s)
            while len(self._held) > self._max_lookups:
                surplus.append(self._held.popleft())
        _close(surplus)

    def find(self, namespace: Namespace, keys: list[str]) -> Place | None:
        """The newest session that holds all of these keys in a row. None: look them up."""
        if not self._held or not keys:
            return None
        with self._lock:
            candidates = [held for held in reversed(self._held) if held.namespace is namespace]
        for held in candidates:
            first = held.place_of(keys)
            if first is not None:
                return Place(held.session, first)
        return None

    def loaded(self, place: Place, pages: int) -> None:
        """Says that a load of so many pages from this place has ended; the session goes with its last hit."""
        with self._lock:
            done = [held for held in self._held if held.session is place.session]
            done = [held for held in done if not any(held.hits[place.first + pages :])]
            for held in done:
                self._held.remove(held)
        _close(done)

    def let_go_of_old(self) -> None:
        """Closes the sessions that are past their age."""
        if not self._held:
            return
        with self._lock:
            surplus = self._take_expired(self._clock())
        _close(surplus)

    def close(self) -> None:
        """Closes all sessions."""
        with self._lock:
            held, self._held = list(self._held), deque()
        _close(held)

    def _take_expired(self, now_s: float) -> list[Held]:
        expired = []
        while self._held and now_s - self._held[0].since_s >= self._max_age_s:
            expired.append(self._held.popleft())
        return expired


def _close(sessions: list[Held]) -> None:
    for held in sessions:
        held.session.close()
