"""The messages between a node server and its clients: the one description of what goes over the socket.

A connection is a Unix stream socket. A frame is the length of its payload (4 bytes, little-endian) and then the
payload, a msgpack array ``[FRAME_VERSION, request id, name of the message, map of its fields]``. The client sends
requests; each is answered by exactly one frame with the same request id, in order, before the next request of that
connection is looked at: who wants two calls at once opens a second connection and joins it to the same client. An
`Error` answers what the server will not do, and the connection goes on (its request id is 0 if it is about the whole
connection, which then ends); a frame that is malformed, longer than
allowed or cut short ends the connection, and nothing else. Nothing is ever unpickled, and no descriptor is taken
from a client.

Order of a connection: `Hello` first (any version understands it, another version is refused by it), then `Attach`
(a new client of this process) or `Join` (one more connection of a client that this process attached) or only
`Stat`. `Attach` must carry the nonce of `Welcome`: the server took hold of the peer's process before it sent the
nonce, so an answer proves that the process it holds is the one that talks. After `Attached` a client asks for
something, such as `Ping`, before it reads or copies anything: if the connection ends before the server has heard from
the client again, nobody has read what it was told, and the client is forgotten.

Put: `Allocate` -> `Places`; copy the picked objects to their offsets in the arena; `Commit` -> `Places`, until
`over`. `Places` is over at once where nothing needs a copy. Several of one client's puts may be under way, each
under a batch number that the client chooses: after a deadline that passed without an answer it closes that
connection, and then abandons the number over another one, which works whether or not the server had begun. What
was allocated stays the client's until it commits, abandons, or its process ends: the end of a connection alone
frees nothing, because a thread may still be copying.

Arrays of numbers are packed little-endian: ``u4`` is uint32, ``u8`` is uint64, ``u1`` is uint8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar, get_type_hints

import msgpack

from .._version import __version__
from ..errors import ProtocolError

FRAME_VERSION = 1
"""Of the frame and of Hello, Welcome and Error; never changes its meaning."""

PROTOCOL_NUMBER = 2
"""Goes up with every change of a message."""

VERSION = f"{__version__}/{PROTOCOL_NUMBER}"
"""The one version of wheel, messages and memory: both sides must have the same."""

MAX_FRAME_BYTES = 8 << 20
MAX_GREETING_BYTES = 64 << 10
"""Frames of a connection that has not said Hello yet."""

MAX_OBJECTS = 2000
"""Keys of one message."""

MAX_KEY_BYTES = 1 << 20
MAX_COMPONENTS = 2048
MAX_IDENTITY_BYTES = 64 << 10
MAX_TITLE_CHARACTERS = 256
MAX_DEADLINE_S = 3600.0

DESCRIPTORS = ("header", "buckets", "entries", "arena", "client area")
"""What comes along with Attached by SCM_RIGHTS, in this order: the memory and the client of Pool.attach."""


class ErrorCode(StrEnum):
    """Why the server refused."""

    VERSION = "version"
    NOT_ALLOWED = "not_allowed"
    BAD_REQUEST = "bad_request"
    NOT_ATTACHED = "not_attached"
    UNKNOWN = "unknown"
    """No such namespace, batch or client: after a reconnection, register again."""
    QUOTA = "quota"
    """More bytes than one client may have reserved; Attached says how many."""
    LIMIT = "limit"
    """Too many clients, connections, namespaces or batches."""
    FAILED = "failed"
    """The call failed in the server; its log has the reason."""


# What a field may hold -------------------------------------------------------------------------------------

Check = Callable[[object], bool]


def number(low: int, high: int) -> Check:
    """A whole number from low to high."""
    return lambda value: type(value) is int and low <= value <= high


def seconds() -> Check:
    """A finite time from 0 to MAX_DEADLINE_S."""
    return lambda value: isinstance(value, (int, float)) and type(value) is not bool and 0 <= value <= MAX_DEADLINE_S


def flag() -> Check:
    """True or False."""
    return lambda value: type(value) is bool


def text(limit: int) -> Check:
    """Text of at most so many characters."""
    return lambda value: type(value) is str and len(value) <= limit


def octets(limit: int, unit: int = 1, least: int = 0) -> Check:
    """From least to limit bytes, a multiple of unit."""
    return lambda value: type(value) is bytes and least <= len(value) <= limit and len(value) % unit == 0


def list_of_octets(count: int, limit: int, least: int = 0) -> Check:
    """A list of least to count byte strings, each of at most limit bytes."""

    def check(value: object) -> bool:
        if type(value) is not list or not least <= len(value) <= count:
            return False
        return set(map(type, value)) <= {bytes} and max(map(len, value), default=0) <= limit

    return check


def list_of_text(count: int, limit: int) -> Check:
    """A list of at most count texts, each of at most limit characters."""

    def check(value: object) -> bool:
        if type(value) is not list or len(value) > count:
            return False
        return all(type(item) is str and len(item) <= limit for item in value)

    return check


# Messages --------------------------------------------------------------------------------------------------

REQUESTS: dict[str, type[Message]] = {}
ANSWERS: dict[str, type[Message]] = {}
U32, U64 = (1 << 32) - 1, (1 << 64) - 1


class Message:
    """Base of all messages: frozen dataclasses whose annotations say what each field may hold."""

    NAME: ClassVar[str]
    CHECKS: ClassVar[dict[str, Check]]


Kind = TypeVar("Kind", bound=type[Message])


def _request(kind: Kind) -> Kind:
    return _known(kind, REQUESTS)


def _answer(kind: Kind) -> Kind:
    return _known(kind, ANSWERS)


def _known(kind: Kind, messages: dict[str, type[Message]]) -> Kind:
    hints = get_type_hints(kind, include_extras=True)
    kind.NAME = kind.__name__.lower()
    kind.CHECKS = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    messages[kind.NAME] = kind
    return kind


@_request
@dataclass(frozen=True)
class Hello(Message):
    """Says the version. Answered by Welcome, or by Error VERSION or NOT_ALLOWED, after which the connection ends."""

    version: Annotated[str, text(64)]


@_answer
@dataclass(frozen=True)
class Welcome(Message):
    """The server's version and process, and the nonce for Attach."""

    version: Annotated[str, text(64)]
    pid: Annotated[int, number(1, U32)]
    nonce: Annotated[bytes, octets(16)]


@_request
@dataclass(frozen=True)
class Attach(Message):
    """Makes this process a client. label: for people, such as "tp3". Answered by Attached with DESCRIPTORS."""

    nonce: Annotated[bytes, octets(16)]
    label: Annotated[str, text(64)]


@_answer
@dataclass(frozen=True)
class Attached(Message):
    """What the client needs to know; it is in the list of those whose names eviction respects."""

    client: Annotated[int, number(0, U32)]
    server: Annotated[bytes, octets(16)]
    """Random, another one after each start."""
    capacity_bytes: Annotated[int, number(0, U64)]
    index_entries: Annotated[int, number(0, U32)]
    session_quota_bytes: Annotated[int, number(0, U64)]
    """Of this client's sessions together."""
    reservation_quota_bytes: Annotated[int, number(0, U64)]
    """Of this client's objects between Allocate and Commit. One message may not ask for more, unless for one object."""
    deadline_s: Annotated[float, seconds()]
    """The server's setting, for a client that has none of its own."""


@_request
@dataclass(frozen=True)
class Join(Message):
    """This connection speaks for a client that the same process attached. Answered by Done."""

    client: Annotated[int, number(0, U32)]


@_request
@dataclass(frozen=True)
class Detach(Message):
    """A client of this process is no more: it reads, copies and names nothing. Answered by Done.

    Its batches are abandoned. A client that is gone already is Done, too.
    """

    client: Annotated[int, number(0, U32)]


@_request
@dataclass(frozen=True)
class Register(Message):
    """Identities of a namespace's components. The same ones give the same number. Answered by Registered.

    titles: their names for people, one each.
    """

    identities: Annotated[list[bytes], list_of_octets(MAX_COMPONENTS, MAX_IDENTITY_BYTES, least=1)]
    titles: Annotated[list[str], list_of_text(MAX_COMPONENTS, MAX_TITLE_CHARACTERS)]


@_answer
@dataclass(frozen=True)
class Registered(Message):
    """The number by which this server knows the namespace."""

    namespace: Annotated[int, number(0, U32)]


@_request
@dataclass(frozen=True)
class Allocate(Message):
    """Begins a put of objects of one or more components, one batch. Answered by Places.

    batch: a number this client never used before, such as the next of a counter. groups: four u4 each: namespace,
    component, how many of the keys are this group's, pages before the first of these in their prefix (0: none, or
    unknown). keys: of all groups, one after the other; key_sizes: u4, bytes of each; sizes: u8, bytes of each object.
    deadline_s: for room and for other puts of the same keys.
    """

    batch: Annotated[int, number(0, U64)]
    groups: Annotated[bytes, octets(16 * MAX_OBJECTS, 16)]
    keys: Annotated[bytes, octets(MAX_FRAME_BYTES)]
    key_sizes: Annotated[bytes, octets(4 * MAX_OBJECTS, 4, least=4)]
    sizes: Annotated[bytes, octets(8 * MAX_OBJECTS, 8)]
    deadline_s: Annotated[float, seconds()]


@_request
@dataclass(frozen=True)
class Commit(Message):
    """The objects of the Places with this round are copied, all of them. Answered by Places.

    Waits for other puts of keys of this batch, until the deadline. Another round than the last one is refused: a
    request that was overtaken on another connection commits nothing.
    """

    batch: Annotated[int, number(0, U64)]
    round: Annotated[int, number(0, U64)]
    deadline_s: Annotated[float, seconds()]


@_answer
@dataclass(frozen=True)
class Places(Message):
    """Where to copy, or how the put ended.

    Not over: picks (u4) are positions in the batch, offsets (u8) their places in the arena; copy, then Commit. Over:
    statuses (u1, codes of Status) has one for each key.
    """

    over: Annotated[bool, flag()]
    round: Annotated[int, number(0, U64)]
    picks: Annotated[bytes, octets(4 * MAX_OBJECTS, 4)]
    offsets: Annotated[bytes, octets(8 * MAX_OBJECTS, 8)]
    statuses: Annotated[bytes, octets(MAX_OBJECTS)]


@_request
@dataclass(frozen=True)
class Abandon(Message):
    """Ends a batch, wherever it is; no thread of this client copies for it any more. Answered by Done.

    A number that is not under way is Done, too; an Allocate of it that comes later is refused.
    """

    batch: Annotated[int, number(0, U64)]


@_request
@dataclass(frozen=True)
class Remove(Message):
    """Removes objects of all components. Answered by Removed."""

    namespace: Annotated[int, number(0, U32)]
    keys: Annotated[list[bytes], list_of_octets(MAX_OBJECTS, MAX_KEY_BYTES)]


@_answer
@dataclass(frozen=True)
class Removed(Message):
    """flags: u1, one a key: 1 where an object was there."""

    flags: Annotated[bytes, octets(MAX_OBJECTS)]


@_request
@dataclass(frozen=True)
class Clear(Message):
    """Removes every object. Answered by Done."""


@_request
@dataclass(frozen=True)
class Ping(Message):
    """Answered by Done."""


@_answer
@dataclass(frozen=True)
class Done(Message):
    """It was done."""


@_request
@dataclass(frozen=True)
class Stat(Message):
    """Asks for figures. Answered by Report; needs no client.

    clients: with what each client reads and holds, for which the server looks at all that they name.
    """

    clients: Annotated[bool, flag()]


@_answer
@dataclass(frozen=True)
class Report(Message):
    """body: a JSON object; docs/node.md describes it."""

    body: Annotated[bytes, octets(MAX_FRAME_BYTES)]


@_answer
@dataclass(frozen=True)
class Error(Message):
    """The server will not do it. code: of ErrorCode; message: for people."""

    code: Annotated[str, text(64)]
    message: Annotated[str, text(4096)]


# Bytes -----------------------------------------------------------------------------------------------------


def encode(request_id: int, message: Message) -> bytes:
    """The payload of a frame."""
    values = {name: getattr(message, name) for name in message.CHECKS}
    payload: bytes = msgpack.packb([FRAME_VERSION, request_id, message.NAME, values])
    return payload


def decode(payload: bytes | bytearray, known: dict[str, type[Message]]) -> tuple[int, Message]:
    """Request id and message of a payload; known: REQUESTS or ANSWERS. Raises ProtocolError and nothing else."""
    try:
        whole = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            use_list=True,
            max_array_len=max(MAX_OBJECTS, MAX_COMPONENTS),
            max_map_len=16,
            max_str_len=4096 * 4,
            max_bin_len=MAX_FRAME_BYTES,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"not a msgpack value as expected: {error}") from None
    if type(whole) is not list or len(whole) != 4:
        raise ProtocolError("a frame has four parts: version, request id, name, fields")
    version, request_id, name, values = whole
    if type(version) is not int or version != FRAME_VERSION:
        raise ProtocolError(f"frame version {version!r:.32}; allowed: {FRAME_VERSION}")
    if type(request_id) is not int or not 0 <= request_id <= U64:
        raise ProtocolError("the request id is not a number of 64 bits")
    if type(name) is not str or name not in known or type(values) is not dict:
        raise ProtocolError(f"unknown message {name!r:.64}; allowed: {', '.join(known)}")
    return request_id, _message(known[name], values)


def _message(kind: type[Message], values: dict[str, object]) -> Message:
    if values.keys() != kind.CHECKS.keys():
        raise ProtocolError(f"{kind.NAME} has the fields {', '.join(kind.CHECKS) or 'none'}")
    for name, allowed in kind.CHECKS.items():
        if not allowed(values[name]):
            raise ProtocolError(f"{kind.NAME}: {name} is not as allowed")
    return kind(**values)
