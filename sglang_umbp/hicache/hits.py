"""How far a prefix can be restored, from what is there of each pool. Pure functions; counts are pages.

A *prefix length* p stands for the pages [0, p) of a query. A pool's policy says which lengths it can serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What one pool says about a query."""

    pages: int
    """The longest prefix it can serve."""
    restorable: Sequence[int] | None
    """Every prefix length above 0 that it can serve, ascending; None: it limits nothing."""


@dataclass(frozen=True)
class Restorable:
    """What all pools of a query can serve together."""

    pages: int
    """The longest prefix."""
    lengths: list[int]
    """Every prefix length above 0, ascending."""


def leading_run(present: Sequence[bool]) -> int:
    """Length of the run of True at the start."""
    return present.index(False) if False in present else len(present)


def all_pages(present: Sequence[bool]) -> Verdict:
    """A pool that must have every page of the prefix."""
    pages = leading_run(present)
    return Verdict(pages, range(1, pages + 1))


def trailing_pages(present: Sequence[bool], window: int) -> Verdict:
    """A pool that must have the last `window` pages of the prefix, or all of them where the prefix is shorter.

    Such windows end where a state was saved, so 5 can be served while 4 and 3 cannot.
    """
    lengths = []
    run = 0
    for length, is_there in enumerate(present, start=1):
        run = run + 1 if is_there else 0
        if run >= min(window, length):
            lengths.append(length)
    return Verdict(lengths[-1] if lengths else 0, lengths)


def block_groups(present: Sequence[bool], block_pages: int, group_pages: int) -> Verdict:
    """A pool that has a second form of the pages: one group of keys for each block of pages.

    present: the keys of the groups, one group after the other. The verdict is the pages that the complete groups at
    the start cover; it limits nothing, since the pages themselves serve where a group is missing.
    """
    return Verdict(leading_run(present) // group_pages * block_pages, None)


def block_group_keys(keys: Sequence[str], block_pages: int, group_pages: int) -> list[str]:
    """The keys of the groups of a query that does not name them: the last `group_pages` pages of each whole block."""
    ends = range(block_pages, len(keys) + 1, block_pages)
    return [key for end in ends for key in keys[end - group_pages : end]]


def restorable_together(anchor_pages: int, verdicts: Iterable[Verdict]) -> Restorable:
    """The prefix lengths up to anchor_pages that every pool which limits can serve."""
    lengths: Sequence[int] = range(1, anchor_pages + 1)
    for verdict in verdicts:
        if verdict.restorable is not None:
            allowed = set(verdict.restorable)
            lengths = [length for length in lengths if length in allowed]
    return Restorable(lengths[-1] if lengths else 0, list(lengths))
