"""A node server in a process of its own, which a test may kill or stop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import DEADLINE_S, wait_until

from sglang_umbp.node import autostart

NBYTES = 4096


class ServerProcess:
    """`sglang-umbp serve` in a process of its own."""

    def __init__(self, path: Path, objects: int, nbytes: int, **settings: Any) -> None:
        self.path = path
        values = {"dram_capacity_bytes": objects * nbytes, "index_entries": 256}
        values |= {"reservation_quota_bytes": objects * nbytes, **settings}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        command = [*autostart.server_command(f"unix:{path}"), *flags]
        self.log = path.with_suffix(".out")
        with self.log.open("ab") as log:
            environment = autostart.package_environment(os.environ)
            self.process = subprocess.Popen(command, env=environment, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: autostart.listens(path) or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP; on return none of its threads runs."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        self.process.wait(DEADLINE_S)


@contextmanager
def serving(path: Path, objects: int = 16, nbytes: int = NBYTES, **settings: Any) -> Iterator[ServerProcess]:
    server = ServerProcess(path, objects, nbytes, **settings)
    try:
        yield server
    finally:
        server.end()
