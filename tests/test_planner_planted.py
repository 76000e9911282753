"""Runs with one mistake planted at a time: every altered copy of planner.h must be caught by planner_checks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_programs import CORE, program_against

BATCHES = 100_000

PLANTS = {
    "a source above, not next": ("src - run_.src == run_.nbytes", "src - run_.src >= run_.nbytes"),
    "a destination above, not next": ("dst - run_.dst == run_.nbytes", "dst - run_.dst >= run_.nbytes"),
    "a source that overlaps": ("src - run_.src == run_.nbytes", "src - run_.src <= run_.nbytes"),
    "a source one beside": ("src - run_.src == run_.nbytes", "src - run_.src == run_.nbytes + 1"),
    "a source below, not next": ("run_.src - src == nbytes", "run_.src - src >= nbytes"),
    "a destination below, not next": ("run_.dst - dst == nbytes", "run_.dst - dst >= nbytes"),
    "a destination below that overlaps": ("run_.dst - dst == nbytes", "run_.dst - dst <= nbytes"),
    "one byte short upwards": ("run_.nbytes += nbytes;", "run_.nbytes += nbytes - 1;"),
    "one byte more upwards": ("run_.nbytes += nbytes;", "run_.nbytes += nbytes + 1;"),
    "one byte short downwards": ("run_.nbytes + nbytes}", "run_.nbytes + nbytes - 1}"),
    "downwards from the old start": ("run_ = {src, dst, run_.nbytes + nbytes}", "run_.nbytes += nbytes"),
    "no end of the source space": (" && src > run_.src &&", " &&"),
    "no end of the destination space": ("dst > run_.dst && growth_", "growth_"),
    "no end of the source space downwards": (" && src < run_.src &&", " &&"),
    "no end of the destination space downwards": ("dst < run_.dst && growth_", "growth_"),
    "a turn downwards": ("growth_ != Growth::kUp", "true"),
    "a turn upwards": ("growth_ != Growth::kDown", "true"),
    "any source region": ("src_region == src_region_ && dst", "dst"),
    "any destination region": ("src_region_ && dst_region == dst_region_)", "src_region_)"),
    "a last run of one byte is lost": ("run_.nbytes != 0", "run_.nbytes > 1"),
}
"""What is altered, and into what."""


def checks(folder: Path, header: str) -> subprocess.CompletedProcess[str]:
    (folder / "planner.h").write_text(header)
    binary = program_against("planner_checks", folder, folder / "planner_checks")
    return subprocess.run([binary, str(BATCHES), "1"], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def header() -> str:
    return (CORE / "planner.h").read_text()


def test_the_sound_planner_passes(header: str, tmp_path: Path) -> None:
    done = checks(tmp_path, header)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_in_a_run_is_caught(plant: str, header: str, tmp_path: Path) -> None:
    sound, altered = PLANTS[plant]
    assert header.count(sound) == 1, "planner.h has changed: plant the mistake anew"
    done = checks(tmp_path, header.replace(sound, altered))
    assert (done.returncode, done.stdout[:9]) == (1, "differs: "), f"not caught: {done.stdout}{done.stderr}"
