"""The requests of a benchmark: page hashes, page contents, order of pages and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ..geometry import GroupStep, PoolGeometry, restore_steps
from .targets import Rows

PageIdArray = npt.NDArray[np.int64]

# Odd, so that no two pages share a hash; from the golden ratio, so that they differ all over.
_HASH_STEP = 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251F86C6A11D0C18E95


@dataclass(frozen=True)
class Request:
    """One prompt: the hashes SGLang would pass, and the ids its pages' content is computed from."""

    hashes: list[str]
    page_ids: PageIdArray


class Workload:
    """`count` stored requests of `pages` pages each, and the calls that restore one."""

    def __init__(
        self,
        pools: Sequence[PoolGeometry],
        pages: int,
        group_layers: int,
        count: int,
        order: str,
        seed: int,
    ) -> None:
        self.pools = tuple(pools)
        self.pages = pages
        self.order = order
        self.steps: tuple[GroupStep, ...] = restore_steps(pools, group_layers)
        self.groups: tuple[tuple[GroupStep, ...], ...] = tuple(
            tuple(steps) for _, steps in groupby(self.steps, key=lambda step: step.group)
        )
        self.first_steps = sum(step.group == self.steps[0].group for step in self.steps)
        self._seed = seed
        self.requests = [self.make_request(number) for number in range(count)]

    def make_request(self, number: int) -> Request:
        """Request `number`; numbers from `len(requests)` up are fresh ones."""
        ids = np.arange(number * self.pages, (number + 1) * self.pages, dtype=np.int64)
        return Request([page_hash(int(page)) for page in ids], ids)

    def storing_order(self) -> list[Request]:
        """All pages in batches of `pages`, in the order that places them in the arena as `order`
        says.

        random: any page anywhere; descending: so that pages of a request tend to lie at falling
        addresses.
        """
        ids = np.concatenate([request.page_ids for request in self.requests])
        if self.order == "random":
            ids = np.random.default_rng(self._seed).permutation(ids)
        elif self.order == "descending":
            ids = ids[::-1]
        batches = np.split(ids, len(self.requests))
        return [Request([page_hash(int(page)) for page in batch], batch) for batch in batches]

    def row_slots(self, count: int, rank: int = 0) -> list[Rows]:
        """`count` disjoint sets of `pages` rows out of `count * pages`, in the order that `order`
        says.
        """
        rows = np.arange(count * self.pages, dtype=np.int64)
        if self.order == "random":
            rows = np.random.default_rng([self._seed, 1 + rank]).permutation(rows)
        elif self.order == "descending":
            rows = rows[::-1].copy()
        return np.split(rows, count)


def page_hash(page: int) -> str:
    """A page hash as SGLang passes it: 64 hexadecimal digits, well spread."""
    return f"{(page + 1) * _HASH_STEP % (1 << 256):064x}"


class Turns:
    """Hands out (request, row slot) pairs round-robin: no address comes back before all others were
    used.
    """

    def __init__(self, requests: int, slots: int) -> None:
        self._requests = requests
        self._slots = slots
        self._next = 0

    def take(self) -> tuple[int, int]:
        """The next request index and slot index."""
        turn = self._next
        self._next += 1
        return turn % self._requests, turn % self._slots
