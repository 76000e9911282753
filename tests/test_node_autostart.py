"""The default address, a server that the first process starts by itself, and which pool open_pool gives."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from node_rig import short_directory
from waiting import DEADLINE_S, wait_until

from sglang_umbp import NodePool, Pool, PoolSettings, SettingsError, open_pool
from sglang_umbp.errors import NodeServerError
from sglang_umbp.node import autostart, capped_log, keeper, node_pool, own_process, start_lock
from sglang_umbp.node.address import parse_address
from sglang_umbp.node.peer import process_stopped
from sglang_umbp.node.start_lock import StartLock
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
        for pid in pids - {0}:  # 0: the pool was not attached at that moment
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


SPOILT = """
import contextlib, ctypes, json, os, signal, sys
from pathlib import Path
base = Path(sys.argv[1])
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.umask(0)
if os.getuid() == 0:  # who is not may not take it back either
    os.nice(5)
    with contextlib.suppress(PermissionError):
        Path("/proc/self/oom_score_adj").write_text("-500")
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
set_mempolicy, preferred, nodes = {"x86_64": 238, "aarch64": 237}[os.uname().machine], 1, ctypes.c_ulong(1)
assert ctypes.CDLL(None).syscall(set_mempolicy, preferred, ctypes.byref(nodes), ctypes.c_ulong(64)) == 0
os.set_inheritable(os.open(base, os.O_RDONLY), True)
from sglang_umbp import NodePool, PoolSettings  # before the directory with another one is the working directory
for name in ("sglang_umbp", "msgpack"):
    (base / "work" / name).mkdir(parents=True)
    (base / "work" / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
os.chdir(base / "work")
pool = NodePool(PoolSettings(mode="node", dram_capacity_bytes=1 << 20, index_entries=256)).open()
print(json.dumps([pool.server_pid, str(pool.path), pool.trouble]), flush=True)
sys.stdin.readline()
"""


def process_facts(pid: int) -> dict[str, object]:
    """What a process may have from the one that started it."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    stat_fields = (proc / "stat").read_text().rpartition(")")[2].split()
    masks = {name: int(status[name], 16) for name in ("SigBlk", "SigIgn")}
    names = (proc / "environ").read_bytes().split(b"\0")
    heap = next(line for line in (proc / "numa_maps").read_text().splitlines() if " heap" in line)
    return {
        "cpus": os.sched_getaffinity(pid),
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
        "scheduler": os.sched_getscheduler(pid),
        "oom_score_adj": int((proc / "oom_score_adj").read_text()),
        "policy": heap.split()[1],
        "umask": int(status["Umask"], 8),
        "blocked": masks["SigBlk"],
        "ignores SIGHUP": bool(masks["SigIgn"] >> (signal.SIGHUP - 1) & 1),
        "directory": os.readlink(proc / "cwd"),
        "preloaded": any(name.startswith(b"LD_PRELOAD=") for name in names),
        "session of its own": stat_fields[3] not in (str(os.getsid(0)), "0"),
        "terminal": int(stat_fields[4]),
    }


def test_a_server_keeps_nothing_of_the_process_that_started_it(directory, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "libm.so.6")
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SPOILT, str(directory)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as rank:
        try:
            assert rank.stdout is not None
            pid, path, trouble = json.loads(rank.stdout.readline())
            assert pid is not None, trouble
            _started.add(pid)
            fresh = {"cpus": os.sched_getaffinity(0), "nice": 0, "scheduler": os.SCHED_OTHER, "oom_score_adj": 0}
            fresh |= {"policy": "default", "umask": 0o077, "blocked": 0, "ignores SIGHUP": False, "directory": "/"}
            fresh |= {"preloaded": False, "session of its own": True, "terminal": 0}
            assert process_facts(pid) == fresh
            log = str(autostart.log_path(Path(path)))
            opened = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            own = (log, "/dev/null", "/memfd:", "socket:", "anon_inode:", path)
            assert [name for name in opened if not name.startswith(own)] == []
            assert opened.count(log) == 2
        finally:
            rank.kill()


@pytest.mark.parametrize(("inherited", "own"), [("-500", "0"), ("0", "0"), ("300", "300")])
def test_anothers_protection_from_the_oom_killer_is_given_up_and_the_contrary_is_kept(
    inherited, own, tmp_path, monkeypatch
):
    score = tmp_path / "oom_score_adj"
    score.write_text(inherited)
    monkeypatch.setattr(own_process, "OOM_SCORE", score)
    own_process._give_up_protection()
    assert score.read_text() == own


def test_what_cannot_be_given_up_is_said_and_the_rest_is_done(monkeypatch):
    done = []

    def refuses() -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("_use_all_cpus", "_schedule_as_others", "_give_up_protection", "_forget_memory_policy"):
        monkeypatch.setattr(own_process, name, refuses)
    monkeypatch.setattr(own_process, "_be_as_nice_as_others", refuses)
    monkeypatch.setattr(own_process, "_hear_signals", lambda: done.append(True))
    before = os.umask(0)
    try:
        kept = own_process.settle()
    finally:
        os.umask(before)
    assert done == [True]
    assert [line.partition(" stay ")[0] for line in kept] == [
        *("CPUs", "scheduling", "nice", "NUMA memory policy", "oom_score_adj")
    ]
    assert all("Operation not permitted" in line for line in kept)


def test_what_is_meant_for_one_process_does_not_reach_the_server_and_paths_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    own = {"LD_PRELOAD": "x.so", "NOTIFY_SOCKET": "/run/x", "LD_LIBRARY_PATH": "/opt/lib", "PYTHONPATH": "libs::/opt/y"}
    made = autostart.server_environment(PoolSettings(), own)
    assert "LD_PRELOAD" not in made
    assert "NOTIFY_SOCKET" not in made
    assert made["LD_LIBRARY_PATH"] == "/opt/lib"
    assert made["PYTHONPATH"] == f"{autostart.PACKAGE_PARENT}:{tmp_path}/libs:/opt/y"


def test_servers_of_two_addresses_have_two_logs():
    paths = [Path("/run/x/node.sock"), Path("/run/x/node.other"), Path("/run/x/node")]
    assert len({autostart.log_path(path) for path in paths}) == len(paths)


def test_a_log_that_is_full_is_set_aside_at_the_start_and_while_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(capped_log, "LOG_BYTES", 1000)
    log = tmp_path / "node.sock.log"
    log.write_text("old" * 1000)
    descriptor = capped_log.open_log(log)
    assert log.read_text() == ""
    assert (tmp_path / "node.sock.log.1").read_text() == "old" * 1000
    numbers = {"_STDOUT": os.dup(descriptor), "_STDERR": descriptor}
    for name, number in numbers.items():
        monkeypatch.setattr(capped_log, name, number)
    try:
        with os.fdopen(descriptor, "w", closefd=False) as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            handler = capped_log.CappedLogHandler(log)
            for number in range(100):
                handler.emit(logging.makeLogRecord({"msg": f"line {number} {'x' * 90}"}))
        sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
        assert sizes.keys() == {"node.sock.log", "node.sock.log.1"}
        assert max(sizes.values()) <= 1100
        assert "line 99" in log.read_text()
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
    finally:
        monkeypatch.undo()
        for number in numbers.values():
            os.close(number)


def test_a_log_whose_directory_is_gone_does_not_grow_either(tmp_path, monkeypatch):
    monkeypatch.setattr(capped_log, "LOG_BYTES", 1000)
    with (tmp_path / "log").open("a") as stream:
        monkeypatch.setattr(capped_log, "_STDERR", stream.fileno())
        monkeypatch.setattr(sys, "stderr", stream)
        handler = capped_log.CappedLogHandler(tmp_path / "gone" / "log")
        for number in range(100):
            handler.emit(logging.makeLogRecord({"msg": f"line {number} {'x' * 90}"}))
        assert os.fstat(stream.fileno()).st_size <= 1100
        monkeypatch.undo()


# --- the start lock -----------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from sglang_umbp.node.start_lock import StartLock
with StartLock(Path(sys.argv[1])) as lock:
    print(lock.taken(), flush=True)
    sys.stdin.readline()
"""


@contextmanager
def stopped_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the start lock, starts nothing, and is stopped."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=pipe, stdout=pipe, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            holder.send_signal(signal.SIGSTOP)
            yield holder
        finally:
            holder.kill()


def test_a_stopped_process_that_was_to_start_the_server_is_not_waited_for_beyond_the_deadline(directory):
    settings = PoolSettings(mode="node", dram_capacity_bytes=CAPACITY, index_entries=256, deadline_s=0.1)
    path = NodePool(settings).path
    path.parent.mkdir(mode=0o700)
    with stopped_holder(path) as holder:
        wait_until(lambda: process_stopped(holder.pid))
        with pytest.raises(NodeServerError, match=f"process {holder.pid}, which was to start .* is stopped"):
            autostart.ensure_server(path, settings, lambda: False)  # would wait without end
        with open_pool(settings) as pool:
            assert isinstance(pool, NodePool)
            assert f"process {holder.pid}" in pool.trouble
            assert pool.exists(["a"]) == [False]
            holder.kill()
            wait_until(lambda: pool.connected)
            _started.add(pool.server_pid or 0)


def test_who_waits_for_a_process_that_starts_the_server_says_which(directory):
    path = directory / "node.sock"
    with StartLock(path) as held:
        assert held.taken()
        with pytest.raises(NodeServerError, match=rf"process {os.getpid()} starts a server .*node\.sock\.log"):
            autostart.ensure_server(path, PoolSettings(), lambda: True)


def test_a_started_server_that_is_stopped_is_not_waited_for_beyond_the_deadline(directory, monkeypatch):
    def launch(path: Path, settings: PoolSettings, log: Path) -> int:
        sleeper = subprocess.Popen(["sleep", "1000"])
        sleepers.append(sleeper)
        sleeper.send_signal(signal.SIGSTOP)
        return sleeper.pid

    sleepers: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(autostart, "_launch", launch)
    try:
        with pytest.raises(NodeServerError, match=r"pid \d+, is stopped"):
            autostart.ensure_server(directory / "node.sock", PoolSettings(deadline_s=0.1), lambda: False)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait(DEADLINE_S)


def test_a_process_that_goes_on_is_waited_for_anew(monkeypatch):
    states, times = iter([True, False, True, True, True]), iter([0.0, 2.0, 2.5, 3.0])
    monkeypatch.setattr(start_lock, "process_stopped", lambda pid: next(states))
    stall = start_lock.Stall(1.0, lambda: next(times))
    assert [stall.over(1) for _ in range(5)] == [False, False, False, False, True]
    assert not stall.over(None)


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


def test_a_pool_that_is_to_be_a_node_pool_says_that_it_is_not(caplog):
    with Pool(mode="node", dram_capacity_bytes=CAPACITY):
        assert "mode" in caplog.text
        assert "open_pool()" in caplog.text
    caplog.clear()
    with Pool(dram_capacity_bytes=CAPACITY):
        assert "open_pool()" not in caplog.text
