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
from sglang_umbp.node import autostart, keeper, node_pool
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


def test_a_server_started_again_by_whoever_knew_no_size_has_the_size_of_the_one_before(directory):
    """The client that gave the size is gone, and one is stopped, which maps the memory of before."""
    first, stopped = ranks = [start_rank(label) for label in ("first", "stopped")]
    try:
        for rank in ranks:
            assert rank.stdin is not None
            assert rank.stdout is not None
            rank.stdin.write("go\n")
            rank.stdin.flush()
            assert rank.stdout.readline() == "ready\n"
        (pid, path, capacity), other = answer_of(first), answer_of(stopped)
        assert other == (pid, path, capacity)
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        with open_pool(PoolSettings(mode="node")) as pool:
            assert isinstance(pool, NodePool)
            assert (pool.server_pid, pool.stats().capacity_bytes) == (pid, capacity)
            first.kill()
            first.wait(DEADLINE_S)
            _kill(pid)
            wait_until(lambda: pool.server_pid not in (pid, None))
            _started.add(pool.server_pid or 0)
            assert pool.stats().capacity_bytes == capacity
            assert pool.stats().index_entries == 256
            assert "memfd:umbp" in Path(f"/proc/{stopped.pid}/maps").read_text()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=DEADLINE_S)


def test_a_server_of_the_old_size_that_cannot_start_is_given_up_for_a_smaller_one(directory, monkeypatch):
    wanted: list[int | None] = []

    def refuse(path: Path, settings: PoolSettings, given_up: object) -> None:
        wanted.append(settings.dram_capacity_bytes)
        if settings.dram_capacity_bytes is not None:
            raise NodeServerError("there is not enough memory")
        ensure_server(path, settings.with_values(dram_capacity_bytes=2 * CAPACITY), given_up)

    settings = PoolSettings(mode="node", dram_capacity_bytes=CAPACITY, index_entries=256)
    with open_pool(settings) as first, open_pool(PoolSettings(mode="node")) as pool:
        assert isinstance(first, NodePool)
        assert isinstance(pool, NodePool)
        pid = pool.server_pid
        assert pid is not None
        first.close()
        ensure_server = node_pool.ensure_server
        monkeypatch.setattr(node_pool, "ensure_server", refuse)
        monkeypatch.setattr(keeper, "LONGEST_PAUSE_S", keeper.FIRST_PAUSE_S)
        _kill(pid)
        wait_until(lambda: pool.server_pid not in (pid, None))
        _started.add(pool.server_pid or 0)
        assert wanted == [CAPACITY] * node_pool.OLD_SIZE_ATTEMPTS + [None]
        assert pool.stats().capacity_bytes == 2 * CAPACITY
        assert (pool._settings_of_server().dram_capacity_bytes, pool._failed_starts) == (2 * CAPACITY, 0)


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
