"""Remote puts and lost pools with one mistake planted at a time: remote_stress must catch every one."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from native_programs import CORE, program, program_with

TIMEOUT_S = 120
CATCH_WITHIN_S = 60
"""How long a mistake may stay unseen that needs threads to meet: the program is run again until then."""

BATCH, FILL, POOL = "remote_batch.cpp", "pool_fill.cpp", "pool.cpp"
ANY_STEP = {"if (next_ != step)": "if (false)"}
ENDLESS = "allocate(items_, Deadline::after(timeout))"
PLANTS = {
    "abandoning frees nothing": (BATCH, {"  pool_.owner().abandon(items_);\n": ""}),
    "a batch that is destroyed stays reserved": (BATCH, {"::~RemoteBatch() { abandon(); }": "::~RemoteBatch() {}"}),
    "a stale commit is taken": (
        BATCH,
        {"if (abandoned()) throw": "if (false) throw", "if (next_ != step)": "if (false)"},
    ),
    "a batch commits twice": (BATCH, ANY_STEP),
    "an abandoned batch is told where to write": (
        BATCH,
        {"    begin(Step::kCommit);  //": "    //"},
    ),
    "offsets are told after the abandon": (BATCH, {"item.finish(Status::kCleared);": "{}"}),
    "keys stay the caller's": (BATCH, {"std::span(own).subspan(": "keys.subspan("}),
    "nobody who waits is woken": (BATCH, {"    pool_.owner().wake();\n": ""}),
    "a wait for room goes on": (
        BATCH,
        {"allocate(items_, Deadline::after(timeout, &abandoned_))": ENDLESS},
    ),
    "what is held is not counted": (BATCH, {"if (item.is_protected) held": "if (false) held"}),
    "a target may end outside": (FILL, {"offset <= index.arena_bytes - nbytes &&": "true &&"}),
    "a target may lie between granules": (FILL, {"offset % kArenaGranule == 0": "true"}),
    "a lost pool still fills": (FILL, {"if (call.lost()) return false;": ""}),
    "unmapped under a call": (POOL, {'close() it");\n  wait_for(calls_);': 'close() it");'}),
    "a lost pool still pins": (
        POOL,
        {"if (call.lost() || hidden())\n    return sessions_->hold": "if (hidden())\n    return sessions_->hold"},
    ),
}
"""In which file what is altered, and into what."""


def run(binary: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary, "0"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def is_caught(binary: Path) -> bool:
    give_up = time.monotonic() + CATCH_WITHIN_S
    while time.monotonic() < give_up:
        if run(binary).returncode != 0:
            return True
    return False


def test_the_sound_core_passes() -> None:
    done = run(program("remote_stress", "plain"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("plant", PLANTS)
def test_a_mistake_is_caught(plant: str, tmp_path: Path) -> None:
    file, edits = PLANTS[plant]
    text = (CORE / file).read_text()
    for sound, altered in edits.items():
        assert sound in text, f"{file} has changed: plant the mistake anew"
        text = text.replace(sound, altered)
    assert is_caught(program_with("remote_stress", {file: text}, tmp_path)), "not caught"
