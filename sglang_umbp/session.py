"""Sessions: pages that stay in the pool until they have been read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _native
from .errors import InvalidBatchError

if TYPE_CHECKING:
    from types import TracebackType

    from .layout import Namespace
    from .status import Status


class Session(_native.Session):
    """The pages that ``Pool.pin`` found, held until ``close``. A context manager.

    Eviction passes over what a session holds. Threads may read through one session at once. A droppable
    session may be let go of at the quota; reads then look the pages up anew. After ``close``, or that of
    the pool, reads raise.
    """

    # get_pages is native: a Python frame would be cold whenever a layer group is due (benchmarks/NOTES.md).

    namespace: Namespace

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

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
        return self.get_part_ranges(part, first, addresses, sizes, offsets, starts, status)
