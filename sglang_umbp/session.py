"""Sessions: pages that stay in the pool until they have been read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from .errors import InvalidBatchError
from .status import Status, to_statuses

if TYPE_CHECKING:
    from types import TracebackType

    from . import _native
    from .layout import Namespace, PageLayout


class Session:
    """The pages that ``Pool.pin`` found, held until ``close``. A context manager.

    Eviction passes over what a session holds. Threads may read through one session at once. A droppable
    session may be let go of at the quota; reads then look the pages up anew. After ``close``, or that of
    the pool, reads raise.
    """

    __slots__ = ("_native", "_pool", "namespace")

    def __init__(self, pool: _native.Pool, native: _native.Session, namespace: Namespace) -> None:
        self._pool = pool
        self._native = native
        self.namespace = namespace

    @property
    def hits(self) -> list[bool]:
        """Per page: whether it was held when the session began, all its components."""
        return self._native.hits

    @property
    def prefix(self) -> int:
        """Length of the leading run of hits."""
        return self._native.prefix

    def __len__(self) -> int:
        return self._native.pages

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the objects it holds."""
        return self._native.nbytes

    @property
    def closed(self) -> bool:
        """Whether it was closed, or dropped at the quota."""
        return self._native.closed

    @property
    def dropped(self) -> bool:
        """Whether the pool let go of it at the quota (droppable sessions only)."""
        return self._native.dropped

    def close(self) -> None:
        """Waits for reads in progress, then lets the pages go. Twice is a no-op."""
        self._native.close()

    @overload
    def get_pages(
        self,
        layout: PageLayout,
        rows: Any,
        layers: tuple[int, int] | None = None,
        *,
        first: int = 0,
        status: Literal[False] = False,
    ) -> list[bool]: ...
    @overload
    def get_pages(
        self,
        layout: PageLayout,
        rows: Any,
        layers: tuple[int, int] | None = None,
        *,
        first: int = 0,
        status: Literal[True],
    ) -> list[Status]: ...
    def get_pages(
        self,
        layout: PageLayout,
        rows: Any,
        layers: tuple[int, int] | None = None,
        *,
        first: int = 0,
        status: bool = False,
    ) -> list[bool] | list[Status]:
        """Copies pages first .. first+len(rows) of the session into rows of the layout, without a look-up.

        rows: integers, one a page, all different. layers: half-open range of the layout's fragments
        (default all). Returns one answer a page. Blocks until every byte is there; releases the GIL.
        Raises InvalidBatchError, PoolClosedError, ForkedPoolError before a byte moves.
        """
        begin, end = layers if layers is not None else (0, layout.fragments)
        if layout.component.native is not self.namespace.native:
            raise InvalidBatchError(
                f"the layout is of namespace {layout.component.namespace.name!r}, "
                f"the session of {self.namespace.name!r}"
            )
        answers = self._pool.get_session_pages(self._native, first, layout.native, rows, begin, end, status)
        return to_statuses(answers) if status else answers

    def get_ranges(
        self,
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        offsets: Sequence[Any],
        *,
        starts: Sequence[int] | None = None,
        first: int = 0,
        component: str | None = None,
        status: bool = False,
    ) -> list[bool] | list[Status]:
        """Copies raw ranges of the session's pages from ``first`` on; see ``Pool.get_ranges``.

        component: which object of the page; needed if the namespace has several.
        """
        names = self.namespace.components
        if component is None and len(names) > 1:
            raise InvalidBatchError(f"component is needed; the namespace has {', '.join(names)}")
        part = 0 if component is None else self.namespace.component(component).part
        answers = self._pool.get_session_ranges(self._native, part, first, addresses, sizes, offsets, starts, status)
        return to_statuses(answers) if status else answers
