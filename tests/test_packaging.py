"""The sdist builds a wheel on every Python we support, and the wheel works where nothing else is.

Built in an isolated environment from PyPI and installed into a fresh one; about a minute a Python.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from interpreters import find_interpreter

import sglang_umbp

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12")
SDIST_TOP = {
    *("CHANGELOG.md", "LICENSE", "Makefile", "PKG-INFO", "README.md", "pyproject.toml"),
    *("benchmarks", "docs", ".ci", "examples", "sglang_umbp", "tests"),
}
SOURCE_SUFFIXES = {
    *(".c", ".cpp", ".cu", ".h", ".json", ".jsonl", ".md", ".py", ".pyi", ".service", ".sh", ".toml", ".txt", ".typed"),
    "",
}
NATIVE_SUFFIXES = {".a", ".cpp", ".cmake", ".h", ".o", ".txt"}

# Run inside the fresh environment: says what the import asked for, not only what it found.
IMPORT_PROBE = """
import sys
asked = set()
class Recorder:
    def find_spec(self, name, path=None, target=None):
        asked.add(name.partition(".")[0])
sys.meta_path.insert(0, Recorder())
import sglang_umbp, sglang_umbp._native
print(sglang_umbp.__version__)
heavy = {"torch", "sglang", "cuda", "cupy", "hip", "mooncake", "prometheus_client", "triton"}
assert not asked & heavy, sorted(asked & heavy)
maps = open("/proc/self/maps").read()
assert not any(name in maps for name in ("libcuda", "libamdhip", "libtorch", "libhsa"))
"""

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Installed:
    """A fresh environment holding the wheel that the sdist gave there."""

    bin_path: Path
    wheel: Path

    def run(self, *command: str, cwd: Path) -> str:
        program, *arguments = command
        return run(str(self.bin_path / program), *arguments, cwd=cwd)


def run(*command: str, cwd: Path) -> str:
    """Standard output; a failure shows everything that was printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", str(out), ".", cwd=ROOT)
    (archive,) = out.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module", params=VERSIONS)
def installed(request, sdist, tmp_path_factory) -> Installed:
    interpreter = find_interpreter(request.param)
    if interpreter is None:
        pytest.skip(f"no Python {request.param} on this machine")
    work = tmp_path_factory.mktemp("wheel")
    run(interpreter, "-m", "venv", "env", cwd=work)
    python = str(work / "env" / "bin" / "python")
    run(python, "-m", "pip", "wheel", "--no-deps", "-w", "out", str(sdist), cwd=work)
    (wheel,) = (work / "out").glob("*.whl")
    run(python, "-m", "pip", "install", str(wheel), cwd=work)
    return Installed(work / "env" / "bin", wheel)


def sdist_members(sdist: Path) -> dict[str, bytes]:
    with tarfile.open(sdist) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        return {m.name.partition("/")[2]: archive.extractfile(m).read() for m in files}


def wheel_members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def assert_names_no_place(members: dict[str, bytes]) -> None:
    places = [str(ROOT), tempfile.gettempdir() + "/", str(Path.home()) + "/"]
    found = [(name, p) for name, data in members.items() for p in places if p.encode() in data]
    assert not found


def test_sdist_holds_sources_and_tests_and_nothing_else(sdist):
    members = sdist_members(sdist)
    assert {name.partition("/")[0] for name in members} <= SDIST_TOP
    assert {Path(name).suffix for name in members} <= SOURCE_SUFFIXES
    wanted = ("pyproject.toml", "LICENSE", "sglang_umbp/native/CMakeLists.txt", "tests/conftest.py")
    assert set(wanted) <= set(members)


def test_wheel_holds_what_a_user_needs_and_no_native_source(installed):
    names = set(wheel_members(installed.wheel))
    assert {"sglang_umbp/py.typed", "sglang_umbp/_native.pyi"} <= names
    assert any(name.startswith("sglang_umbp/_native.") and name.endswith(".so") for name in names)
    package = {name for name in names if ".dist-info/" not in name}
    assert not [name for name in package if Path(name).suffix in NATIVE_SUFFIXES]
    assert {name.partition("/")[0] for name in package} == {"sglang_umbp"}
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_wheel_and_sdist_name_no_place_of_the_machine(installed, sdist):
    assert_names_no_place(wheel_members(installed.wheel))
    assert_names_no_place(sdist_members(sdist))


def test_import_asks_for_no_accelerator_and_no_framework(installed, tmp_path):
    version = installed.run("python", "-c", IMPORT_PROBE, cwd=tmp_path).strip()
    assert version == sglang_umbp.__version__
    assert f"-{version}-" in installed.wheel.name


def test_command_line_answers_under_both_names(installed, tmp_path):
    script = installed.run("sglang-umbp", "--version", cwd=tmp_path)
    module = installed.run("python", "-m", "sglang_umbp", "--version", cwd=tmp_path)
    assert sglang_umbp.__version__ in script
    assert script == module


def test_quickstart_runs_with_the_wheel_alone(installed, tmp_path):
    script = str(ROOT / "examples" / "quickstart.py")
    assert "bytes equal: True" in installed.run("python", script, "--pages", "3", cwd=tmp_path)
