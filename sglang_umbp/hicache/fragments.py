"""Fragments of a page, found by asking a pool for a few pages: affine in the page's row, or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Extent = tuple[int, int]
"""(address, nbytes)."""
MAX_ASKED = 33


class PagePlacementError(ValueError):
    """The pages do not lie as address = base + row * stride in the pool's buffers; the message says what is wrong."""


@dataclass(frozen=True, eq=False)
class AffineFragments:
    """Fragment j of row r is sizes[j] bytes at bases[j] + r * strides[j]. int64 arrays."""

    bases: np.ndarray
    strides: np.ndarray
    sizes: np.ndarray

    def cut(self, pieces: int) -> list[AffineFragments]:
        """Consecutive pieces of so many fragments each. Raises PagePlacementError: they do not divide."""
        if len(self.sizes) % pieces:
            raise PagePlacementError(f"{len(self.sizes)} fragments a page are not {pieces} equal pieces")
        split = (np.split(array, pieces) for array in (self.bases, self.strides, self.sizes))
        return [AffineFragments(*arrays) for arrays in zip(*split, strict=True)]


def rows_to_ask(rows: int) -> list[int]:
    """Rows whose addresses are compared: all of a small pool, else both ends and rows spread between."""
    if rows <= MAX_ASKED:
        return list(range(rows))
    spread = np.linspace(0, rows - 1, MAX_ASKED - 4).astype(np.int64).tolist()
    return sorted({0, 1, 2, rows - 2, rows - 1, *spread})


def fit(rows: int, extents_of: Callable[[int], Sequence[Extent]]) -> AffineFragments:
    """The fragments of a page, from the extents of some rows. Raises PagePlacementError."""
    asked = rows_to_ask(rows)
    pages = [_as_arrays(extents_of(row)) for row in asked]
    bases, sizes = pages[0]
    if not sizes.size or (sizes < 1).any():
        raise PagePlacementError("a page has no bytes, or an empty fragment")
    if any(not np.array_equal(others, sizes) for _, others in pages):
        raise PagePlacementError("pages differ in the number or the sizes of their fragments")
    strides = pages[1][0] - bases if rows > 1 else sizes
    for row, (addresses, _) in zip(asked, pages, strict=True):
        if (addresses != bases + row * strides).any():
            raise PagePlacementError(f"page {row} does not lie where rows 0 and 1 say")
    return AffineFragments(bases, strides, sizes)


def _as_arrays(extents: Sequence[Extent]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(extents, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def check_covers(fragments: AffineFragments, rows: int, regions: Sequence[Extent]) -> None:
    """Raises PagePlacementError unless the rows fill every region, with one row to spare at most, and never leave one.

    A pool that keeps a part of a page in a buffer which its fragments leave out is found here.
    """
    per_row = np.zeros(len(regions), dtype=np.int64)
    last = fragments.bases + (rows - 1) * fragments.strides
    low, high = np.minimum(fragments.bases, last), np.maximum(fragments.bases, last) + fragments.sizes
    for index, (address, nbytes) in enumerate(regions):
        inside = (low >= address) & (high <= address + nbytes)
        per_row[index] = fragments.sizes[inside].sum()
    if per_row.sum() != fragments.sizes.sum():
        raise PagePlacementError("a fragment lies outside the pool's buffers")
    for (_, nbytes), page_bytes in zip(regions, per_row.tolist(), strict=True):
        if not page_bytes or nbytes % page_bytes or nbytes // page_bytes not in (rows, rows + 1):
            raise PagePlacementError(
                f"a buffer of {nbytes} bytes is not {rows} pages of the {page_bytes} bytes that a page has in it"
            )


def extents_of_view(view: Any) -> list[Extent]:
    """The unbroken pieces of a torch view in its own order (the order of view.flatten())."""
    itemsize = view.element_size()
    run = 1
    outer = view.dim()
    while outer and (view.shape[outer - 1] == 1 or view.stride(outer - 1) == run):
        run *= view.shape[outer - 1]
        outer -= 1
    steps = [[i * view.stride(dim) for i in range(view.shape[dim])] for dim in range(outer)]
    base = view.data_ptr()
    return [(base + sum(offsets) * itemsize, run * itemsize) for offsets in product(*steps)]


def extents_of_tensors(tensors: Sequence[Any]) -> list[Extent]:
    """(address, nbytes) of each tensor, without repeats and empty ones. Raises PagePlacementError: not plain memory."""
    extents: dict[int, int] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise PagePlacementError(
                f"a buffer is not contiguous host memory ({tensor.device}, strides {tensor.stride()})"
            )
        if tensor.numel():
            extents[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return list(extents.items())
