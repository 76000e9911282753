"""Two real HiCacheControllers of an MLA model in two processes with a gloo group, over the pool of one node server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from node_process import ServerProcess, serving
from node_rig import short_directory

from sglang_umbp.node.stat_client import StatClient

pytestmark = pytest.mark.timeout(900)
RANKS = 2
PAGES = 5
WAIT_S = 60
PROGRAM = Path(__file__).with_name("controller_rank.py")


def ranks_say(server: ServerProcess, folder: Path, *, stores: bool) -> list[dict[str, Any]]:
    """What each rank of a new group says; they are killed while they are attached."""
    job = {"ranks": RANKS, "address": f"unix:{server.path}", "pages": PAGES, "stores": stores}
    job |= {"rendezvous": (folder / f"rendezvous{stores}").as_uri()}
    with ExitStack() as stack:
        processes = []
        for rank in range(RANKS):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(job | {"rank": rank})],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate, timeout=WAIT_S)
            stack.callback(process.kill)
            processes.append(process)
        return [figures_of(process) for process in processes]


def figures_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first JSON line; other lines are SGLang's."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            figures = json.loads(line)
            assert isinstance(figures, dict)
            return figures
    raise AssertionError(f"a rank ended with exit code {process.wait()} and said nothing")


def test_replicated_pages_that_one_rank_wrote_are_read_by_both_also_after_a_kill(tmp_path):
    with short_directory() as directory, serving(directory / "node.sock", objects=256, nbytes=64 << 10) as server:
        right = [
            {"hits": PAGES, "read": PAGES, "wrong": 0, "rank": rank, "ranks": RANKS, "writes": rank == 0}
            for rank in range(RANKS)
        ]
        assert ranks_say(server, tmp_path, stores=True) == right
        with StatClient(server.path, WAIT_S) as stat:
            assert stat.figures()["memory"]["objects"] == PAGES
        assert ranks_say(server, tmp_path, stores=False) == right
