"""Why a key of a batch succeeded or failed: the one enum that results, logs and metrics use."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """One key's outcome. True in a boolean context exactly when the key succeeded; numbers and reasons are stable."""

    description: str
    """What it means, for people."""

    def __new__(cls, code: int, description: str) -> Status:
        member = int.__new__(cls, code)
        member._value_ = code
        member.description = description
        return member

    OK = 0, "get: every byte asked for was copied; put: stored by this call"
    EXISTS = 1, "put: the key was there already with the same size; nothing was copied"
    MISSING = 2, "get: no such object"
    SIZE_MISMATCH = 3, "an object of another size is stored under the key; it stays as it was"
    BAD_RANGE = 4, "a range is empty or lies outside the object, or the key came without ranges"
    NOT_TILED = 5, "the ranges of a put leave a gap in the object or overlap"
    TOO_LARGE = 6, "the object is larger than the pool's capacity"
    NO_SPACE = 7, "no room beside the batch's own members, or nothing could be evicted before the deadline"
    NO_SLOT = 8, "all 64 reader slots were in use until the deadline"
    BUSY = 9, "another put of the same key did not end before the deadline"
    CLEARED = 10, "clear() ran while the object was being written"
    COLLISION = 11, "another key has the same 128-bit keyed hash"
    NOT_PINNED = 12, "the session does not hold this page"
    NO_SERVER = 13, "the pool's server is gone, or did not answer before the deadline"

    def __bool__(self) -> bool:
        return self <= Status.EXISTS

    @property
    def reason(self) -> str:
        """Its name in logs and metrics, such as 'no_space'."""
        return self.name.lower()


BY_CODE = tuple(Status)
"""The members by their code: the native core takes its answers from here."""
