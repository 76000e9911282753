"""The real SGLang server with two ranks, whose pool is that of a node server which the first of them started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_rig import short_directory
from sglang_server import UMBP_ARGUMENTS, SglangServer, running_server
from test_server import cacheable, device_hit, new_prompt, storage_hit
from waiting import DEADLINE_S

from sglang_umbp import NodePool
from sglang_umbp.node.address import default_address
from sglang_umbp.node.stat_client import StatClient

pytestmark = pytest.mark.timeout(900)
TWO_RANKS = UMBP_ARGUMENTS | {"--tp-size": "2"}


@pytest.fixture
def runtime_directory() -> Iterator[Path]:
    """Where the node server listens; it is killed at the end."""
    with short_directory() as directory:
        yield directory
        with node_pool(directory) as pool:
            pid = pool.server_pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


def node_pool(directory: Path) -> NodePool:
    address = default_address({"XDG_RUNTIME_DIR": str(directory)})
    return NodePool(standalone_address=address, standalone_auto_start=False)


def two_ranks(folder: Path, model: Path, directory: Path):
    folder.mkdir()
    environment = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "XDG_RUNTIME_DIR": str(directory)}
    return running_server(folder, model, arguments=TWO_RANKS, environment=environment)


def test_two_ranks_share_a_server_that_outlives_them_and_serves_the_old_prompt(tmp_path, tiny_model, runtime_directory):
    prompt = new_prompt(200, seed=61)
    server: SglangServer
    with two_ranks(tmp_path / "first", tiny_model, runtime_directory) as server:
        assert len(server.scheduler_pids()) == 2
        right = device_hit(server, prompt)
        assert storage_hit(server, prompt).says() == right.says()
        assert server.log().count("umbp store opened: node server at unix:") == 2
        with node_pool(runtime_directory) as pool:
            assert pool.connected, pool.trouble
            first = pool.server_pid
            pages = cacheable(len(prompt)) // 16
            assert pool.stats().objects >= 2 * pages
            with StatClient(pool.path, DEADLINE_S) as stat:
                labels = {each["label"] for each in stat.figures()["clients"]}
            assert {"tp0", "tp1"} <= labels
        os.killpg(server.pid, signal.SIGKILL)
    with two_ranks(tmp_path / "second", tiny_model, runtime_directory) as server:
        answer = server.generate(prompt)
        assert answer.from_storage == cacheable(len(prompt))
        assert answer.says() == right.says()
        with node_pool(runtime_directory) as pool:
            assert pool.server_pid == first
