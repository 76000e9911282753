"""Threads of a test: started, waited for with a deadline, their exceptions raised in the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

DEADLINE_S = 60.0
"""Far beyond what anything here takes: reached only by a hang."""

T = TypeVar("T")


class Background(Generic[T]):
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout_s: float = DEADLINE_S) -> T:
        """What the call returned. Raises what it raised; a hang fails the test."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the call still runs after {timeout_s} s"
        if self._error is not None:
            raise self._error
        return self._value


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns as soon as the condition holds; a state that never comes fails the test."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the awaited state never came"
