"""The namespaces that clients registered with a node server, by number."""

from __future__ import annotations

import threading

from .. import _native
from .protocol import ErrorCode
from .refusal import refusal

MAX_NAMESPACES = 4096
MAX_IDENTITIES = 65_536
MAX_IDENTITY_BYTES = 64 << 20
"""Of all namespaces together: a client cannot make the server grow without bound."""


class Namespaces:
    """Numbers are for the life of the server, the same for every client. Thread-safe."""

    def __init__(self, native: _native.Pool) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._components: list[_native.Components] = []
        self._titles: dict[bytes, str] = {}
        self._identity_bytes = 0

    def register(self, identities: list[bytes], titles: list[str]) -> int:
        """The number of the namespace with these components. Raises RefusedError: too many."""
        if len(titles) != len(identities):
            raise refusal(ErrorCode.BAD_REQUEST, f"{len(identities)} identities, but {len(titles)} titles")
        wanted = tuple(identities)
        with self._lock:
            if wanted not in self._numbers:
                self._make_room_for(identities)
                self._components.append(_native.Components(self._native, identities))
                self._numbers[wanted] = len(self._components) - 1
                for identity, title in zip(identities, titles, strict=True):
                    self._titles.setdefault(identity, title)
            return self._numbers[wanted]

    def _make_room_for(self, identities: list[bytes]) -> None:
        nbytes = self._identity_bytes + sum(map(len, identities))
        count = sum(map(len, self._components)) + len(identities)
        if len(self._components) >= MAX_NAMESPACES or count > MAX_IDENTITIES or nbytes > MAX_IDENTITY_BYTES:
            raise refusal(
                ErrorCode.LIMIT,
                f"{len(self._components)} namespaces with {count} components are registered; allowed: "
                f"{MAX_NAMESPACES}, {MAX_IDENTITIES}. Start the server anew to forget those of the past",
            )
        self._identity_bytes = nbytes

    def find(self, number: int, part: int = 0) -> _native.Components:
        """The namespace's components, of which there must be number part. Raises RefusedError."""
        with self._lock:
            known = self._components[number] if number < len(self._components) else None
        if known is None:
            raise refusal(ErrorCode.UNKNOWN, f"no namespace {number} is registered with this server")
        if part >= len(known):
            raise refusal(ErrorCode.BAD_REQUEST, f"component {part} of a namespace that has {len(known)}")
        return known

    def titles(self) -> dict[bytes, str]:
        """The name for people of each component, by its identity."""
        with self._lock:
            return dict(self._titles)
