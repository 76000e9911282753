"""Keys of a batch as bytes, for calls that a server answers."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidBatchError
from .protocol import MAX_KEY_BYTES


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
