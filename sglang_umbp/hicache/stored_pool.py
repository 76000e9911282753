"""The pages of one SGLang host pool in the pool of this package: look-up, put and get by page hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidBatchError
from ..layout import Namespace, PageLayout
from ..pool import Pool
from .held_pages import HeldPages
from .hits import leading_run
from .host_pages import HostPages, PagePart


class StoredPart:
    """One object of each page. Raises what the pool's calls raise, before a byte moves."""

    def __init__(self, pool: Pool, namespace: Namespace, layout: PageLayout, held: HeldPages) -> None:
        self._pool = pool
        self._layout = layout
        self._held = held
        self.namespace = namespace

    def prefix(self, keys: list[str]) -> int:
        """Length of the leading run of keys that are there; they are held for the load that follows."""
        if not self._held.enabled:
            return self._pool.exists_prefix(keys, namespace=self.namespace)
        found = leading_run(self._hold(keys))
        # What the quota cut off is there as well.
        return found if found == len(keys) else found + self._pool.exists_prefix(keys[found:], namespace=self.namespace)

    def present(self, keys: list[str]) -> list[bool]:
        """Per key: whether it is there; what is there is held for the load that follows."""
        if self._held.enabled:
            hits = self._hold(keys)
            if False not in hits:
                return hits
        return self._pool.exists(keys, namespace=self.namespace)

    def put(self, keys: list[str], rows: np.ndarray, depth: int | None) -> list[bool]:
        """Stores pages; see Pool.put_pages."""
        return self._pool.put_pages(self._layout, keys, rows, depth=depth)

    def get(self, keys: list[str], rows: np.ndarray) -> list[bool]:
        """Copies pages into rows: from the session that holds them, else by a look-up."""
        place = self._held.find(self.namespace, keys)
        if place is None:
            return self._pool.get_pages(self._layout, keys, rows)
        try:
            return place.session.get_pages(self._layout, rows, first=place.first)
        except InvalidBatchError:
            if not place.session.closed:
                raise
            return self._pool.get_pages(self._layout, keys, rows)  # it was let go of meanwhile
        finally:
            self._held.loaded(place, len(keys))

    def _hold(self, keys: list[str]) -> list[bool]:
        session = self._pool.pin(keys, namespace=self.namespace, firm=False)
        hits = session.hits
        if True in hits:
            self._held.add(session, keys, hits)
        else:
            session.close()
        return hits


class StoredPool:
    """A host pool and the objects of its pages; a page is there when every one of its parts is. Thread-safe."""

    def __init__(self, pages: HostPages, parts: Sequence[StoredPart]) -> None:
        self.pages = pages
        self.parts = tuple(parts)
        self.page_bytes = sum(part.nbytes for part in pages.parts)

    @property
    def fragments(self) -> int:
        """Unbroken pieces of a page in the host pool."""
        return sum(len(part.sizes) for part in self.pages.parts)

    def prefix(self, keys: list[str]) -> int:
        """Length of the leading run of pages that are there."""
        found = len(keys)
        for part in self.parts:
            found = part.prefix(keys[:found])
        return found

    def present(self, keys: list[str]) -> list[bool]:
        """Per page: whether it is there."""
        return _all_of([part.present(keys) for part in self.parts])

    def put(self, keys: list[str], host_indices: Any, depth: int | None) -> list[bool]:
        """Stores pages from the host pool. depth: how many pages of the prefix come before the first; None: unknown.

        Raises InvalidBatchError: indices that are not one page a key, or not of this pool.
        """
        with self.pages.steady():
            rows = self._rows(keys, host_indices)
            return _all_of([part.put(keys, rows, depth) for part in self.parts])

    def get(self, keys: list[str], host_indices: Any) -> list[bool]:
        """Loads pages into the host pool. False: a row that may have been touched in part, or was not there.

        Raises InvalidBatchError: indices that are not one page a key, or not of this pool.
        """
        with self.pages.steady():
            rows = self._rows(keys, host_indices)
            return _all_of([part.get(keys, rows) for part in self.parts])

    def _rows(self, keys: list[str], host_indices: Any) -> np.ndarray:
        if host_indices is None:
            raise InvalidBatchError(f"{len(keys)} pages of {self.pages.name!r} without host indices")
        rows = self.pages.rows_of(host_indices)
        if len(rows) != len(keys):
            raise InvalidBatchError(
                f"{len(keys)} page hashes of {self.pages.name!r} with host indices of {len(rows)} pages"
            )
        return rows


def store_pool(pool: Pool, pages: HostPages, namespace_names: Sequence[bytes], held: HeldPages) -> StoredPool:
    """Registers a host pool's memory and lays its pages out. namespace_names: one a part.

    Raises RegionError, InvalidBatchError; memory that was registered stays so until the pool closes.
    """
    for address, nbytes in pages.regions:
        pool.register_memory(address, nbytes)
    parts = [
        _stored_part(pool, pages, part, name, held) for part, name in zip(pages.parts, namespace_names, strict=True)
    ]
    return StoredPool(pages, parts)


def _stored_part(pool: Pool, pages: HostPages, part: PagePart, name: bytes, held: HeldPages) -> StoredPart:
    namespace = pool.namespace(name, [part.name])
    layout = pool.page_layout(
        namespace,
        part.name,
        rows=pages.rows,
        bases=part.bases,
        strides=part.strides,
        sizes=part.sizes,
        object_offsets=part.object_offsets,
        logical_layers=part.layers,
    )
    return StoredPart(pool, namespace, layout, held)


def _all_of(answers: list[list[bool]]) -> list[bool]:
    return answers[0] if len(answers) == 1 else [all(page) for page in zip(*answers, strict=True)]
