"""Page rows of the replay: which rows a chunk of blocks uses, and what their bytes must be."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from ..bench.buffers import PageBuffers
from ..bench.pattern import Pattern
from ..bench.verify import count_wrong_pages
from ..geometry import PoolGeometry

Rows = npt.NDArray[np.int64]


class BlockHashes:
    """Page hashes of block ids, as SGLang would pass them: sha256 in hexadecimal, computed once an
    id.
    """

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, blocks: Sequence[int]) -> list[str]:
        """One hash a block."""
        known = self._known
        return [known.get(block) or self._compute(block) for block in blocks]

    def _compute(self, block: int) -> str:
        digest = sha256(block.to_bytes(8, "little")).hexdigest()
        self._known[block] = digest
        return digest


class PageRows:
    """Rows that blocks pass through. A block's content follows from pool and id, so no copy of it
    is kept.
    """

    def __init__(self, pools: Sequence[PoolGeometry], rows: int, seed: int) -> None:
        self.buffers = PageBuffers(pools, rows)
        self._patterns = [Pattern(pool, index, seed) for index, pool in enumerate(pools)]
        self._random = np.random.default_rng(seed)

    def pick(self, count: int) -> Rows:
        """`count` different rows in random order: a block seldom meets the same row again."""
        return self._random.permutation(self.buffers.rows)[:count].astype(np.int64)

    def fill(self, rows: Rows, blocks: Sequence[int]) -> None:
        """Writes the content of `blocks` into `rows` of every pool."""
        for pattern, pool in zip(self._patterns, self.buffers.pools, strict=True):
            pool.pages[:, rows] = pattern.pages(blocks)

    def wipe(self, rows: Rows) -> None:
        """Makes sure that what is found in `rows` later was restored."""
        for pool in self.buffers.pools:
            pool.wipe(rows)

    def count_touched_guards(self) -> int:
        """Pools with a byte written outside their rows."""
        return sum(pool.touched_guard_bytes() > 0 for pool in self.buffers.pools)

    def count_wrong(self, rows: Rows, blocks: Sequence[int]) -> int:
        """Pages (of all pools) whose rows do not hold exactly the content of `blocks`."""
        return sum(
            count_wrong_pages(pool.pages[:, rows], pattern.pages(blocks))
            for pattern, pool in zip(self._patterns, self.buffers.pools, strict=True)
        )
