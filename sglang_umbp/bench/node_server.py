"""A node server of a measurement's own: started with the memory that it needs, stopped at its end."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import NodePool, PoolSettings
from ..node.autostart import listens, server_command, server_environment
from ..node.client_settings import SERVERS_OWN
from .errors import MeasurementError

START_S = 120.0
STOP_S = 30.0
WARM_S = 300.0
POLL_S = 0.005
TOLD = ("dram_capacity_bytes", "index_entries")
"""Of the server's settings those that an attached client compares with the server's: a line says so if they differ."""

IDLE_EXIT_S = 30
"""A server whose measurement was killed goes by itself."""


class PrivateServer:
    """A context manager: `sglang-umbp serve` with these settings, its memory prefaulted before anybody attaches."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._directory = tempfile.TemporaryDirectory(prefix="umbp-bench-")
        self.path = Path(self._directory.name) / "node.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """As clients name it."""
        return f"unix:{self.path}"

    def __enter__(self) -> PrivateServer:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self) -> None:
        log = self.path.with_suffix(".log")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                server_command(self.address),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_S
        while not listens(self.path):
            if self._process.poll() is not None or time.monotonic() >= deadline:
                lines = log.read_text(errors="replace").strip().splitlines()
                raise MeasurementError(f"the node server did not start: {lines[-1] if lines else 'it said nothing'}")
            time.sleep(POLL_S)

    def _environment(self) -> dict[str, str]:
        made = server_environment(self._settings, os.environ)
        made["UMBP_DRAM_PREFAULT_IN_BACKGROUND"] = "false"
        made["UMBP_IDLE_EXIT_S"] = str(IDLE_EXIT_S)
        # One put of one request is one message, as large as the pool may be.
        made["UMBP_RESERVATION_QUOTA_BYTES"] = str(self._settings.dram_capacity_bytes)
        return made

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        self._directory.cleanup()


def client_settings(settings: PoolSettings, address: str) -> PoolSettings:
    """The settings of a client of the server at the address, otherwise the same.

    Without those of the server: it was started with them, or the figures say what it has.
    """
    servers: dict[str, Any] = {
        item.name: item.default for item in fields(settings) if item.name in SERVERS_OWN and item.name not in TOLD
    }
    return replace(settings, mode="node", standalone_address=address, standalone_auto_start=False, **servers)


def wait_until_warm(pool: NodePool) -> None:
    """Returns once the pool is attached and its maps have their pages. Raises NodeServerError, MeasurementError."""
    pool.wait_until_connected(0)
    deadline = time.monotonic() + WARM_S
    while not pool.populated:
        if time.monotonic() >= deadline:
            raise MeasurementError(f"the maps have not got their pages within {WARM_S:g} s")
        time.sleep(POLL_S)


@contextmanager
def opened_node_pool(settings: PoolSettings, address: str) -> Iterator[NodePool]:
    """A warm client of the server at the address; empty: of one with these settings, for as long as the block lasts."""
    if address:
        with NodePool(client_settings(settings, address), label="bench") as pool:
            wait_until_warm(pool)
            yield pool
        return
    with PrivateServer(settings) as server, opened_node_pool(settings, server.address) as pool:
        yield pool
