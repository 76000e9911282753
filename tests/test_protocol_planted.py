"""The read protocol under constant recycling, sound and with one mistake planted at a time.

Every planted mistake must be caught: a stress that lets one pass proves nothing about the sound protocol.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from native_programs import program

CATCH_WITHIN_S = 30
SOUND_SECONDS = 4
TSAN_EXIT_CODE = 66
CPUS = len(os.sched_getaffinity(0))

needs_two_cpus = pytest.mark.skipif(
    CPUS < 2, reason="a store buffer is seen by another CPU only; this process may use one"
)


@pytest.fixture(scope="module")
def stress() -> Path:
    return program("protocol_stress", "plain")


@pytest.fixture(scope="module")
def stress_under_tsan() -> Path:
    return program("protocol_stress", "thread")


def run(
    binary: Path, plant: str, carrier: str, *, seconds: float, readers: int, batch: int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary, plant, carrier, str(seconds), str(readers), str(batch)],
        env={**os.environ, "TSAN_OPTIONS": f"halt_on_error=1 exitcode={TSAN_EXIT_CODE}"},
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_exercised(found: dict[str, int], hits: int, recycled: int) -> None:
    """Readers hit, the owner recycled, and some evictions found their victim named."""
    assert found["hits"] > hits
    assert found["recycled"] > recycled
    assert found["held"] > 0


def wrong_bytes_are_seen(binary: Path, plant: str, carrier: str = "processes") -> bool:
    """One run ends at the first wrong byte; repeated until caught, as long as is allowed."""
    give_up = time.monotonic() + CATCH_WITHIN_S
    while (left := give_up - time.monotonic()) > 0:
        if counts(run(binary, plant, carrier, seconds=min(left, 10), readers=1, batch=8))["wrong"]:
            return True
    return False


# --- sound -------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("plant", ["sound", "sound-behind-cold-lines"])
@pytest.mark.parametrize("readers", [1, 2])
def test_reader_processes_see_no_wrong_byte_under_constant_recycling(stress, plant, readers, soak_scale, soak_report):
    found = counts(run(stress, plant, "processes", seconds=SOUND_SECONDS * soak_scale, readers=readers, batch=8))
    soak_report(f"{plant}, {readers} reader processes", **found)
    assert found["wrong"] == 0
    assert_exercised(found, hits=20_000, recycled=20_000)


@pytest.mark.soak
@pytest.mark.parametrize("batch", [8, 256])
def test_thread_sanitizer_finds_nothing_in_the_sound_protocol(stress_under_tsan, batch, soak_scale, soak_report):
    found = counts(
        run(stress_under_tsan, "sound", "threads", seconds=SOUND_SECONDS * soak_scale, readers=2, batch=batch)
    )
    soak_report(f"sound, 2 reader threads, batches of {batch} under TSan", **found)
    assert found["wrong"] == 0
    assert_exercised(found, hits=2_000, recycled=50)


# --- mistakes of a reader ----------------------------------------------------------------------


@needs_two_cpus
def test_a_reader_without_the_fence_is_caught_with_wrong_bytes(stress):
    assert wrong_bytes_are_seen(stress, "no-fence")


def test_a_reader_without_the_second_check_is_caught_with_wrong_bytes(stress):
    assert wrong_bytes_are_seen(stress, "no-recheck")


def test_relaxed_stores_of_handles_are_caught_as_a_data_race(stress_under_tsan):
    give_up = time.monotonic() + CATCH_WITHIN_S
    while time.monotonic() < give_up:
        done = run(stress_under_tsan, "relaxed-handles", "threads", seconds=10, readers=2, batch=32)
        if done.returncode == TSAN_EXIT_CODE:
            assert "WARNING: ThreadSanitizer: data race" in done.stderr
            return
        assert counts(done)["wrong"] == 0
    pytest.fail("ThreadSanitizer reported nothing")


# --- mistakes of the owner ---------------------------------------------------------------------


def test_an_owner_that_does_not_look_at_a_client_is_caught_with_wrong_bytes(stress):
    assert wrong_bytes_are_seen(stress, "unseen-client")


def test_an_owner_that_trusts_the_pass_before_the_retirement_is_caught_with_wrong_bytes(stress):
    assert wrong_bytes_are_seen(stress, "stale-pass")
