"""Byte-by-byte checks of restored pages, and of everything that no restore may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..geometry import PoolGeometry
from .buffers import PageBuffers
from .pattern import Pattern, U8Array
from .targets import Rows
from .workload import PageIdArray


@dataclass
class Tally:
    """What went wrong, and how much was looked at. One thread at a time."""

    failed_puts: int = 0
    failed_gets: int = 0
    verified_pages: int = 0
    mismatches: int = 0

    @property
    def failures(self) -> int:
        """Everything that makes the command fail."""
        return self.failed_puts + self.failed_gets + self.mismatches

    def add(self, other: Tally) -> None:
        """Adds another thread's counts."""
        self.failed_puts += other.failed_puts
        self.failed_gets += other.failed_gets
        self.verified_pages += other.verified_pages
        self.mismatches += other.mismatches


def count_wrong_pages(got: U8Array, expected: U8Array) -> int:
    """Number of pages that differ; both of shape (fragments, pages, bytes)."""
    if np.array_equal(got, expected):
        return 0
    return int((got != expected).any(axis=(0, 2)).sum())


class Verifier:
    """Checks one rank's buffers. Between restores every byte of them is the sentinel.

    A page counts once a pool. Rows that were written without being asked for, and guard bytes, are
    mismatches too.
    """

    def __init__(self, pools: Sequence[PoolGeometry], buffers: PageBuffers, tally: Tally, seed: int) -> None:
        self._patterns = [Pattern(pool, index, seed) for index, pool in enumerate(pools)]
        self._buffers = buffers
        self._tally = tally

    def write(self, rows: Rows, page_ids: PageIdArray) -> None:
        """Puts the content of `page_ids` into `rows` of every pool, to be stored from there."""
        for pattern, pool in zip(self._patterns, self._buffers.pools, strict=True):
            pool.pages[:, rows] = pattern.pages(page_ids)

    def before_restore(self, rows: Rows) -> None:
        """Counts rows that something wrote into since they were wiped."""
        for pool in self._buffers.pools:
            self._tally.mismatches += pool.touched_rows(rows)

    def after_restore(self, rows: Rows, page_ids: PageIdArray) -> None:
        """Compares `rows` with what `page_ids` hold, then wipes them."""
        for pattern, pool in zip(self._patterns, self._buffers.pools, strict=True):
            self._tally.verified_pages += len(rows)
            self._tally.mismatches += count_wrong_pages(pool.pages[:, rows], pattern.pages(page_ids))
        self.wipe(rows)

    def wipe(self, rows: Rows) -> None:
        """Fills `rows` of every pool with the sentinel."""
        for pool in self._buffers.pools:
            pool.wipe(rows)

    def at_end(self) -> None:
        """Counts every pool with a byte that is not the sentinel: nothing may have been written
        outside the rows.
        """
        for pool in self._buffers.pools:
            self._tally.mismatches += pool.touched_bytes() > 0
