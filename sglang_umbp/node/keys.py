"""Keys of a batch as bytes, for calls that a server answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import InvalidBatchError
from .protocol import MAX_KEY_BYTES, MAX_OBJECTS

MAX_KEY_BYTES_OF_MESSAGE = 4 << 20
"""Half of a frame; one key alone is always smaller."""


def key_bytes(keys: Sequence[str] | Sequence[bytes] | Sequence[str | bytes]) -> list[bytes]:
    """Each key as the native core takes it. Raises TypeError, InvalidBatchError (more than 1 MiB)."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a sequence, not one {type(keys).__name__}")
    return [_one(key, place) for place, key in enumerate(keys)]


def _one(key: str | bytes, place: int) -> bytes:
    if isinstance(key, str):
        key = key.encode()
    elif not isinstance(key, bytes):
        raise TypeError(f"key {place} is {type(key).__name__}; allowed: str or bytes")
    if len(key) > MAX_KEY_BYTES:
        raise InvalidBatchError(f"key {place} has {len(key)} bytes; allowed: up to {MAX_KEY_BYTES}")
    return key


def messages_of(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The keys in runs that one message may carry."""
    first = nbytes = 0
    for place, key in enumerate(keys):
        nbytes += len(key)
        if place - first == MAX_OBJECTS or nbytes > MAX_KEY_BYTES_OF_MESSAGE:
            yield keys[first:place]
            first, nbytes = place, len(key)
    if first < len(keys):
        yield keys[first:]
