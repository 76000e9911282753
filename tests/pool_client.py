"""A caller of one pool for the tests: stores patterns, reads them back, checks every byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from patterns import Memory, Places, object_of

from sglang_umbp import Pool, PoolSettings, Status


class PoolClient:
    """One registered buffer to put from and one to get into."""

    def __init__(self, pool: Pool, nbytes: int = 1 << 20) -> None:
        self.pool = pool
        self.source = Memory(nbytes)
        self.destination = Memory(nbytes)
        for memory in (self.source, self.destination):
            pool.register_array(memory.array)

    def put(self, keys: Sequence[str | bytes], sizes: int | Sequence[int], **where: Any) -> list[Status]:
        """Stores the pattern of each key as a whole object."""
        sizes = [sizes] * len(keys) if isinstance(sizes, int) else list(sizes)
        places = Places(self.source)
        places.clear()
        addresses = [
            self.source.write(places.take(size), object_of(key, size)) for key, size in zip(keys, sizes, strict=True)
        ]
        answers = self.pool.put(keys, addresses, sizes, status=True, **where)
        self.source.check()
        return answers

    def get(self, keys: Sequence[str | bytes], sizes: int | Sequence[int], **where: Any) -> list[Status]:
        """Reads whole objects and checks every byte, and that nothing else was written."""
        sizes = [sizes] * len(keys) if isinstance(sizes, int) else list(sizes)
        places = Places(self.destination)
        places.clear()
        offsets = [places.take(size) for size in sizes]
        addresses = [self.destination.address + offset for offset in offsets]
        answers = self.pool.get(keys, addresses, sizes, status=True, **where)
        for key, size, offset, answer in zip(keys, sizes, offsets, answers, strict=True):
            if answer:
                self.destination.expect(offset, object_of(key, size))
        self.destination.check()
        return answers


def open_pool(capacity_bytes: int, **overrides: Any) -> Pool:
    """An open pool that ignores the environment."""
    return Pool(PoolSettings(capacity_bytes=capacity_bytes, **overrides)).open()
