"""Bytes that say where they belong: pool, page, layer and place in the fragment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..geometry import PoolGeometry, U64Array

U8Array = npt.NDArray[np.uint8]
PageIds = Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.uint64]

SENTINEL = 0xA5  # what memory holds that nothing was restored into
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD_STEP = np.uint64(0xD6E8FEB86659FD93)  # odd: all words of a fragment differ


def mix64(values: U64Array) -> U64Array:
    """Every value scrambled so that neighbours share no bits (the finaliser of splitmix64, a
    bijection).
    """
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class Pattern:
    """The expected content of every page of one pool, computed anew each time: verification needs
    no store.
    """

    def __init__(self, geometry: PoolGeometry, pool_index: int, seed: int = 0) -> None:
        self._geometry = geometry
        self._pool_seed = mix64(np.array([seed * 1000 + pool_index], dtype=np.uint64))
        words = -(-geometry.fragment_nbytes // 8)
        self._word_terms = np.arange(words, dtype=np.uint64) * _WORD_STEP
        self._layer_seeds = mix64(np.arange(geometry.layers, dtype=np.uint64))

    def pages(self, page_ids: PageIds, layers: tuple[int, int] | None = None) -> U8Array:
        """Bytes of the fragments of `page_ids`: shape (fragments, pages, fragment bytes), in
        layer-first order.
        """
        begin, end = layers if layers is not None else (0, self._geometry.layers)
        page_seeds = mix64(np.asarray(page_ids, dtype=np.uint64) ^ self._pool_seed)
        seeds = mix64(page_seeds[None, :] ^ self._layer_seeds[begin:end, None])
        content = (seeds[:, :, None] + self._word_terms).view(np.uint8)
        return content[:, :, : self._geometry.fragment_nbytes]
