"""A client's put, on the server's side: from Allocate to the answer that is over."""

from __future__ import annotations

import itertools
import time

from .. import _native
from .protocol import Places

_rounds = itertools.count(1)


def allocate(batch: _native.RemoteBatch, deadline: float) -> Places:
    """Where the client copies to, or, if there is nothing to copy, how the put ended."""
    return _places(batch.start(_left_s(deadline)))


def commit(batch: _native.RemoteBatch, deadline: float) -> Places:
    """Makes visible what the client copied. Not over: another put of one of the keys failed, copy that one too."""
    return _places(batch.proceed(_left_s(deadline)))


def over(statuses: bytes) -> Places:
    """The answer that ends a put."""
    return Places(True, 0, b"", b"", statuses)


def _places(step: tuple[bool, bytes, bytes, bytes]) -> Places:
    ended, picks, offsets, statuses = step
    return over(statuses) if ended else Places(False, next(_rounds), picks, offsets, b"")


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
