"""A put of objects into a node server's pool: the server allocates, this process copies, the server commits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import InvalidBatchError, NodeServerError, ProtocolError, RefusedError
from ..layout import Namespace
from ..status import Status
from . import protocol
from .attachment import Attachment
from .client_connection import ClientConnection
from .keys import MAX_KEY_BYTES_OF_MESSAGE
from .patience import Patience
from .protocol import ErrorCode, Places
from .refusal import LimitedLog

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Order = tuple[int | None, int | None]
"""Stream and event of the device runtime whose work comes before the copy."""
_U4, _U8 = np.dtype("<u4"), np.dtype("<u8")
_log = LimitedLog(logging.getLogger(__name__))


@dataclass(frozen=True)
class PutJob:
    """What is to be stored: keys[i] from item i of the source, in component `part` of a namespace."""

    space: Namespace
    part: int
    keys: list[bytes]
    source: _native.PutSource
    depth: int | None
    after: Order = (None, None)

    def __post_init__(self) -> None:
        if len(self.source) != len(self.keys):
            raise InvalidBatchError(f"there are {len(self.keys)} keys and {len(self.source)} objects")

    @property
    def statuses(self) -> Bytes:
        """Per key: 0, or why the object cannot be put. A new array."""
        return np.frombuffer(self.source.statuses, dtype=np.uint8).copy()

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """Per key: bytes of the object."""
        return np.frombuffer(self.source.sizes, dtype=np.uint64)


def no_server(job: PutJob) -> Bytes:
    """The answers where there is no server to ask."""
    statuses = job.statuses
    statuses[statuses == Status.OK] = Status.NO_SERVER
    return statuses


def put(job: PutJob, attachment: Attachment, patience: Patience) -> Bytes:
    """One status code a key. Raises PoolClosedError, InvalidBatchError (memory unregistered meanwhile)."""
    statuses = no_server(job)
    wanted = np.flatnonzero(statuses == Status.NO_SERVER)
    sizes = job.sizes
    for items in batches_of(wanted, sizes, job.keys, attachment.attached.reservation_quota_bytes):
        if attachment.silent:
            break
        try:
            statuses[items] = _put_batch(job, items, sizes, attachment, patience)
        except RefusedError as refused:
            _log.warning("refused", "a put was refused by the server: %s", refused)
            statuses[items] = _status_of(refused)
        except (NodeServerError, ProtocolError) as error:
            _log.warning("lost", "a put failed: %s", error)
            break
    return statuses


def _status_of(refused: RefusedError) -> Status:
    return Status.NO_SPACE if refused.code in (ErrorCode.QUOTA, ErrorCode.LIMIT) else Status.NO_SERVER


def batches_of(
    wanted: Numbers, sizes: npt.NDArray[np.uint64], keys: Sequence[bytes], quota_bytes: int
) -> Iterator[Numbers]:
    """The items in runs that one message may carry: by number, by bytes of keys, by bytes of objects."""
    first = nbytes = key_bytes = 0
    for place, item in enumerate(wanted.tolist()):
        nbytes += int(sizes[item])
        key_bytes += len(keys[item])
        full = place - first == protocol.MAX_OBJECTS or nbytes > quota_bytes or key_bytes > MAX_KEY_BYTES_OF_MESSAGE
        if full and place > first:
            yield wanted[first:place]
            first, nbytes, key_bytes = place, int(sizes[item]), len(keys[item])
    if first < len(wanted):
        yield wanted[first:]


def _put_batch(
    job: PutJob, items: Numbers, sizes: npt.NDArray[np.uint64], attachment: Attachment, patience: Patience
) -> Bytes:
    batch = attachment.next_batch()
    begun = False
    try:
        with attachment.connection(patience.deadline) as connection:
            request = protocol.Allocate(
                batch=batch,
                namespace=attachment.number_of(job.space, connection, patience.deadline),
                part=job.part,
                keys=[job.keys[item] for item in items.tolist()],
                sizes=sizes[items].astype(_U8).tobytes(),
                depth=None if job.depth is None else job.depth + int(items[0]),
                deadline_s=patience.server_s,
            )
            begun = True
            places = _ask(connection, request, attachment, patience)
            while not places.over:
                _copy(job, items, places, attachment, patience)
                commit = protocol.Commit(batch=batch, round=places.round, deadline_s=patience.server_s)
                places = _ask(connection, commit, attachment, patience)
            return _statuses(places, len(items))
    except BaseException:
        if begun:  # this thread is the only one that copies for it, and does not any more
            attachment.leave_over(batch)
        raise


def _ask(connection: ClientConnection, request: protocol.Message, attachment: Attachment, patience: Patience) -> Places:
    try:
        return connection.ask(request, Places, patience.deadline)
    except NodeServerError:
        attachment.went_unanswered()
        raise


def _copy(job: PutJob, items: Numbers, places: Places, attachment: Attachment, patience: Patience) -> None:
    picks = np.frombuffer(places.picks, dtype=_U4).astype(np.int64)
    offsets = np.frombuffer(places.offsets, dtype=_U8).astype(np.uint64)
    if not len(picks) or len(picks) != len(offsets) or int(picks.max()) >= len(items):
        raise ProtocolError("the server's places do not fit the batch")
    with patience.suspended():
        if attachment.native.fill(job.source, items[picks], offsets, *job.after) is False:
            raise NodeServerError("the server is gone")


def _statuses(places: Places, count: int) -> Bytes:
    statuses = np.frombuffer(places.statuses, dtype=np.uint8)
    if len(statuses) != count or (count and int(statuses.max()) >= len(Status)):
        raise ProtocolError("the server's answers do not fit the batch")
    return statuses
