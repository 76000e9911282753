"""Programs against the native core under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import json

import pytest
from native_programs import counts_in, program, run_program

STRESS_SECONDS = 10
BOTH = ("address", "thread")
NEVER = (1 << 64) - 1
"""The threshold that switches non-temporal stores off: ThreadSanitizer sees memcpy, and not those."""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("variant", "nt_copy_min_bytes"), [("thread", NEVER), ("address", 1024)], ids=["thread", "address"]
)
def test_threads_of_mixed_calls_on_a_pool_that_evicts_all_the_time(variant, nt_copy_min_bytes, soak_scale, soak_report):
    seconds = STRESS_SECONDS * soak_scale
    output = run_program(program("pool_stress", variant), seconds, nt_copy_min_bytes, seconds=seconds)
    soak_report(f"mixed calls under -fsanitize={variant}", **counts_in(output))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("variant", "nt_copy_min_bytes"), [("thread", NEVER), ("address", 1024)], ids=["thread", "address"]
)
def test_puts_that_clients_copy_against_readers_with_batches_abandoned_all_the_time(
    variant, nt_copy_min_bytes, soak_scale, soak_report
):
    seconds = STRESS_SECONDS * soak_scale
    output = run_program(program("remote_stress", variant), seconds, nt_copy_min_bytes, seconds=seconds)
    soak_report(f"remote puts under -fsanitize={variant}", **counts_in(output))


@pytest.mark.parametrize("variant", BOTH)
def test_exact_orders_of_steps_of_the_owner_and_of_sessions(variant):
    run_program(program("owner_checks", variant))


@pytest.mark.parametrize("variant", BOTH)
def test_many_callers_share_one_copy_pool_and_one_region_table(variant):
    assert run_program(program("copy_pool_threads", variant), 3) == "0 faults\n"


def test_reader_processes_and_threads_see_no_wrong_byte_under_address_sanitizer():
    stress = program("protocol_stress", "address")
    for mode in ("processes", "threads"):
        found = json.loads(run_program(stress, "sound", mode, 3, 2, 8))
        assert found["hits"] > 0
        assert found["wrong"] == 0


# --- random steps against plain models --------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "steps"), [("extents_fuzz", 200_000), ("region_fuzz", 400_000), ("planner_checks", 200_000)]
)
def test_random_steps_agree_with_a_plain_model(name, steps, soak_scale, soak_report):
    """Allocator, region table and planner: one thread each, in which ThreadSanitizer has nothing to find."""
    found = counts_in(run_program(program(name, "address"), steps * soak_scale, 1, seconds=60 * soak_scale))
    soak_report(f"{name} under -fsanitize=address", **found)
    assert min(found.values()) > 0
