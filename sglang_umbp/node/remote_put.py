"""A put of objects into a node server's pool: the server allocates, this process copies, the server commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import _native
from ..errors import NodeServerError, ProtocolError, RefusedError
from ..layout import Namespace
from ..status import Status
from . import protocol
from .attachment import Attachment
from .client_connection import ClientConnection
from .keys import MAX_KEY_BYTES_OF_MESSAGE
from .patience import Patience
from .protocol import ErrorCode, Places
from .refusal import LimitedLog

Order = tuple[int | None, int | None]
"""Stream and event of the device runtime whose work comes before the copy."""
_log = LimitedLog(logging.getLogger(__name__))


@dataclass(frozen=True)
class PutJob:
    """What is to be stored: keys and sources by part, and the namespace of each part."""

    native: _native.ClientPut
    spaces: Sequence[Namespace]
    after: Order = (None, None)
    wanted: Callable[[], bool] = lambda: True
    """False once the pool was cleared: what is not committed by then must not be."""

    def cut(self, quota_bytes: int) -> bool:
        """Takes the next keys that one message may carry: by number, by bytes of keys, by bytes of objects."""
        return self.native.cut(protocol.MAX_OBJECTS, quota_bytes, MAX_KEY_BYTES_OF_MESSAGE)


def put(job: PutJob, attachment: Attachment, patience: Patience) -> None:
    """Leaves the answers in the job. Raises PoolClosedError, InvalidBatchError (memory unregistered meanwhile)."""
    while not attachment.silent and job.cut(attachment.attached.reservation_quota_bytes):
        if not job.wanted():
            job.native.settle_all(Status.CLEARED)
            continue
        try:
            _put_message(job, attachment, patience)
        except RefusedError as refused:
            _log.warning("refused", "a put was refused by the server: %s", refused)
            job.native.settle_all(_status_of(refused))
        except (NodeServerError, ProtocolError) as error:
            if job.wanted():
                _log.warning("lost", "a put failed: %s", error)
                break
            job.native.settle_all(Status.CLEARED)


def _status_of(refused: RefusedError) -> Status:
    return Status.NO_SPACE if refused.code in (ErrorCode.QUOTA, ErrorCode.LIMIT) else Status.NO_SERVER


def _put_message(job: PutJob, attachment: Attachment, patience: Patience) -> None:
    batch = attachment.next_batch()
    begun = False
    try:
        with attachment.connection(patience.deadline) as connection:
            numbers = [attachment.number_of(space, connection, patience.deadline) for space in job.spaces]
            groups, keys, key_sizes, sizes = job.native.message(numbers)
            request = protocol.Allocate(batch, groups, keys, key_sizes, sizes, patience.server_s)
            begun = True
            places = _ask(connection, request, attachment, patience)
            while not places.over:
                _copy(job, places, attachment, patience)
                if not job.wanted():  # else the server may have cleared before it allocated
                    raise NodeServerError("the pool was cleared meanwhile")
                commit = protocol.Commit(batch, places.round, patience.server_s)
                places = _ask(connection, commit, attachment, patience)
            if not job.native.settle(places.statuses):
                raise ProtocolError("the server's answers do not fit the batch")
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


def _copy(job: PutJob, places: Places, attachment: Attachment, patience: Patience) -> None:
    with patience.suspended():
        copied = job.native.fill(attachment.native, places.picks, places.offsets, *job.after)
    if copied is None:
        raise ProtocolError("the server's places do not fit the batch")
    if not copied:
        raise NodeServerError("the server is gone")
