"""One connection of a node server: who is there, what it asks, what it is answered. One thread each."""

from __future__ import annotations

import logging
import os
import secrets
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import InvalidBatchError, NodeServerError, ProtocolError, RefusedError, UmbpError
from ..status import Status
from . import protocol, puts
from .channel import Channel, ConnectionEndedError
from .node_client import NodeClient
from .peer import Peer
from .plain_text import printable
from .protocol import ErrorCode, Message
from .refusal import as_error, refusal
from .reservations import Admission

if TYPE_CHECKING:
    from .service import Service

GREETING_S = 10.0
"""From the connection to Hello."""

STRANGER_S = 60.0
"""Between two requests of a connection that belongs to no client."""

FAREWELL_S = 1.0
"""For a refused connection to read why."""

SEND_S = 10.0
"""For an answer to go out: a client that does not read loses the connection."""

_GROUP = struct.Struct("<4I")

logger = logging.getLogger(__name__)


class Connection:
    """Answers one request after the other until the connection ends. Owns the channel and the peer."""

    def __init__(self, channel: Channel, peer: Peer, service: Service) -> None:
        self._channel = channel
        self._peer = peer
        self._service = service
        self._client: NodeClient | None = None
        self._nonce = secrets.token_bytes(16)
        self._greeted = False
        channel.max_frame_bytes = protocol.MAX_GREETING_BYTES
        self._answers: dict[type[Message], Callable[[Any], Message]] = {
            protocol.Join: self._join,
            protocol.Detach: self._detach,
            protocol.Register: self._register,
            protocol.Allocate: self._allocate,
            protocol.Commit: self._commit,
            protocol.Abandon: self._abandon,
            protocol.Remove: self._remove,
            protocol.Clear: self._clear,
            protocol.Ping: self._ping,
            protocol.Stat: self._stat,
        }

    def interrupt(self) -> None:
        """Ends it from another thread."""
        self._channel.interrupt()

    def run(self) -> None:
        """Serves until the other side goes away or breaks the rules. Raises nothing."""
        try:
            if self._peer.uid != os.getuid():
                self._send(0, as_error(self._foreign()))
                self._channel.drain(time.monotonic() + FAREWELL_S)
                return
            while True:
                self._serve_one()
        except ConnectionEndedError:
            pass
        except ProtocolError as error:
            self._service.log.warning("protocol", "connection of pid %d ended: %s", self._peer.pid, error)
        except NodeServerError as error:
            self._service.log.warning("silent", "connection of pid %d ended: %s", self._peer.pid, error)
        except Exception:  # the thread's border: one connection's fault is not the others'
            logger.exception("connection of pid %d ended by a fault of the server", self._peer.pid)
        finally:
            if self._client is not None:
                self._client.forget(self)
                if not self._client.heard_of:
                    self._service.clients.forget(self._client)
            self.close()

    def close(self) -> None:
        """Gives the socket and the hold on the peer's process back."""
        self._channel.close()
        self._peer.close()

    def _foreign(self) -> RefusedError:
        self._service.log.warning("uid", "uid %d (pid %d) was refused", self._peer.uid, self._peer.pid)
        return refusal(
            ErrorCode.NOT_ALLOWED, f"this server belongs to uid {os.getuid()}, and uid {self._peer.uid} is refused"
        )

    def _serve_one(self) -> None:
        request_id, request, _ = self._channel.receive(self._patience())
        if self._client is not None:
            self._client.heard_of = True
        if not self._greeted:
            self._greet(request_id, request)
        elif isinstance(request, protocol.Attach):
            self._attach(request_id, request)
        else:
            self._answer(request_id, request)

    def _patience(self) -> float | None:
        if self._client is not None:
            return None
        return time.monotonic() + (STRANGER_S if self._greeted else GREETING_S)

    def _send(self, request_id: int, message: Message, descriptors: list[int] | None = None) -> None:
        self._channel.send(request_id, message, descriptors=descriptors, deadline=time.monotonic() + SEND_S)

    def _greet(self, request_id: int, request: Message) -> None:
        if not isinstance(request, protocol.Hello):
            raise ProtocolError(f"{request.NAME} before hello")
        if request.version != protocol.VERSION:
            text = self._other_version(request.version)
            self._service.log.warning("version", "pid %d was refused: %s", self._peer.pid, text)
            self._send(request_id, as_error(refusal(ErrorCode.VERSION, text)))
            raise ConnectionEndedError("another version")
        self._greeted = True
        self._channel.max_frame_bytes = protocol.MAX_FRAME_BYTES
        self._send(request_id, protocol.Welcome(version=protocol.VERSION, pid=os.getpid(), nonce=self._nonce))

    def _other_version(self, version: str) -> str:
        idle_s = self._service.settings.idle_exit_s
        end = f"ends by itself {idle_s:g} s after its last client" if idle_s else "does not end by itself"
        return (
            f"the client has version {printable(version)}, this server (pid {os.getpid()}) {protocol.VERSION}; both "
            f"need the same: `kill {os.getpid()}` ends this server, which otherwise {end}, and the next one is used"
        )

    def _answer(self, request_id: int, request: Message) -> None:
        try:
            if type(request) not in self._answers:
                raise ProtocolError(f"{request.NAME} once more")
            answer = self._answers[type(request)](request)
        except RefusedError as refused:
            answer = as_error(refused)
        except InvalidBatchError as error:
            answer = as_error(refusal(ErrorCode.BAD_REQUEST, str(error)))
        except ProtocolError:
            raise
        except (UmbpError, MemoryError) as error:
            self._service.log.warning("failed", "%s of pid %d failed: %s", request.NAME, self._peer.pid, error)
            answer = as_error(refusal(ErrorCode.FAILED, f"{request.NAME} failed: {error}"))
        try:
            self._send(request_id, answer)
        except NodeServerError:
            self._take_back(request, answer)
            raise

    def _take_back(self, request: Message, answer: Message) -> None:
        """An answer that did not arrive whole told nobody where to copy: what it reserved is of no use."""
        if isinstance(answer, protocol.Places) and isinstance(request, protocol.Allocate | protocol.Commit):
            self._of_client().abandon(request.batch)

    # Clients ---------------------------------------------------------------------------------------------

    def _attach(self, request_id: int, request: protocol.Attach) -> None:
        try:
            self._refuse_second_client()
            if not secrets.compare_digest(request.nonce, self._nonce):
                raise refusal(ErrorCode.NOT_ALLOWED, "the nonce is not the one of this connection's welcome")
            with self._service.clients.attach(self._peer, request.label) as (client, descriptors):
                client.add(self)
                self._client = client
                self._tell(request_id, client, descriptors)
        except RefusedError as refused:
            self._send(request_id, as_error(refused))
        except (UmbpError, OSError) as error:
            if isinstance(error, NodeServerError):
                raise
            self._service.log.warning("attach", "attach of pid %d failed: %s", self._peer.pid, error)
            self._send(request_id, as_error(refusal(ErrorCode.FAILED, f"attach failed: {error}")))

    def _tell(self, request_id: int, client: NodeClient, descriptors: list[int]) -> None:
        try:
            self._send(request_id, self._service.attached(client), descriptors)
        except NodeServerError:  # nobody maps what nobody was given: it would be a client as long as its process lives
            self._service.clients.forget(client)
            raise

    def _refuse_second_client(self) -> None:
        if self._client is not None:
            raise refusal(ErrorCode.BAD_REQUEST, f"this connection speaks for client {self._client.number} already")

    def _of_client(self) -> NodeClient:
        if self._client is None:
            raise refusal(ErrorCode.NOT_ATTACHED, "this connection speaks for no client: attach or join first")
        return self._client

    def _join(self, request: protocol.Join) -> Message:
        self._refuse_second_client()
        client = self._service.clients.find(request.client, self._peer.pid)
        client.add(self)
        client.heard_of = True  # who knows its number has read what it was given
        self._client = client
        return protocol.Done()

    def _detach(self, request: protocol.Detach) -> Message:
        try:
            client = self._service.clients.find(request.client, self._peer.pid)
        except RefusedError:
            return protocol.Done()
        client.forget(self)  # so that this answer still goes out
        self._service.clients.forget(client)
        if client is self._client:
            self._client = None
        return protocol.Done()

    # Objects ---------------------------------------------------------------------------------------------

    def _register(self, request: protocol.Register) -> Message:
        self._of_client()
        return protocol.Registered(namespace=self._service.namespaces.register(request.identities, request.titles))

    def _allocate(self, request: protocol.Allocate) -> Message:
        client, deadline = self._of_client(), _deadline(request.deadline_s)
        batch = self._service.native.reserve_packed(
            self._groups(request.groups), request.keys, request.key_sizes, request.sizes
        )
        nbytes = _admissible(client, batch)
        client.begin(request.batch, batch, batch.key_bytes)
        try:
            admission = client.reservations.admit(request.batch, nbytes, deadline)
            if admission is Admission.GRANTED:
                places = _step(request.batch, batch, lambda: puts.allocate(batch, deadline))
            elif admission is Admission.TOTAL:
                raise refusal(ErrorCode.QUOTA, self._service.clients.why_full())
            else:
                batch.abandon()
                places = puts.over(bytes([Status.NO_SPACE]) * len(batch))
        except BaseException:
            client.abandon(request.batch)
            client.reservations.release(request.batch)
            raise
        return self._settled(client, request.batch, batch, places)

    def _groups(self, packed: bytes) -> list[tuple[_native.Components, int, int, int]]:
        find = self._service.namespaces.find
        return [(find(space, part), part, count, depth) for space, part, count, depth in _GROUP.iter_unpack(packed)]

    def _commit(self, request: protocol.Commit) -> Message:
        client, deadline = self._of_client(), _deadline(request.deadline_s)
        batch = client.batch_to_commit(request.batch, request.round)
        try:
            places = _step(request.batch, batch, lambda: puts.commit(batch, deadline))
        except BaseException:  # nothing of it stays reserved then
            client.abandon(request.batch)
            raise
        return self._settled(client, request.batch, batch, places)

    def _settled(self, client: NodeClient, number: int, batch: _native.RemoteBatch, places: protocol.Places) -> Message:
        if places.over:
            client.finish(number)
            self._service.after_put()
            return places
        client.told(number, places.round)
        client.reservations.correct(number, batch.nbytes_held)
        if batch.abandoned:
            client.reservations.release(number)
            raise _abandoned(number)
        return places

    def _abandon(self, request: protocol.Abandon) -> Message:
        self._of_client().abandon(request.batch)
        return protocol.Done()

    def _remove(self, request: protocol.Remove) -> Message:
        self._of_client()
        components = self._service.namespaces.find(request.namespace)
        return protocol.Removed(flags=bytes(self._service.native.remove(components, request.keys)))

    def _clear(self, request: protocol.Clear) -> Message:
        self._of_client()
        self._service.native.clear()
        return protocol.Done()

    def _ping(self, request: protocol.Ping) -> Message:
        return protocol.Done()

    def _stat(self, request: protocol.Stat) -> Message:
        return protocol.Report(body=self._service.report(request.clients))


def _admissible(client: NodeClient, batch: _native.RemoteBatch) -> int:
    """Bytes that count against the quota; what is too large for the pool is refused by it."""
    nbytes, quota_bytes = batch.nbytes_asked, client.reservations.quota_bytes
    if nbytes > quota_bytes and len(batch) > 1:
        raise refusal(
            ErrorCode.QUOTA,
            f"{nbytes} bytes in one message; allowed: {quota_bytes} (reservation_quota_bytes), or one object",
        )
    return nbytes


def _deadline(deadline_s: float) -> float:
    return time.monotonic() + deadline_s  # at most MAX_DEADLINE_S; the client's end ends the wait


def _step(number: int, batch: _native.RemoteBatch, step: Callable[[], protocol.Places]) -> protocol.Places:
    """Runs it; another connection may abandon the batch meanwhile."""
    try:
        return step()
    except InvalidBatchError:
        if batch.abandoned:
            raise _abandoned(number) from None
        raise


def _abandoned(number: int) -> RefusedError:
    return refusal(ErrorCode.UNKNOWN, f"batch {number} was abandoned")
