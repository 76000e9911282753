"""A node server in a thread of the test, and a client that speaks the protocol message by message.

python -m node_rig JSON is a client in a process of its own, for tests that kill or stop it: see main().
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from objects import Rows, pattern
from shared_reader import attach as attach_pool
from waiting import DEADLINE_S

from sglang_umbp import Pool, Status
from sglang_umbp.errors import RefusedError
from sglang_umbp.identity import RAW_KEYS_IDENTITY
from sglang_umbp.node import protocol
from sglang_umbp.node.channel import Channel
from sglang_umbp.node.protocol import Message
from sglang_umbp.node.server import NodeServer
from sglang_umbp.node.server_settings import ServerSettings, server_settings

NBYTES = 4096


def settings_for(path: Path, objects: int = 16, nbytes: int = NBYTES, **given: Any) -> ServerSettings:
    """Of a small server that ignores the environment."""
    values = {
        "dram_capacity_bytes": objects * nbytes,
        "reservation_quota_bytes": objects * nbytes,
        "reservations_total_bytes": 4 * objects * nbytes,
        "index_entries": max(64, objects),
        "prefault": False,
        **given,
    }
    return server_settings({"address": f"unix:{path}", **values}, environ={})


@contextmanager
def running(settings: ServerSettings) -> Iterator[NodeServer]:
    """A server that serves from a thread until the block ends; every thread of it must have ended then."""
    server = NodeServer(settings).open()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the server does not stop"
        assert server.close(), "a connection's thread has not ended"


@contextmanager
def short_directory() -> Iterator[Path]:
    """A private directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="umbp") as name:
        yield Path(name)


class Talker:
    """A connection of a client: says what it is told to, message by message."""

    def __init__(self, path: Path, *, greet: bool = True, version: str = protocol.VERSION) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(DEADLINE_S)
        try:
            sock.connect(os.fspath(path))
        except OSError:
            sock.close()
            raise
        self.socket = sock
        self.channel = Channel(sock, protocol.ANSWERS, takes_descriptors=True)
        self.descriptors: list[int] = []
        self._requests = itertools.count(1)
        try:
            self.nonce = self.call(protocol.Hello(version=version)).nonce if greet else b""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Talker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def send(self, request: Message) -> int:
        request_id = next(self._requests)
        self.channel.send(request_id, request, deadline=time.monotonic() + DEADLINE_S)
        return request_id

    def receive(self, request_id: int | None = None) -> Any:
        """The answer. Raises RefusedError if it is an Error."""
        got_id, answer, descriptors = self.channel.receive(time.monotonic() + DEADLINE_S)
        self.descriptors += descriptors
        if isinstance(answer, protocol.Error):
            raise RefusedError(answer.code, answer.message)
        assert request_id is None or got_id == request_id
        return answer

    def call(self, request: Message) -> Any:
        return self.receive(self.send(request))

    def attach(self, label: str = "") -> protocol.Attached:
        answer = self.call(protocol.Attach(nonce=self.nonce, label=label))
        assert isinstance(answer, protocol.Attached)
        return answer

    def join(self, client: int) -> None:
        assert self.call(protocol.Join(client=client)) == protocol.Done()

    def stat(self) -> dict[str, Any]:
        figures = json.loads(self.call(protocol.Stat(clients=True)).body)
        assert isinstance(figures, dict)
        return figures


class Client(Talker):
    """A client with a mapped pool: puts and gets objects under plain keys."""

    def __init__(self, path: Path, *, rows: int = 16, nbytes: int = NBYTES, label: str = "") -> None:
        super().__init__(path)
        self.attached = self.attach(label)
        assert len(self.descriptors) == len(protocol.DESCRIPTORS)
        self.pool: Pool = attach_pool(self.descriptors[:4], self.descriptors[4])
        self.rows = Rows(self.pool, rows, nbytes)
        self.nbytes = nbytes
        self.namespace = self.register(RAW_KEYS_IDENTITY)
        self.batches = itertools.count(1)

    def close(self) -> None:
        self.pool.close()
        super().close()

    def register(self, *identities: bytes) -> int:
        titles = ["raw"] * len(identities)
        answer = self.call(protocol.Register(identities=list(identities), titles=titles))
        assert isinstance(answer, protocol.Registered)
        return answer.namespace

    def allocation(
        self, keys: Sequence[str], batch: int | None = None, deadline_s: float = 1.0, **more: Any
    ) -> Message:
        names = [key.encode() for key in keys]
        values = {
            "batch": next(self.batches) if batch is None else batch,
            "groups": groups((self.namespace, 0, len(keys), 0)),
            "keys": b"".join(names),
            "key_sizes": np.array([len(name) for name in names], dtype="<u4").tobytes(),
            "sizes": np.full(len(keys), self.nbytes, dtype="<u8").tobytes(),
            "deadline_s": deadline_s,
        }
        return protocol.Allocate(**{**values, **more})

    def allocate(self, keys: Sequence[str], batch: int | None = None, **more: Any) -> protocol.Places:
        answer = self.call(self.allocation(keys, batch, **more))
        assert isinstance(answer, protocol.Places)
        return answer

    def copy(self, keys: Sequence[str], places: protocol.Places) -> None:
        """Copies the picked objects to where they go."""
        for row, key in zip(self.rows.data, keys, strict=False):
            row[:] = pattern(key, self.nbytes)
        source = self.pool.native.whole_source(self.rows.addresses[: len(keys)], [self.nbytes] * len(keys))
        picks = np.frombuffer(places.picks, "<u4").astype(np.uint64)
        self.pool.native.fill(source, picks, np.frombuffer(places.offsets, "<u8"))

    def put(self, keys: Sequence[str], deadline_s: float = 1.0) -> list[Status]:
        batch = next(self.batches)
        places = self.allocate(keys, batch, deadline_s=deadline_s)
        while not places.over:
            self.copy(keys, places)
            places = self.call(protocol.Commit(batch=batch, round=places.round, deadline_s=deadline_s))
        return statuses(places)

    def get(self, keys: Sequence[str]) -> list[bool]:
        return self.rows.get(keys)

    def remove(self, keys: Sequence[str]) -> list[bool]:
        answer = self.call(protocol.Remove(namespace=self.namespace, keys=[key.encode() for key in keys]))
        return [bool(flag) for flag in answer.flags]


def groups(*some: tuple[int, int, int, int]) -> bytes:
    """Namespace, component, number of keys and depth of each group of an Allocate."""
    return np.array(some, dtype="<u4").tobytes()


def statuses(places: protocol.Places) -> list[Status]:
    assert places.over
    return [Status(code) for code in places.statuses]


def main(argv: list[str]) -> int:
    """Puts job["stored"], allocates job["reserved"], pins job["pinned"]; says so in one line, and then waits.

    job["allocate_long"]: then asks for more room with a deadline far away, and waits for that.
    """
    job = json.loads(argv[0])
    client = Client(Path(job["path"]), rows=64, nbytes=job.get("nbytes", NBYTES), label=job.get("label", ""))
    if job.get("stored"):
        assert all(client.put(job["stored"]))
    if job.get("reserved"):
        assert not client.allocate(job["reserved"]).over
    session = client.pool.pin(job.get("pinned", []))
    print(json.dumps({"client": client.attached.client, "pinned": session.hits}), flush=True)
    if job.get("allocate_long"):
        client.allocate(job["allocate_long"], deadline_s=50.0)
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
