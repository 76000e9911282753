"""A client's put, on the server's side: from Allocate to the answer that is over."""

from __future__ import annotations

import itertools
import time

import numpy as np

from .. import _native
from .protocol import Places

_rounds = itertools.count(1)
_U4, _U8 = np.dtype("<u4"), np.dtype("<u8")


def sizes_of(packed: bytes) -> np.ndarray:
    """Packed sizes as the native core takes them."""
    return np.frombuffer(packed, dtype=_U8)


def allocate(batch: _native.RemoteBatch, deadline: float) -> Places:
    """Where the client copies to, or, if there is nothing to copy, how the put ended."""
    batch.allocate(_left_s(deadline))
    return _next_places(batch, deadline)


def commit(batch: _native.RemoteBatch, deadline: float) -> Places:
    """Makes visible what the client copied. Not over: another put of one of the keys failed, copy that one too."""
    return _finish(batch, deadline) or _next_places(batch, deadline)


def over(statuses: bytes) -> Places:
    """The answer that ends a put."""
    return Places(over=True, round=0, picks=b"", offsets=b"", statuses=statuses)


def _next_places(batch: _native.RemoteBatch, deadline: float) -> Places:
    while True:
        places = _to_copy(batch)
        if places is None:
            places = _finish(batch, deadline)
        if places is not None:
            return places


def _finish(batch: _native.RemoteBatch, deadline: float) -> Places | None:
    """Commits, then waits for other puts of the same keys: waiting first would deadlock two crossing batches."""
    if batch.commit() or batch.await_busy(_left_s(deadline)):
        _, statuses, _ = batch.answers()
        return over(statuses)
    batch.allocate(_left_s(deadline))
    return None


def _to_copy(batch: _native.RemoteBatch) -> Places | None:
    phases, _, offsets = batch.answers()
    picks = np.flatnonzero(np.frombuffer(phases, dtype=np.uint8) == _native.PHASE_NEW)
    if not picks.size:
        return None
    places = np.frombuffer(offsets, dtype=_U8)[picks]
    return Places(
        over=False,
        round=next(_rounds),
        picks=picks.astype(_U4).tobytes(),
        offsets=places.tobytes(),
        statuses=b"",
    )


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
