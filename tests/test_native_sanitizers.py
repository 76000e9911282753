"""Programs against the native core under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native_programs import program

STRESS_SECONDS = 10
NEVER = (1 << 64) - 1
"""The threshold that switches non-temporal stores off: ThreadSanitizer sees memcpy, and not those."""
TIMEOUT_S = 240

OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1 halt_on_error=1 strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1 print_stacktrace=1",
}


def run(binary: Path, *arguments: object, seconds: float = 0) -> str:
    """Its output; it must exit with 0, without a report."""
    done = subprocess.run(
        [binary, *map(str, arguments)],
        env={**os.environ, **OPTIONS},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + seconds,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr[:20_000]}"
    assert done.stderr == ""
    return done.stdout


@pytest.mark.soak
@pytest.mark.parametrize(
    ("variant", "nt_copy_min_bytes"), [("thread", NEVER), ("address", 1024)], ids=["thread", "address"]
)
def test_threads_of_mixed_calls_on_a_pool_that_evicts_all_the_time(variant, nt_copy_min_bytes, soak_scale, soak_report):
    seconds = STRESS_SECONDS * soak_scale
    output = run(program("pool_stress", variant), seconds, nt_copy_min_bytes, seconds=seconds)
    words = output.split()
    soak_report(f"mixed calls under -fsanitize={variant}", **dict(zip(words[::2], map(int, words[1::2]), strict=True)))


def test_exact_orders_of_steps_of_the_owner_and_of_sessions():
    run(program("owner_checks", "address"))


def test_many_callers_share_one_copy_pool_and_one_region_table():
    assert run(program("copy_pool_threads", "thread"), 3) == "0 faults\n"
