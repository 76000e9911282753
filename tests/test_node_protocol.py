"""Messages and frames of the node server: every one survives the way there and back, nothing else gets through."""

from __future__ import annotations

import gc
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import pytest
from waiting import Background

from sglang_umbp.errors import NodeServerError, ProtocolError
from sglang_umbp.node import protocol
from sglang_umbp.node.channel import Channel, ConnectionEndedError
from sglang_umbp.node.protocol import ANSWERS, REQUESTS, Message, decode, encode

GROWTH_BYTES = 16 << 20
"""More than this a process may not have grown by while it refused frames."""

SAMPLES: list[Message] = [
    protocol.Hello(version=protocol.VERSION),
    protocol.Welcome(version=protocol.VERSION, pid=1, nonce=b"n" * 16),
    protocol.Attach(nonce=b"n" * 16, label="tp3"),
    protocol.Attached(
        client=1,
        server=b"s" * 16,
        capacity_bytes=1 << 40,
        index_entries=1 << 31,
        session_quota_bytes=1,
        reservation_quota_bytes=(1 << 64) - 1,
        deadline_s=1.0,
    ),
    protocol.Join(client=1),
    protocol.Detach(client=(1 << 32) - 1),
    protocol.Register(identities=[b"a", b""], titles=["c4", ""]),
    protocol.Registered(namespace=0),
    protocol.Allocate(
        batch=(1 << 64) - 1, groups=b"g" * 32, keys=b"k", key_sizes=b"4" * 8, sizes=b"8" * 16, deadline_s=0
    ),
    protocol.Allocate(batch=0, groups=b"", keys=b"", key_sizes=b"4" * 4, sizes=b"8" * 8, deadline_s=0.25),
    protocol.Commit(batch=1, round=2, deadline_s=3600.0),
    protocol.Places(over=False, round=3, picks=b"1234", offsets=b"12345678", statuses=b""),
    protocol.Places(over=True, round=0, picks=b"", offsets=b"", statuses=b"\0\1"),
    protocol.Abandon(batch=5),
    protocol.Remove(namespace=1, keys=[]),
    protocol.Removed(flags=b"\1\0"),
    protocol.Clear(),
    protocol.Ping(),
    protocol.Done(),
    protocol.Stat(clients=True),
    protocol.Report(body=b"{}"),
    protocol.Error(code=protocol.ErrorCode.QUOTA, message="why"),
]
EVERYTHING = {**REQUESTS, **ANSWERS}


def test_every_message_has_a_sample():
    assert {sample.NAME for sample in SAMPLES} == set(EVERYTHING)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: message.NAME)
def test_a_message_comes_back_as_it_was(message):
    assert decode(encode(77, message), EVERYTHING) == (77, message)


def test_a_request_is_no_answer():
    with pytest.raises(ProtocolError, match="unknown message 'ping'"):
        decode(encode(1, protocol.Ping()), ANSWERS)


def altered(message: Message, **values: Any) -> bytes:
    """The payload of a message with fields that its class would not have."""
    fields = {name: getattr(message, name) for name in message.CHECKS}
    return msgpack.packb([protocol.FRAME_VERSION, 1, message.NAME, {**fields, **values}])


ALLOCATE = SAMPLES[8]


@pytest.mark.parametrize(
    "values",
    [
        {"batch": -1},
        {"batch": True},
        {"batch": 1.0},
        {"groups": b"g" * 15},
        {"groups": b"g" * 16 * (protocol.MAX_OBJECTS + 1)},
        {"groups": [0, 0, 1, 0]},
        {"keys": [b"k"]},
        {"keys": "text"},
        {"key_sizes": b""},
        {"key_sizes": b"123"},
        {"key_sizes": b"4" * 4 * (protocol.MAX_OBJECTS + 1)},
        {"sizes": b"1234567"},
        {"sizes": [1, 2]},
        {"sizes": b"8" * 8 * (protocol.MAX_OBJECTS + 1)},
        {"deadline_s": float("nan")},
        {"deadline_s": float("inf")},
        {"deadline_s": -0.1},
        {"deadline_s": protocol.MAX_DEADLINE_S + 1},
        {"deadline_s": True},
        {"deadline_s": None},
        {"more": 1},
    ],
    ids=str,
)
def test_a_field_that_is_not_as_allowed_is_refused(values):
    with pytest.raises(ProtocolError):
        decode(altered(ALLOCATE, **values), REQUESTS)


def test_a_missing_field_is_refused():
    with pytest.raises(ProtocolError, match="commit has the fields batch, round, deadline_s"):
        decode(msgpack.packb([protocol.FRAME_VERSION, 1, "commit", {"batch": 1, "round": 1}]), REQUESTS)


@pytest.mark.parametrize(
    "whole",
    [
        None,
        [],
        {},
        [1, 1, "ping"],
        [1, 1, "ping", {}, 0],
        [2, 1, "ping", {}],
        [True, 1, "ping", {}],
        [1, -1, "ping", {}],
        [1, "1", "ping", {}],
        [1, 1, b"ping", {}],
        [1, 1, "pong", {}],
        [1, 1, "ping", []],
        [1, 1, "ping", {1: 2}],
        [1, 1, ["ping"], {}],
        [1, 1, "ping", msgpack.ExtType(5, b"x")],
        [1, 1, "ping", msgpack.Timestamp(1)],
    ],
    ids=str,
)
def test_what_is_no_frame_is_refused(whole):
    with pytest.raises(ProtocolError):
        decode(msgpack.packb(whole), REQUESTS)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x94",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        b"\xc6\xff\xff\xff\xff",  # 4 GiB of bytes
        b"\xdb\xff\xff\xff\xff",
        b"\x91" * 100_000,  # arrays in arrays
        b"\x81\x01" * 100_000,
        b"\xa1\xff",  # text that is no UTF-8
        encode(1, protocol.Ping()) + b"\0",
    ],
    ids=range(11),
)
def test_broken_msgpack_is_refused_without_taking_memory(payload):
    before = resident_bytes()
    with pytest.raises(ProtocolError):
        decode(payload, REQUESTS)
    assert resident_bytes() - before < GROWTH_BYTES


# --- random and mutated frames -------------------------------------------------------------------


class Mutations:
    """Payloads made from valid ones, or from nothing."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.valid = [encode(index, message) for index, message in enumerate(SAMPLES)]

    def next(self) -> bytes:
        ways = (self.noise, self.flipped, self.cut, self.spliced, self.grown, self.revalued)
        return self.random.choice(ways)()

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.randrange(80))

    def flipped(self) -> bytes:
        payload = bytearray(self.random.choice(self.valid))
        for _ in range(self.random.randint(1, 4)):
            payload[self.random.randrange(len(payload))] = self.random.randrange(256)
        return bytes(payload)

    def cut(self) -> bytes:
        payload = self.random.choice(self.valid)
        return payload[: self.random.randrange(len(payload))]

    def spliced(self) -> bytes:
        one, two = self.random.choices(self.valid, k=2)
        return one[: self.random.randrange(len(one))] + two[self.random.randrange(len(two)) :]

    def grown(self) -> bytes:
        payload = self.random.choice(self.valid)
        at = self.random.randrange(len(payload))
        return payload[:at] + self.random.randbytes(self.random.randint(1, 9)) + payload[at:]

    def revalued(self) -> bytes:
        """A frame that is well-formed but for one field, which has another type or an edge of its range."""
        message = self.random.choice(SAMPLES)
        values = {name: getattr(message, name) for name in message.CHECKS}
        others = [None, True, -1, 0, (1 << 64) - 1, 1e308, "", "x" * 300, b"", b"8" * 16, [], [b"k"], [1], {}, {"a": 1}]
        if values:
            values[self.random.choice(list(values))] = self.random.choice(others)
        return msgpack.packb([protocol.FRAME_VERSION, 1, message.NAME, values])


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.soak
def test_no_frame_crashes_the_decoder_or_makes_it_grow(soak_scale, soak_report):
    mutations = Mutations(seed=5)
    frames = 100_000 * soak_scale
    accepted = 0

    def refuse(count: int) -> None:
        nonlocal accepted
        for _ in range(count):
            payload = mutations.next()
            try:
                _, message = decode(payload, EVERYTHING)
            except ProtocolError:
                continue
            accepted += 1
            assert all(allowed(getattr(message, name)) for name, allowed in message.CHECKS.items())

    refuse(frames // 10)
    gc.collect()
    before = resident_bytes()
    refuse(frames - frames // 10)
    gc.collect()
    growth = resident_bytes() - before
    soak_report("protocol decoder", frames=frames, accepted=accepted, growth_bytes=growth)
    assert growth < GROWTH_BYTES
    assert 0 < accepted < frames // 2, "the mutations hit nothing, or change nothing"


# --- channels ------------------------------------------------------------------------------------


@contextmanager
def channels() -> Iterator[tuple[Channel, Channel]]:
    """A client's end and a server's."""
    one, two = socket.socketpair()
    client, server = Channel(one, ANSWERS, takes_descriptors=True), Channel(two, REQUESTS)
    try:
        yield client, server
    finally:
        client.close()
        server.close()


def test_frames_that_come_in_pieces_or_together_are_whole_messages():
    with channels() as (client, server):
        frames = b""
        for number in range(3):
            payload = encode(number, protocol.Abandon(batch=number))
            frames += struct.pack("<I", len(payload)) + payload
        reader = Background(lambda: [server.receive(time.monotonic() + 30) for _ in range(3)])
        for cut in range(0, len(frames), 7):
            client.socket.sendall(frames[cut : cut + 7])
        received = reader.result()
        assert [(item.request_id, item.message.batch) for item in received] == [(0, 0), (1, 1), (2, 2)]
        client.socket.sendall(frames)
        assert [server.receive(time.monotonic() + 30).request_id for _ in range(3)] == [0, 1, 2]


def test_a_frame_longer_than_allowed_is_refused_before_it_is_read():
    with channels() as (client, server):
        server.max_frame_bytes = 100
        client.socket.sendall(struct.pack("<I", 101))
        with pytest.raises(ProtocolError, match="a frame of 101 bytes; allowed: 100"):
            server.receive(time.monotonic() + 30)
    with channels() as (client, server):
        client.socket.sendall(b"\xff" * 4)
        with pytest.raises(ProtocolError):
            server.receive(time.monotonic() + 30)


def test_a_frame_that_is_cut_short_is_the_end():
    with channels() as (client, server):
        client.socket.sendall(struct.pack("<I", 50) + b"x" * 49)
        client.close()
        with pytest.raises(ConnectionEndedError, match="in the middle of a frame"):
            server.receive(time.monotonic() + 30)


def test_silence_ends_at_the_deadline():
    with channels() as (_, server):
        begin = time.monotonic()
        with pytest.raises(NodeServerError, match="before the deadline"):
            server.receive(begin + 0.05)
        assert 0.04 < time.monotonic() - begin < 10


def test_an_end_that_does_not_read_makes_sending_fail_at_the_deadline():
    with channels() as (client, _):
        report = protocol.Report(body=b"x" * (4 << 20))
        with pytest.raises(NodeServerError, match="could not be sent before the deadline"):
            client.send(1, report, deadline=time.monotonic() + 0.05)


def test_interrupt_wakes_who_waits():
    with channels() as (_, server):
        waiting = Background(server.receive)
        server.interrupt()
        with pytest.raises(ConnectionEndedError):
            waiting.result()


def test_a_message_longer_than_a_frame_is_not_sent():
    with channels() as (client, _), pytest.raises(ProtocolError, match="allowed: 8388608"):
        client.send(1, protocol.Report(body=b"x" * protocol.MAX_FRAME_BYTES))
