"""The commands serve and stat, run for real: start, stop, death, strangers, broken frames, figures."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import pytest
from node_rig import NBYTES, Client, Talker, running, settings_for, short_directory
from objects import names
from test_node_protocol import GROWTH_BYTES, Mutations, resident_bytes
from waiting import DEADLINE_S, wait_until

from sglang_umbp import Status, cli
from sglang_umbp.errors import NodeServerError, RefusedError, SettingsError
from sglang_umbp.node import protocol
from sglang_umbp.node.address import DIRECTORY_NAME, SOCKET_NAME
from sglang_umbp.node.connection import GREETING_S
from sglang_umbp.node.protocol import encode
from sglang_umbp.node.server_settings import OWN_SETTINGS, POOL_SETTINGS, server_settings
from sglang_umbp.node.stat_client import StatClient
from sglang_umbp.node.stat_command import CLEAR, refresh

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--dram-capacity", "256KiB", "--index-entries", "64", "--reservation-quota-bytes", "256KiB")


class Serve:
    """`sglang-umbp serve` in a process of its own."""

    def __init__(self, directory: Path, *arguments: str, **environ: str) -> None:
        self.path = directory / "node.sock"
        self.log = directory / f"log{len(list(directory.glob('log*')))}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("UMBP_", "XDG_"))}
        address = [] if environ else ["--address", f"unix:{self.path}"]
        with self.log.open("w") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "sglang_umbp", "serve", *address, *SMALL, *arguments],
                stderr=log,
                env={**inherited, "PYTHONPATH": str(ROOT), **environ},
            )

    def ready(self) -> Serve:
        wait_until(lambda: "serving at" in self.said() or self.popen.poll() is not None)
        assert self.popen.poll() is None, self.said()
        return self

    def said(self) -> str:
        return self.log.read_text()

    def wait(self) -> int:
        return self.popen.wait(DEADLINE_S)

    def end(self) -> None:
        self.popen.kill()
        self.wait()


@pytest.fixture
def serve() -> Iterator[Callable[..., Serve]]:
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory())

        def start(*arguments: str, **environ: str) -> Serve:
            process = Serve(directory, *arguments, **environ)
            stack.callback(process.end)
            return process

        yield start


def stat_of(path: Path) -> dict[str, Any]:
    with StatClient(path, DEADLINE_S) as server:
        return server.figures()


def left_in(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if not name.startswith("log"))


# --- start and stop ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_cleanly_with_clients_attached(serve, number):
    process = serve().ready()
    with Client(process.path) as client:
        assert client.put(["key"]) == [Status.OK]
        client.allocate(["reserved"])
        process.popen.send_signal(number)
        assert process.wait() == 0
    assert left_in(process.path.parent) == []
    assert "Traceback" not in process.said()


def test_a_killed_server_is_replaced_by_the_next_one(serve):
    first = serve().ready()
    first.popen.kill()
    first.wait()
    assert left_in(first.path.parent) == ["node.sock", "node.sock.lock"]
    second = serve().ready()
    with Client(second.path) as client:
        assert client.put(["key"]) == [Status.OK]


def test_a_second_server_ends_with_a_line_and_the_first_goes_on(serve):
    first, second = serve().ready(), serve()
    assert second.wait() == 2
    assert "one server an address" in second.said()
    assert stat_of(first.path)["pid"] == first.popen.pid


def test_the_server_exits_when_it_has_been_idle_but_not_while_a_client_is_attached(serve):
    process = serve("--idle-exit", "0.3").ready()
    with Client(process.path) as client:
        for _ in range(10):
            client.call(protocol.Ping())
            with pytest.raises(subprocess.TimeoutExpired):
                process.popen.wait(0.1)
        client.call(protocol.Detach(client=client.attached.client))
    assert process.wait() == 0
    assert "no client for 0.3 s" in process.said()
    assert left_in(process.path.parent) == []


def test_the_address_comes_from_the_environment_and_the_users_run_time_directory(serve):
    with short_directory() as directory:
        path = directory / "sglang_umbp" / "node.sock"
        process = serve(XDG_RUNTIME_DIR=str(directory)).ready()
        assert stat_of(path)["address"] == f"unix:{path}"
        named = serve(UMBP_STANDALONE_ADDRESS=f"unix:{directory}/x").ready()
        assert stat_of(directory / "x")["pid"] == named.popen.pid
        process.popen.terminate()
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--deadline-s", "x"], "deadline_s='x'; allowed: 0 to 3600"),
        (["--max-clients", "0"], "max_clients='0'; allowed: 1 to 4096"),
        (["--idle-exit", "-1"], "idle_exit_s='-1'; allowed: 0 to 1e+09"),
        (["--low-watermark", "0.5"], "low_watermark='0.5'; allowed: only with a high_watermark"),
        (["--address", "localhost:50051"], "address='localhost:50051'; allowed: unix:PATH"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(serve, arguments, line):
    process = serve(*arguments)
    assert process.wait() == 2
    said = process.said().replace("=0.5;", "='0.5';")
    assert line in said


def test_memory_that_is_not_there_is_refused_and_leaves_nothing(serve):
    process = serve("--dram-capacity", "60TiB")
    assert process.wait() == 2
    assert "Lower dram_capacity_bytes" in process.said()
    assert left_in(process.path.parent) == []


def test_settings_come_from_arguments_then_environment_then_defaults():
    with short_directory() as directory:
        environ = {"UMBP_DRAM_CAPACITY": "1MiB", "UMBP_MAX_CLIENTS": "7", "UMBP_IDLE_EXIT_S": "60"}
        settings = server_settings({"address": f"unix:{directory}/x", "idle_exit_s": "5"}, environ)
    assert (settings.pool.dram_capacity_bytes, settings.max_clients, settings.idle_exit_s) == (1 << 20, 7, 5.0)
    assert (settings.pool.memory, settings.pool.prefault, settings.pool.prefault_in_background) == ("memfd", True, True)
    assert not server_settings({}, {"UMBP_DRAM_PREFAULT": "0"}).pool.prefault
    with pytest.raises(SettingsError, match="no setting copy_threads"):
        server_settings({"copy_threads": 1}, {})


def test_help_names_every_setting_of_the_server(capsys):
    assert cli.main(["serve", "--help"]) == 0
    said = capsys.readouterr().out
    for name in POOL_SETTINGS + tuple(OWN_SETTINGS):
        assert "--" + name.removesuffix("_exit_s").replace("_", "-") in said


def test_the_systemd_unit_starts_the_server_where_clients_look_for_it():
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "examples" / "sglang-umbp.service")
    environment, program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (environment, program) == ("/usr/bin/env", "sglang-umbp")
    parsed = cli.build_parser().parse_args(arguments)
    assert parsed.command == "serve"
    assert parsed.address == f"unix:%t/{DIRECTORY_NAME}/{SOCKET_NAME}"
    given = {name: getattr(parsed, name) for name in POOL_SETTINGS if getattr(parsed, name) is not None}
    assert server_settings(given, {}).pool.dram_capacity_bytes


# --- strangers -----------------------------------------------------------------------------------

STRANGER = """
import os, socket, sys
os.setuid(65534)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.settimeout(30)
sock.connect(sys.argv[1])
sock.sendall(bytes.fromhex(sys.argv[2]))
data = b""
while more := sock.recv(65536):
    data += more
print(data.hex())
"""
HELLO = encode(1, protocol.Hello(version=protocol.VERSION))


def stranger(path: Path) -> subprocess.CompletedProcess[str]:
    frame = struct.pack("<I", len(HELLO)) + HELLO
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", STRANGER, str(path), frame.hex()],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_kept_out_by_the_socket_and_refused_if_he_gets_through(serve):
    process = serve().ready()
    process.path.parent.chmod(0o755)
    kept_out = stranger(process.path)
    assert "PermissionError" in kept_out.stderr
    process.path.chmod(0o666)
    answered = bytes.fromhex(stranger(process.path).stdout)
    _, request_id, name, values = msgpack.unpackb(answered[4:])
    assert (request_id, name, values["code"]) == (0, "error", "not_allowed")
    assert "uid 65534 is refused" in values["message"]
    assert b"welcome" not in answered
    assert stat_of(process.path)["clients"] == []


def test_descriptors_that_a_client_sends_are_not_taken():
    with (
        short_directory() as directory,
        running(settings_for(directory / "node.sock")) as server,
        Talker(server.settings.path) as talker,
    ):
        before = len(os.listdir("/proc/self/fd"))
        payload = encode(9, protocol.Ping())
        frame = struct.pack("<I", len(payload)) + payload
        for _ in range(20):
            socket.send_fds(talker.socket, [frame], [0, 1, 2])
            assert talker.receive(9) == protocol.Done()
        assert len(os.listdir("/proc/self/fd")) == before


# --- broken frames -------------------------------------------------------------------------------


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


BROKEN = {
    "an oversized frame": b"\xff\xff\xff\x7f",
    "a frame longer than hello may be": struct.pack("<I", protocol.MAX_GREETING_BYTES + 1),
    "no msgpack": framed(b"\xc1"),
    "an empty frame": framed(b""),
    "an answer": framed(encode(1, protocol.Done())),
    "a request before hello": framed(encode(1, protocol.Clear())),
    "hello twice": framed(HELLO) * 2,
}
CUT_SHORT = {"a truncated frame": framed(HELLO)[:-1], "half a length": b"\1\0"}


@pytest.mark.parametrize("data", [*BROKEN.values(), *CUT_SHORT.values()], ids=[*BROKEN, *CUT_SHORT])
def test_what_is_no_frame_ends_that_connection_only(data):
    with (
        short_directory() as directory,
        running(settings_for(directory / "node.sock")) as server,
        Client(server.settings.path) as client,
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(DEADLINE_S)
            sock.connect(os.fspath(server.settings.path))
            begin = time.monotonic()
            sock.sendall(data)
            if data in CUT_SHORT.values():
                sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
            assert time.monotonic() - begin < GREETING_S / 2, "it ended for its silence only"
        assert client.put(["key"]) == [Status.OK]
        assert client.get(["key"]) == [True]
        wait_until(lambda: len(server._threads) == 1)


@pytest.mark.soak
def test_random_frames_over_the_socket_harm_nobody_and_leave_nothing(soak_scale, soak_report):
    mutations, chance = Mutations(seed=11), random.Random(12)
    connections = 300 * soak_scale
    with (
        short_directory() as directory,
        running(settings_for(directory / "node.sock")) as server,
        Client(server.settings.path) as client,
    ):
        stored = names("kept", 4)
        assert all(client.put(stored))

        def pester() -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(DEADLINE_S)
                sock.connect(os.fspath(server.settings.path))
                frames = [framed(HELLO)] if chance.random() < 0.8 else []
                frames += [framed(mutations.next()) for _ in range(chance.randint(1, 5))]
                try:
                    sock.sendall(b"".join(frames))
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
                except OSError:
                    return  # it was thrown out before it had said everything

        for _ in range(connections // 10):
            pester()
        wait_until(lambda: len(server._threads) == 1)
        before, descriptors = resident_bytes(), len(os.listdir("/proc/self/fd"))
        for number in range(connections):
            pester()
            if number % 50 == 0:
                assert client.get(stored) == [True] * 4
                client.call(protocol.Ping())
        wait_until(lambda: len(server._threads) == 1)
        growth = resident_bytes() - before
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert client.stat()["memory"]["objects"] == 4
        assert [entry["client"] for entry in client.stat()["clients"]] == [client.attached.client]
    soak_report("frames over the socket", connections=connections, growth_bytes=growth)
    assert growth < GROWTH_BYTES


# --- stat ----------------------------------------------------------------------------------------


def run_stat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang_umbp", "stat", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_stat_prints_figures_once_for_a_program_and_for_a_file(serve):
    process = serve().ready()
    with Client(process.path, label="tp7") as client:
        client.put(names("key", 3))
        client.get(["key0", "nothing"])
        client.pool.native.report_reads()
        done = run_stat("--address", f"unix:{process.path}", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        figures = json.loads(done.stdout)
        assert figures["memory"]["live_bytes"] == 3 * NBYTES
        assert figures["memory"]["objects"] == 3
        assert figures["puts"] == {"ok": 3}
        assert figures["reads"]["hit_ratio"] == 0.5
        (shown,) = figures["clients"]
        assert (shown["label"], shown["pid"], shown["state"], shown["hits"]) == ("tp7", os.getpid(), "running", 1)
        printed = run_stat("--address", f"unix:{process.path}").stdout
        assert "12.0 KiB live" in printed
        assert "50.00 % of 2 keys hit" in printed
        assert "\x1b" not in printed
        assert [line for line in printed.splitlines() if "tp7" in line and str(os.getpid()) in line]


def test_stat_without_a_server_is_one_line_and_exit_code_2():
    with short_directory() as directory:
        done = run_stat("--address", f"unix:{directory}/none.sock")
    assert done.returncode == 2
    assert "no server answers at unix:" in done.stderr
    assert "Traceback" not in done.stderr


def test_stat_gives_up_on_a_server_that_is_stopped(serve):
    process = serve().ready()
    process.popen.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(NodeServerError, match="before the deadline"), StatClient(process.path, 0.2):
        pass
    assert time.monotonic() - begin < 10
    process.popen.send_signal(signal.SIGCONT)
    assert stat_of(process.path)["clients"] == []


def test_stat_is_drawn_in_place_with_rates_between_refreshes():
    with short_directory() as directory, running(settings_for(directory / "node.sock")) as server:
        first = json.loads(server.service.report(True))
    second = json.loads(json.dumps(first))
    second["uptime_s"] = first["uptime_s"] + 2
    second["reads"]["bytes_read"] = 4_000_000_000
    second["memory"]["bytes_written"] = 1_000_000_000
    drawn, figures = io.StringIO(), iter([first, second])

    def pause() -> None:
        if drawn.getvalue().count(CLEAR) == 2:
            raise KeyboardInterrupt

    refresh(lambda: next(figures), drawn, pause)
    _, one, two = drawn.getvalue().split(CLEAR)
    assert "GB/s" not in one
    assert "2.00 GB/s" in two
    assert "0.50 GB/s" in two


def test_a_client_of_another_version_is_refused_by_the_process(serve):
    process = serve().ready()
    with pytest.raises(RefusedError, match="both need the same"):
        Talker(process.path, version="0.0.0/1")
    assert "both need the same" in process.said()
