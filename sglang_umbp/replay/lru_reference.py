"""What a plain LRU of pages would hit: the yardstick of a replay, sharing no code with the pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class LruReference:
    """`capacity` pages, least recently used first out. Works on ids alone.

    A request hits its leading run of present pages and refreshes them, then puts the rest in
    batches of `put_pages`: a page that is there is refreshed, another one goes in and the oldest
    page goes out, never one of its own batch.
    """

    def __init__(self, capacity: int, put_pages: int) -> None:
        self._capacity = capacity
        self._put_pages = put_pages
        self._pages: OrderedDict[int, None] = OrderedDict()
        self.evicted = 0

    def request(self, pages: Sequence[int]) -> int:
        """Number of hits of a request for `pages`."""
        hits = 0
        while hits < len(pages) and pages[hits] in self._pages:
            self._pages.move_to_end(pages[hits])
            hits += 1
        for first in range(hits, len(pages), self._put_pages):
            self._put(pages[first : first + self._put_pages])
        return hits

    def _put(self, batch: Sequence[int]) -> None:
        # Present members first: as the most recent ones they cannot be what goes out.
        for page in batch:
            if page in self._pages:
                self._pages.move_to_end(page)
        for page in batch:
            if page not in self._pages and not self._make_room(batch):
                continue
            self._pages[page] = None
            self._pages.move_to_end(page)

    def _make_room(self, batch: Sequence[int]) -> bool:
        if len(self._pages) < self._capacity:
            return True
        oldest = next(iter(self._pages), None)
        if oldest is None or oldest in batch:
            return False
        del self._pages[oldest]
        self.evicted += 1
        return True
