"""The clients of a node server: attached, watched until their processes end, forgotten."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from .. import _native
from .node_client import NodeClient
from .peer import Peer
from .protocol import ErrorCode
from .refusal import refusal
from .reservations import ReservationTotal

SUMMED = ("get_calls", "gets", "hits", "bytes_read", "exists_keys", "exists_found")
"""Of the figures that clients report: counters."""

NOTHING = dict.fromkeys((*SUMMED, "named_bytes", "session_bytes"), 0)
"""Figures of a client that the core does not know any more."""


class Clients:
    """Every client that is attached. Thread-safe.

    A client is forgotten when its process has ended or it says that it is no more; never because of a time.
    """

    def __init__(
        self, native: _native.Pool, limit: int, quota_bytes: int, total_bytes: int, watch: Callable[[int], None]
    ) -> None:
        """quota_bytes, total_bytes: what each client, and all together, may have reserved.

        watch: called with the pidfd of each new client; whoever watches it calls ``end_of`` once it is readable.
        """
        self._native = native
        self._limit = limit
        self._quota_bytes = quota_bytes
        self._total = ReservationTotal(total_bytes)
        self._watch = watch
        self._lock = threading.Lock()
        self._clients: dict[int, NodeClient] = {}
        self._attaching = 0
        self._past: Counter[str] = Counter()
        self._last: dict[int, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    @contextlib.contextmanager
    def attach(self, peer: Peer, label: str) -> Iterator[tuple[NodeClient, list[int]]]:
        """A new client of this process, and descriptors for it that are closed afterwards.

        From now on what it names is passed over by eviction. Raises RefusedError.
        """
        self._take_place()
        try:
            client, descriptors = self._attach(peer, label)
        finally:
            with self._lock:
                self._attaching -= 1
        try:
            yield client, descriptors
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _take_place(self) -> None:
        with self._lock:
            if len(self._clients) + self._attaching >= self._limit:
                raise refusal(ErrorCode.LIMIT, f"{self._limit} clients are attached; allowed: no more (max_clients)")
            self._attaching += 1

    def _attach(self, peer: Peer, label: str) -> tuple[NodeClient, list[int]]:
        share = self._native.share()
        number = share["client_id"]
        descriptors: list[int] = []
        try:
            # Copies, made before the client can go: a number of ours must not come to mean another file.
            descriptors += [os.dup(descriptor) for descriptor in (*share["memory"], share["client"])]
            client = self._known(number, peer, label)
        except BaseException:
            self._native.remove_client(number)
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return client, descriptors

    def _known(self, number: int, peer: Peer, label: str) -> NodeClient:
        self._native.bind_client(number, peer.pid, peer.pidfd)
        client = NodeClient(number, peer.pid, label, os.dup(peer.pidfd), self._quota_bytes, self._total)
        with self._lock:
            self._clients[number] = client
        try:
            self._watch(client.pidfd)
        except BaseException:  # nobody would hear of its end
            self.forget(client)
            raise
        return client

    def find(self, number: int, pid: int) -> NodeClient:
        """The client with this number, which this process attached. Raises RefusedError."""
        with self._lock:
            client = self._clients.get(number)
        if client is None or client.pid != pid:
            raise refusal(ErrorCode.UNKNOWN, f"process {pid} has no client {number} attached")
        return client

    def end_of(self, pidfd: int) -> NodeClient | None:
        """Forgets the client with this pidfd if its process has ended. That client."""
        with self._lock:
            found = [client for client in self._clients.values() if client.pidfd == pidfd]
        if not found or not found[0].process_ended:
            return None
        self.forget(found[0])
        return found[0]

    def forget(self, client: NodeClient) -> None:
        """Frees all that the client reserved or named. Twice is a no-op."""
        with self._lock:
            if self._clients.pop(client.number, None) is None:
                return
        client.end()
        last = self.figures().get(client.number, NOTHING)
        with self._lock:
            self._past.update({name: last[name] for name in SUMMED})
            self._last.pop(client.number, None)
        self._native.remove_client(client.number)

    def forget_all(self) -> None:
        """For a server that stops."""
        for client in self.all():
            self.forget(client)

    def all(self) -> list[NodeClient]:
        """Those attached now."""
        with self._lock:
            return list(self._clients.values())

    def why_full(self) -> str:
        """Why nobody can reserve more: for people."""
        clients = [client.report() for client in self.all()]
        reserved, quarantined = (
            sum(int(str(client[name])) for client in clients) for name in ("reserved_bytes", "quarantined_bytes")
        )
        stopped = [str(client["pid"]) for client in clients if client["quarantined_bytes"]]
        of_whom = f" by stopped processes (pid {', '.join(stopped)})" if stopped else ""
        return (
            f"{reserved} bytes are reserved by all clients, {quarantined} of them quarantined{of_whom}; "
            f"allowed: {self._total.limit_bytes} (reservations_total_bytes)"
        )

    def figures(self) -> dict[int, dict[str, int]]:
        """What the native core tells of each client: what it names, and what it last reported to have read.

        A client that died is there as it was seen last: the core may have forgotten it before the server heard of it.
        """
        seen = {client["client_id"]: client for client in self._native.clients()}
        with self._lock:
            self._last.update({number: seen[number] for number in self._clients.keys() & seen.keys()})
            return {**self._last, **seen}

    def past(self) -> dict[str, int]:
        """Sums of the last reports of those that are no more."""
        with self._lock:
            return dict(self._past)
