"""Bytes that show where they came from, and buffers that show everything written into them."""

from __future__ import annotations

import zlib

import numpy as np

SENTINEL = 0xEE
GUARD_NBYTES = 256
"""Sentinel bytes on either side of each place: more than any vector store is wide."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def pattern(seed: int, nbytes: int) -> np.ndarray:
    """`nbytes` bytes that differ by seed and position, so that a shifted copy is a wrong copy."""
    words = np.arange((nbytes + 7) // 8, dtype=np.uint64)
    words += np.uint64(seed * 0x10001 & 0xFFFF_FFFF_FFFF)
    words *= _GOLDEN
    words ^= words >> np.uint64(29)
    return words.view(np.uint8)[:nbytes]


def object_of(key: str | bytes, nbytes: int) -> np.ndarray:
    """The pattern that tests store under a key."""
    raw = key.encode() if isinstance(key, str) else key
    return pattern(zlib.crc32(raw), nbytes)


class Memory:
    """A caller's buffer, and what each byte must be: a sentinel until a test says otherwise."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.full(nbytes, SENTINEL, dtype=np.uint8)
        self._expected = self.array.copy()

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def write(self, offset: int, data: np.ndarray) -> int:
        """Puts source bytes at `offset`; returns their address."""
        self.array[offset : offset + data.nbytes] = data
        return self.expect(offset, data)

    def expect(self, offset: int, data: np.ndarray) -> int:
        """Says that the pool must have written `data` at `offset`; returns its address."""
        assert offset + data.nbytes <= self.nbytes
        self._expected[offset : offset + data.nbytes] = data
        return self.address + offset

    def check(self) -> None:
        """Fails unless every byte of the buffer is what it must be."""
        now = self.now()
        wrong = np.flatnonzero(now != self._expected)
        assert wrong.size == 0, (
            f"{wrong.size} wrong bytes, the first at offset {wrong[0]}:"
            f" {now[wrong[0]]:#x} instead of {self._expected[wrong[0]]:#x}"
        )

    def now(self) -> np.ndarray:
        """The bytes as they are."""
        return self.array

    def reset(self) -> None:
        """Sentinels everywhere."""
        self.array[:] = SENTINEL
        self._expected[:] = SENTINEL


class Places:
    """Hands out places in a Memory one after the other, with sentinels between them."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._next = GUARD_NBYTES

    def take(self, nbytes: int, align: int = 1) -> int:
        """The offset of `nbytes` bytes that nobody else has."""
        offset = -(-self._next // align) * align
        self._next = offset + nbytes + GUARD_NBYTES
        assert self._next <= self.memory.nbytes, "the test's buffer is too small"
        return offset

    def clear(self) -> None:
        """Starts again at the front, with sentinels everywhere."""
        self._next = GUARD_NBYTES
        self.memory.reset()
