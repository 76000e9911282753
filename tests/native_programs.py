"""Compiles the C++ programs of tests/native against the core, once for each set of flags and sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "sglang_umbp" / "native" / "core"
PROGRAMS = ROOT / "tests" / "native"
CACHE = ROOT / "build" / "native-tests"

FLAGS = {
    "plain": ("-O2",),
    "thread": ("-O1", "-g1", "-fsanitize=thread", "-fno-omit-frame-pointer"),
    "address": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"),
}
"""Flags by the name of what the program is to be compiled for."""

COMMON_FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-pthread", "-DNDEBUG")
COMPILE_TIMEOUT_S = 240

RUN_TIMEOUT_S = 240
SANITIZER_OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1 halt_on_error=1 strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1",
}


def program(name: str, variant: str) -> Path:
    """The compiled tests/native/<name>.cpp, linked with the whole core. Skips where there is no g++.

    Kept under build/native-tests by the hash of what it was made of, so that a second run compiles
    nothing.
    """
    compiler = compiler_for(name)
    flags = (*COMMON_FLAGS, *FLAGS[variant])
    core = _core_archive(compiler, flags)
    source = PROGRAMS / f"{name}.cpp"
    target = core.parent / f"{name}-{_digest([source])}"
    if not target.exists():
        command = [compiler, *flags, f"-I{CORE}", str(source), str(core)]
        _replace(target, lambda made: _run([*command, "-o", str(made)]))
    return target


def program_against(name: str, headers: Path, target: Path) -> Path:
    """tests/native/<name>.cpp compiled to `target` with the headers of a folder and nothing else of the core."""
    source = PROGRAMS / f"{name}.cpp"
    _run([compiler_for(name), *COMMON_FLAGS, *FLAGS["plain"], f"-I{headers}", str(source), "-o", str(target)])
    return target


def program_with(name: str, altered: Mapping[str, str], folder: Path) -> Path:
    """The same, with other text in place of some .cpp files of the core; made in a folder of the caller's."""
    compiler = compiler_for(name)
    flags = (*COMMON_FLAGS, *FLAGS["plain"], f"-I{CORE}")
    program(name, "plain")  # so that the core's archive is there
    sources = []
    for file, text in altered.items():
        sources.append(folder / file)
        sources[-1].write_text(text)
    archive = _core_archive(compiler, (*COMMON_FLAGS, *FLAGS["plain"]))
    _run([compiler, *flags, str(PROGRAMS / f"{name}.cpp"), *map(str, sources), str(archive), "-o", str(folder / name)])
    return folder / name


def run_program(binary: Path, *arguments: object, seconds: float = 0) -> str:
    """Its output; it must exit with 0, without a report of a sanitizer. `seconds`: how long it is to run."""
    done = subprocess.run(
        [binary, *map(str, arguments)],
        env={**os.environ, **SANITIZER_OPTIONS},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S + seconds,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[:20_000]}"
    assert done.stderr == ""
    return done.stdout


def counts_in(output: str) -> dict[str, int]:
    """What a program printed as pairs of names and integers."""
    words = output.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def compiler_for(name: str) -> str:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not there to compile {name}.cpp")
    return compiler


def _core_archive(compiler: str, flags: tuple[str, ...]) -> Path:
    files = sorted([*CORE.glob("*.h"), *CORE.glob("*.cpp")])
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    folder = CACHE / _digest(files, compiler, version, *flags)
    target = folder / "core.a"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _replace(target, lambda made: _archive(compiler, flags, made))
    return target


def _archive(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:

        def compile_one(source: Path) -> str:
            made = f"{folder}/{source.stem}.o"
            _run([compiler, *flags, "-c", str(source), "-o", made])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as executor:
            objects = list(executor.map(compile_one, sorted(CORE.glob("*.cpp"))))
        _run(["ar", "rcs", str(target), *objects])


def _digest(files: Iterable[Path], *words: str) -> str:
    sha = hashlib.sha256()
    for part in (*words, *(part for file in files for part in (file.name, file.read_text()))):
        sha.update(f"{len(part)}:{part}".encode())
    return sha.hexdigest()[:16]


def _replace(target: Path, make) -> None:
    """Two test runs may compile at once: what is under its final name is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        make(made)
        made.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
