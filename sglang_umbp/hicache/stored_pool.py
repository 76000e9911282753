"""The pages of one SGLang host pool in the pool of this package: look-up, put and get by page hash."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..errors import InvalidBatchError
from ..layout import Namespace, PageLayout
from ..pool import ComponentPut, Pool
from .held_pages import HeldPages, Place
from .hits import leading_run
from .host_pages import HostPages, PagePart


class StoredPool:
    """A host pool and the objects of its pages: one for each part, and a page is there when all are. Thread-safe."""

    def __init__(self, pool: Pool, pages: HostPages, namespace_name: bytes, held: HeldPages) -> None:
        """Registers the host pool's memory and lays its pages out.

        namespace_name: the identity of the pages. Raises RegionError, InvalidBatchError; memory that was registered
        stays so until the pool closes.
        """
        self.pages = pages
        self.page_bytes = sum(part.nbytes for part in pages.parts)
        self.namespace = pool.namespace(namespace_name, [part.name for part in pages.parts])
        self._pool = pool
        self._held = held
        for address, nbytes in pages.regions:
            pool.register_memory(address, nbytes)
        self._layouts = [_layout(pool, self.namespace, pages, part) for part in pages.parts]

    @property
    def fragments(self) -> int:
        """Unbroken pieces of a page in the host pool."""
        return sum(layout.fragments for layout in self._layouts)

    def prefix(self, keys: list[str]) -> int:
        """Length of the leading run of pages that are there; they are held for the load that follows."""
        if not self._held.enabled:
            return self._pool.exists_prefix(keys, namespace=self.namespace)
        found = leading_run(self._hold(keys))
        if found < len(keys):  # what the quota cut off is there as well
            found += self._pool.exists_prefix(keys[found:], namespace=self.namespace)
        return found

    def present(self, keys: list[str]) -> list[bool]:
        """Per page: whether it is there; what is there is held for the load that follows."""
        if self._held.enabled:
            hits = self._hold(keys)
            if False not in hits:
                return hits
        return self._pool.exists(keys, namespace=self.namespace)

    def put(self, keys: list[str], host_indices: Any, depth: int | None) -> list[bool]:
        """Stores pages from the host pool. depth: how many pages of the prefix come before the first; None: unknown.

        Raises InvalidBatchError: indices that are not one page a key, or not of this pool.
        """
        return put_all(self._pool, [(self, keys, host_indices)], depth)[0]

    def parts(self, keys: list[str], host_indices: Any) -> list[ComponentPut]:
        """What ``put`` stores and ``get`` loads, for ``put_all`` and ``get_all``; within ``pages.steady()``.

        Raises InvalidBatchError as they do.
        """
        rows = self._rows(keys, host_indices)
        return [(layout, keys, rows) for layout in self._layouts]

    def get(self, keys: list[str], host_indices: Any) -> list[bool]:
        """Loads pages into the host pool: from the session that holds them, else by a look-up.

        False: the page was not there, and its row may have been touched in part. Raises InvalidBatchError: indices
        that are not one page a key, or not of this pool.
        """
        with self.pages.steady():
            rows = self._rows(keys, host_indices)
            held = self._get_held(keys, rows)
            return self._get_anew(keys, rows) if held is None else held

    def _get_held(self, keys: list[str], rows: np.ndarray) -> list[bool] | None:
        """Loads from a session; None: no session has all of these pages, or it was let go of meanwhile."""
        place = self.held_place(keys)
        if place is None:
            return None
        try:
            return _all_of(place.session.get_components([(each, rows) for each in self._layouts], first=place.first))
        except InvalidBatchError:
            if not place.session.closed:
                raise
            return None
        finally:
            self._held.loaded(place, len(keys))

    def _get_anew(self, keys: list[str], rows: np.ndarray) -> list[bool]:
        return _all_of(self._pool.get_components([(layout, keys, rows) for layout in self._layouts]))

    def held_place(self, keys: list[str]) -> Place | None:
        """Where these pages are held for a load, if they are."""
        return self._held.find(self.namespace, keys)

    def loaded_from(self, place: Place, pages: int) -> None:
        """Says that so many pages from this place on were loaded."""
        self._held.loaded(place, pages)

    def _hold(self, keys: list[str]) -> list[bool]:
        era = self._held.era
        session = self._pool.pin(keys, namespace=self.namespace, firm=False)
        hits = session.hits
        if True in hits:
            self._held.add(session, keys, hits, era)
        else:
            session.close()
        return hits

    def _rows(self, keys: list[str], host_indices: Any) -> np.ndarray:
        if host_indices is None:
            raise InvalidBatchError(f"{len(keys)} pages of {self.pages.name!r} without host indices")
        rows = self.pages.rows_of(host_indices)
        if len(rows) != len(keys):
            raise InvalidBatchError(
                f"{len(keys)} page hashes of {self.pages.name!r} with host indices of {len(rows)} pages"
            )
        return rows


def put_all(pool: Pool, puts: Sequence[tuple[StoredPool, list[str], Any]], depth: int | None) -> list[list[bool]]:
    """``StoredPool.put`` of several host pools as one batch: a list of answers each. Raises as it does."""
    with ExitStack() as steady:
        parts: list[ComponentPut] = []
        counts = []
        for stored, keys, host_indices in puts:
            steady.enter_context(stored.pages.steady())
            own = stored.parts(keys, host_indices)
            parts += own
            counts.append(len(own))
        answers = iter(pool.put_components(parts, depth=depth))
        return [_all_of([next(answers) for _ in range(count)]) for count in counts]


def get_all(pool: Pool, gets: Sequence[tuple[StoredPool, list[str], Any]]) -> list[list[bool]]:
    """``StoredPool.get`` of several host pools as one batch: a list of answers each. Raises as it does.

    All pages are looked up, since each pool's are held by a session of its own; those sessions keep them from
    eviction. What was removed although it is held is loaded from the session.
    """
    places = [stored.held_place(keys) for stored, keys, _ in gets]
    with ExitStack() as steady:
        parts: list[ComponentPut] = []
        for stored, keys, host_indices in gets:
            steady.enter_context(stored.pages.steady())
            parts += stored.parts(keys, host_indices)
        answers = iter(pool.get_components(parts))
        loaded = [_all_of([next(answers) for _ in stored.pages.parts]) for stored, _, _ in gets]
    for number, ((stored, keys, host_indices), place) in enumerate(zip(gets, places, strict=True)):
        if place is None:
            continue
        if False in loaded[number]:
            loaded[number] = stored.get(keys, host_indices)
        else:
            stored.loaded_from(place, len(keys))
    return loaded


def _layout(pool: Pool, namespace: Namespace, pages: HostPages, part: PagePart) -> PageLayout:
    return pool.page_layout(
        namespace,
        part.name,
        rows=pages.rows,
        bases=part.bases,
        strides=part.strides,
        sizes=part.sizes,
        object_offsets=part.object_offsets,
        logical_layers=part.layers,
    )


def _all_of(answers: list[list[bool]]) -> list[bool]:
    return answers[0] if len(answers) == 1 else [all(page) for page in zip(*answers, strict=True)]
