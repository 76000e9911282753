"""The real SGLang server on a CPU, in processes of its own; a start takes 40-60 s of two idle cores.

The stand-ins that a CPU needs come to its processes as a plugin of SGLang, laid out in a folder on PYTHONPATH.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE_TOKENS = 16
ADMIN_KEY = "for-tests"
START_TIMEOUT_S = 400.0
CALL_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
# A test run that is killed leaves no server: the kernel ends it with its parent (util-linux).
END_WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
PLUGINS = """
[sglang.srt.plugins]
cpu_transfer = cpu_transfer:install
{more}
"""
FIXED_ARGUMENTS = {
    "--device": "cpu",
    "--page-size": str(PAGE_TOKENS),
    "--max-total-tokens": "4096",
    "--mem-fraction-static": "0.1",
    "--hicache-write-policy": "write_through",
    "--hicache-mem-layout": "page_first_direct",
    "--hicache-io-backend": "direct",
    "--hicache-ratio": "2",
    "--hicache-storage-prefetch-policy": "wait_complete",
    "--admin-api-key": ADMIN_KEY,
    "--random-seed": "1",
    "--log-level": "info",
}
EXTRA_CONFIG = {"prefetch_threshold": PAGE_TOKENS, "dram_capacity_bytes": 64 << 20}
UMBP_ARGUMENTS = {
    "--hicache-storage-backend": "umbp",
    "--hicache-storage-backend-extra-config": json.dumps(EXTRA_CONFIG),
}
# --sleep-on-idle: a scheduler polls on a whole core otherwise, beside the servers of other tests.
FIXED_SWITCHES = ("--skip-tokenizer-init", "--enable-hierarchical-cache", "--enable-cache-report", "--sleep-on-idle")


class ServerStartError(RuntimeError):
    """The server ended, or did not answer in time; the message ends with its log."""


@dataclass(frozen=True)
class Answer:
    """What a prompt gave: ids and their log probabilities, and how many tokens of the prompt came from where."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    from_storage: int
    from_device: int

    def says(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """What must not depend on where the cache came from."""
        return self.ids, self.logprobs


@dataclass(frozen=True)
class SglangServer:
    """A running server. `pid` is the process that was started, the leader of its process group."""

    url: str
    pid: int
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def generate(self, prompt: Sequence[int], new_tokens: int = 8) -> Answer:
        """Greedy; the prompt's own log probabilities are not asked for, which would keep it out of the cache."""
        sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
        return _answer(json.loads(self.call("POST", "/generate", body)))

    def flush(self) -> None:
        """Empties the device cache and the host cache once the server is idle; the storage stays."""
        until(lambda: self._succeeds("POST", "/flush_cache"), "no flush: the server does not become idle")

    def clear_storage(self) -> None:
        self.call("POST", "/hicache/storage-backend/clear")

    def attach(self, backend: str, extra_config: Mapping[str, object]) -> str:
        body = {
            "hicache_storage_backend": backend,
            "hicache_storage_backend_extra_config_json": json.dumps(extra_config),
            "hicache_storage_prefetch_policy": "wait_complete",
        }
        return self.call("PUT", "/hicache/storage-backend", body)

    def detach(self) -> str:
        return self.call("DELETE", "/hicache/storage-backend")

    def attached_backend(self) -> str | None:
        return json.loads(self.call("GET", "/hicache/storage-backend"))["hicache_storage_backend"]

    def generate_when_backed_up(self, prompt: Sequence[int], tokens: int) -> Answer:
        """The answer from storage, after /flush_cache, with at least this many tokens from there.

        Backing up is in the background: a prompt that was too early is asked again after another flush.
        """
        found: list[Answer] = []

        def served() -> bool:
            self.flush()
            found.append(self.generate(prompt))
            return found[-1].from_storage >= tokens

        until(served, f"fewer than {tokens} tokens from storage", attempts=10)
        return found[-1]

    def call(self, method: str, path: str, body: object = None) -> str:
        """The text of the response. Raises urllib.error.HTTPError unless the status is 2xx."""
        data = None if method == "GET" else json.dumps(body if body is not None else {}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as response:
            return response.read().decode()

    def _succeeds(self, method: str, path: str) -> bool:
        try:
            self.call(method, path)
        except urllib.error.HTTPError:
            return False
        return True

    def scheduler_pids(self) -> list[int]:
        """The processes that hold the caches, one a rank."""
        group = [pid for pid in _pids() if _group_of(pid) == self.pid]
        return [pid for pid in group if "scheduler" in _title_of(pid)]


@contextmanager
def running_server(
    folder: Path,
    model: Path,
    *,
    arguments: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    plugins: Mapping[str, str] | None = None,
    launcher: Sequence[str] = ("-m", "sglang.launch_server"),
) -> Iterator[SglangServer]:
    """A server that answers, until the end of the block; then its whole process group is ended.

    folder: for its log and its plugins. arguments: beside the fixed ones, or instead of one of them.
    plugins: more entry points of SGLang, name to "module:function", whose modules lie beside this file.
    """
    port = free_port()
    log_path = folder / "server.log"
    given = FIXED_ARGUMENTS | {"--model-path": str(model), "--port": str(port)} | dict(arguments or {})
    command = [
        *END_WITH_US,
        sys.executable,
        *launcher,
        *FIXED_SWITCHES,
        *(word for pair in given.items() for word in pair),
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=server_environment(folder, plugins or {}) | dict(environment or {}),
            start_new_session=True,
        )
    server = SglangServer(f"http://127.0.0.1:{port}", process.pid, log_path)
    try:
        wait_until_ready(server, process)
        yield server
    finally:
        end_group(process)


def server_environment(folder: Path, plugins: Mapping[str, str]) -> dict[str, str]:
    """This environment, with SGLang's CPU engine and a folder of stand-ins before the rest of PYTHONPATH."""
    stand_ins = folder / "stand_ins"
    lay_out_stand_ins(stand_ins, plugins)
    inherited = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return os.environ | {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": os.pathsep.join([str(stand_ins), *inherited]),
        "TOKENIZERS_PARALLELISM": "false",
    }


def lay_out_stand_ins(target: Path, plugins: Mapping[str, str]) -> None:
    """The copy kernels, the operators and further plugins, as an installed distribution would lie there."""
    shutil.copytree(HERE / "stubs", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for module in {"cpu_transfer", *(value.partition(":")[0] for value in plugins.values())}:
        shutil.copy(HERE / f"{module}.py", target)
    metadata = target / "cpu_stand_ins-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-stand-ins\nVersion: 0\n")
    more = "\n".join(f"{name} = {value}" for name, value in plugins.items())
    (metadata / "entry_points.txt").write_text(PLUGINS.format(more=more))


def wait_until_ready(server: SglangServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerStartError(f"ended with {process.returncode}:\n{server.log()[-8000:]}")
        try:
            server.call("GET", "/health_generate")
            return
        except OSError:
            time.sleep(0.5)
    raise ServerStartError(f"no answer in {START_TIMEOUT_S:.0f} s:\n{server.log()[-8000:]}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Asks the group to end, then kills what is left of it: only processes that this one started are in there."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            break
        _wait_for_group(process, STOP_TIMEOUT_S)
    process.wait(STOP_TIMEOUT_S)


def engine_keywords(model: Path, arguments: Mapping[str, str]) -> dict[str, object]:
    """The fixed arguments, switches and these, as keywords of SGLang's Engine."""
    given = FIXED_ARGUMENTS | {"--model-path": str(model)} | dict(arguments)
    words = {name: _number(value) for name, value in given.items()} | dict.fromkeys(FIXED_SWITCHES, True)
    return {name.removeprefix("--").replace("-", "_"): value for name, value in words.items()}


def run_engine_program(folder: Path, keywords: Mapping[str, object], prompt: Sequence[int]) -> list[dict[str, Any]]:
    """What engine_program.py answers, in a process of its own."""
    command = [
        *END_WITH_US,
        sys.executable,
        str(HERE / "engine_program.py"),
        json.dumps(keywords),
        json.dumps(list(prompt)),
    ]
    log_path = folder / "engine.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=server_environment(folder, {}), start_new_session=True
        )
    try:
        process.wait(START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        end_group(process)
    for line in log_path.read_text(errors="replace").splitlines():
        if line.startswith("answers: "):
            return json.loads(line.removeprefix("answers: "))
    raise ServerStartError(
        f"no answers, ended with {process.returncode}:\n{log_path.read_text(errors='replace')[-8000:]}"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _number(value: str) -> object:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _wait_for_group(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        process.poll()
        if not any(_group_of(pid) == process.pid for pid in _pids()):
            return
        time.sleep(0.1)


def until(condition: Any, complaint: str, attempts: int = 60, pause_s: float = 0.5) -> None:
    """Returns once the condition holds. Raises AssertionError with the complaint after so many attempts."""
    for _ in range(attempts):
        if condition():
            return
        time.sleep(pause_s)
    raise AssertionError(complaint)


def _answer(body: dict[str, Any]) -> Answer:
    meta = body["meta_info"]
    details = meta.get("cached_tokens_details") or {}
    return Answer(
        ids=tuple(body["output_ids"]),
        logprobs=tuple(entry[0] for entry in meta["output_token_logprobs"]),
        cached_tokens=meta["cached_tokens"],
        from_storage=details.get("storage") or 0,
        from_device=details.get("device") or 0,
    )


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _group_of(pid: int) -> int | None:
    """The process group of a process that is not a zombie."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state == "Z" else int(group)


def _title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
