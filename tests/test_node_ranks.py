"""Eight ranks, each a process, whose pages are replicated: stored once, read by all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from node_process import ServerProcess, serving
from node_rig import short_directory
from waiting import DEADLINE_S

from sglang_umbp.node.stat_client import StatClient

RANKS = 8
PAGES = 64
NBYTES = 16 << 10
ATTACH_MS = 100.0
TESTS = Path(__file__).parent


class Rank:
    """node_rank in a process of its own."""

    def __init__(self, server: ServerProcess, rank: int, *, puts: bool) -> None:
        job = {"path": str(server.path), "pages": PAGES, "nbytes": NBYTES, "rank": rank, "puts": puts}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "node_rank", json.dumps(job)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        figures = json.loads(self.process.stdout.readline())
        assert isinstance(figures, dict)
        return figures

    def read(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("read\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with short_directory() as directory, serving(directory / "node.sock", objects=2 * PAGES, nbytes=NBYTES) as started:
        yield started


def test_replicated_pages_of_eight_ranks_are_stored_once_and_read_by_all(server, soak_report):
    with ExitStack() as stack:
        ranks = []
        for number in range(RANKS):
            rank = Rank(server, number, puts=number < RANKS - 1)  # the last one only reads what the others stored
            stack.callback(rank.end)
            ranks.append(rank)
        ready = [rank.hear() for rank in ranks]
        with StatClient(server.path, DEADLINE_S) as stat:
            figures = stat.figures()
        assert sorted(client["label"] for client in figures["clients"]) == [f"tp{number}" for number in range(RANKS)]
        assert figures["memory"]["objects"] == PAGES
        assert figures["memory"]["live_bytes"] == figures["memory"]["bytes_written"] == PAGES * NBYTES
        assert [rank.read() for rank in ranks] == [{"prefix": PAGES, "read": PAGES}] * RANKS
        attach = sorted(figures["attach_ms"] for figures in ready)
        soak_report(
            "replicated pages of a node",
            ranks=RANKS,
            pages=PAGES,
            stored_bytes=figures["memory"]["live_bytes"],
            median_attach_ms=round(attach[RANKS // 2], 2),
            longest_attach_ms=round(attach[-1], 2),
            longest_populate_ms=max(figures["populate_ms"] for figures in ready),
        )
        assert attach[0] < ATTACH_MS
