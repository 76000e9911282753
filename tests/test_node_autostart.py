"""The default address, a server that the first process starts by itself, and which pool open_pool gives."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_rig import short_directory
from waiting import DEADLINE_S, wait_until

from sglang_umbp import NodePool, Pool, PoolSettings, SettingsError, open_pool
from sglang_umbp.errors import NodeServerError
from sglang_umbp.node import autostart
from sglang_umbp.node.address import parse_address
from sglang_umbp.node.stat_client import StatClient
from sglang_umbp.open_pool import is_node, make_pool

CAPACITY = 1 << 20
RANK = """
import json, logging, sys
from sglang_umbp import PoolSettings, open_pool
settings = PoolSettings.from_env(dram_capacity_bytes=1 << 20, index_entries=256)
logging.basicConfig(level=logging.INFO)
print("ready", flush=True)
sys.stdin.readline()
pool = open_pool(settings, local_ranks=3, label=sys.argv[1])
print(json.dumps([pool.server_pid, str(pool.path), pool.stats().capacity_bytes]), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def directory(monkeypatch) -> Iterator[Path]:
    """The user's run-time directory; a server that is left in it is killed."""
    for name in [name for name in os.environ if name.startswith("UMBP_")]:
        monkeypatch.delenv(name)
    with short_directory() as base:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        pids: set[int] = set()
        monkeypatch.setattr(sys.modules[__name__], "_started", pids)
        yield base
        for pid in pids:
            _kill(pid)


_started: set[int] = set()


def _kill(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(pidfd):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        wait_until(lambda: autostart.process_ended(pidfd))


def start_rank(label: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", RANK, label], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def answer_of(rank: subprocess.Popen[str]) -> tuple[int, str, int]:
    assert rank.stdout is not None
    pid, path, capacity = json.loads(rank.stdout.readline())
    _started.add(pid)
    return pid, path, capacity


def test_ranks_that_open_at_once_get_one_server_that_outlives_them(directory):
    ranks = [start_rank(f"tp{number}") for number in range(3)]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:  # all of them at once
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    answers = [answer_of(rank) for rank in ranks]
    assert len(set(answers)) == 1, answers
    pid, path, capacity = answers[0]
    assert Path(path).parent.parent == directory
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    assert capacity == CAPACITY
    log = autostart.log_path(Path(path))
    assert log.read_text().count("serving at") == 1
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for rank in ranks:
        rank.kill()
    said = "".join(rank.communicate(timeout=DEADLINE_S)[1] for rank in ranks)
    assert said.count("started one, pid") == 1, said
    with open_pool(PoolSettings(mode="node")) as pool:
        assert isinstance(pool, NodePool)
        assert pool.server_pid == pid
        with StatClient(Path(path), DEADLINE_S) as server:
            wait_until(lambda: len(server.figures()["clients"]) == 1)
    assert not zombie(pid)


def zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_server_that_was_started_by_itself_is_started_again_when_it_dies(directory):
    with open_pool(PoolSettings(mode="node", dram_capacity_bytes=CAPACITY, index_entries=256)) as pool:
        assert isinstance(pool, NodePool)
        first = pool.server_pid
        assert first is not None
        _kill(first)
        wait_until(lambda: pool.server_pid not in (first, None))
        _started.add(pool.server_pid or 0)


def test_the_server_stops_by_itself_after_its_last_client(directory, monkeypatch):
    monkeypatch.setenv("UMBP_IDLE_EXIT_S", "0.2")
    with open_pool(PoolSettings(mode="node", dram_capacity_bytes=CAPACITY, index_entries=256)) as pool:
        assert isinstance(pool, NodePool)
        path = pool.path
        _started.add(pool.server_pid or 0)
    wait_until(lambda: not path.exists())


def test_a_server_that_cannot_start_is_said_with_its_log_and_the_pool_runs_on(directory):
    settings = PoolSettings(mode="node", dram_capacity_bytes=1 << 45)
    with open_pool(settings) as pool:
        assert isinstance(pool, NodePool)
        assert not pool.connected
        assert "ended at once; see" in pool.trouble
        assert "MemAvailable" in pool.trouble
        assert pool.exists(["a"]) == [False]
        with pytest.raises(NodeServerError, match="MemAvailable"):
            pool.wait_until_connected(0)


def test_closing_does_not_wait_for_a_server_that_does_not_come(directory, monkeypatch):
    monkeypatch.setattr(autostart, "_start", lambda path, settings, given_up: wait_until(given_up))
    monkeypatch.setattr("sglang_umbp.node.node_pool.START_S", 0.1)
    monkeypatch.setattr("sglang_umbp.node.node_pool.RESTART_S", 1000)
    pool = open_pool(PoolSettings(mode="node"))
    begun = time.monotonic()
    pool.close()
    assert time.monotonic() - begun < DEADLINE_S / 4


def test_settings_given_as_arguments_reach_the_server_and_win_over_variables():
    settings = PoolSettings.from_env({"UMBP_DRAM_NUMA_NODE": "0"}, dram_capacity_bytes="2MiB", hugepages=False)
    made = autostart.server_environment(
        settings, {"UMBP_DRAM_CAPACITY_BYTES": "5", "UMBP_DRAM_NUMA_NODE": "0", "UMBP_STANDALONE_ADDRESS": "unix:/x"}
    )
    assert made["UMBP_DRAM_CAPACITY"] == str(2 << 20)
    assert made["UMBP_DRAM_USE_HUGEPAGES"] == "false"
    assert made["UMBP_DRAM_NUMA_NODE"] == "0"
    assert "UMBP_DRAM_CAPACITY_BYTES" not in made
    assert "UMBP_STANDALONE_ADDRESS" not in made
    assert float(made["UMBP_IDLE_EXIT_S"]) == autostart.IDLE_EXIT_S
    kept = autostart.server_environment(settings, {"UMBP_IDLE_EXIT_S": "0"})
    assert kept["UMBP_IDLE_EXIT_S"] == "0"


# --- which pool ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "ranks", "node"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"mode": "embedded"}, 2, False),
        ({"mode": "node"}, 1, True),
        ({"standalone_address": "unix:/run/x"}, 1, True),
        ({"standalone_address": ""}, 1, False),
    ],
)
def test_which_pool_the_settings_mean(given, ranks, node):
    settings = PoolSettings(**given)
    assert is_node(settings, local_ranks=ranks) == node
    assert type(make_pool(settings, local_ranks=ranks)) is (NodePool if node else Pool)


@pytest.mark.parametrize("address", ["/run/x", "tcp:1", "unix:", "unix:" + "x" * 200, 7])
def test_an_address_that_is_none_is_refused_with_what_is_allowed(address):
    with pytest.raises(SettingsError, match=r"standalone_address=.*allowed: unix:PATH"):
        PoolSettings(standalone_address=address)


def test_an_address_with_the_embedded_pool_is_refused():
    with pytest.raises(SettingsError, match="allowed: auto or node"):
        PoolSettings(mode="embedded", standalone_address="unix:/run/x")


def test_the_address_comes_from_the_environment_and_its_path_is_made_absolute():
    settings = PoolSettings.from_env({"UMBP_STANDALONE_ADDRESS": "unix:x.sock"})
    assert parse_address(settings.standalone_address) == Path.cwd() / "x.sock"


def test_an_address_of_ones_own_starts_no_server_unless_that_is_asked_for():
    assert not NodePool(PoolSettings(standalone_address="unix:/run/x"))._starts_servers
    assert NodePool(PoolSettings(standalone_address="unix:/run/x", standalone_auto_start=True))._starts_servers
    assert NodePool(PoolSettings(mode="node"))._starts_servers
    assert not NodePool(PoolSettings(mode="node", standalone_auto_start=False))._starts_servers
