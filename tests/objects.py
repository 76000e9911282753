"""Objects whose bytes tell their key and position, and a registered buffer to move them from and to."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sglang_umbp import Session

UNTOUCHED = 0xEE


def pattern(key: str, nbytes: int) -> np.ndarray:
    """The bytes of the object of this key: every 8 of them depend on the key and on their position."""
    words = np.arange(-(-nbytes // 8), dtype=np.uint64) + (np.uint64(zlib.crc32(key.encode())) << np.uint64(31))
    return (words * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)[:nbytes]


class Rows:
    """Rows of one size in memory that is registered with a pool (or with its native half)."""

    def __init__(self, pool: Any, rows: int, nbytes: int) -> None:
        self.pool = pool
        self.nbytes = nbytes
        self.data = np.full((rows, nbytes), UNTOUCHED, dtype=np.uint8)
        pool.register_memory(self.data.ctypes.data, self.data.nbytes)
        self.addresses = [self.data.ctypes.data + row * nbytes for row in range(rows)]

    def wipe(self) -> None:
        self.data.fill(UNTOUCHED)

    def put(self, keys: Sequence[str], *, status: bool = False) -> list[Any]:
        """Stores the objects of keys from the first rows."""
        for row, key in zip(self.data, keys, strict=False):
            row[:] = pattern(key, self.nbytes)
        return self.pool.put(keys, self.addresses[: len(keys)], [self.nbytes] * len(keys), status=status)

    def put_all(self, keys: Sequence[str]) -> None:
        """Stores any number of objects, as many a batch as there are rows; every one must succeed."""
        for start in range(0, len(keys), len(self.data)):
            batch = keys[start : start + len(self.data)]
            assert self.put(batch) == [True] * len(batch)

    def get(self, keys: Sequence[str], *, status: bool = False) -> list[Any]:
        """Reads into the first rows; checks the bytes of every success, and that no other row changed."""
        self.wipe()
        answers = self.pool.get(keys, self.addresses[: len(keys)], [self.nbytes] * len(keys), status=status)
        self.check(keys, answers)
        return answers

    def read(self, session: Session, keys: Sequence[str], *, first: int = 0, status: bool = False) -> list[Any]:
        """The same through a session whose pages from `first` on have these keys."""
        self.wipe()
        answers = session.get_ranges(
            [[address] for address in self.addresses[: len(keys)]],
            [[self.nbytes]] * len(keys),
            [[0]] * len(keys),
            first=first,
            status=status,
        )
        self.check(keys, answers)
        return answers

    def check(self, keys: Sequence[str], answers: Sequence[Any]) -> None:
        assert len(answers) == len(keys)
        for row, key, answer in itertools.zip_longest(self.data, keys, answers):
            if answer:
                assert np.array_equal(row, pattern(key, self.nbytes)), f"wrong bytes for {key}"
            else:
                assert (row == UNTOUCHED).all(), f"a row was touched that is not reported: {key}"


def names(prefix: str, count: int, start: int = 0) -> list[str]:
    return [f"{prefix}{i}" for i in range(start, start + count)]
