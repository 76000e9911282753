"""A pool with the memory of emulated devices, and one mistake planted at a time that the checks must catch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from device_runtimes import fake_library
from native_programs import CORE, counts_in, program, program_with, run_program

MAPPINGS = 10_000
ROUNDS = 160
PROGRAM_TIMEOUT_S = 240
FIFTH_CHUNK_FAILS = "separate_aliases=1,fail_register_at=5"


@pytest.fixture(params=["cuda", "hip"])
def library(request: pytest.FixtureRequest) -> Path:
    return fake_library(request.param)


def test_every_short_mapping_and_many_random_ones_are_preserved_both_ways(library: Path) -> None:
    counts = counts_in(run_program(program("device_pool_checks", "plain"), library, "mappings", MAPPINGS))
    assert counts["short"] > 406_900
    assert counts["random"] == MAPPINGS


@pytest.mark.parametrize("apart", [False, True], ids=["one_alias", "aliases_apart"])
def test_batches_over_host_and_devices_keep_every_byte(
    library: Path, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBP_FAKE_KNOBS", f"separate_aliases={int(apart)}")
    counts = counts_in(run_program(program("device_pool_checks", "plain"), library, "mixed", ROUNDS, 3))
    assert counts["staged"] > 0


@pytest.mark.parametrize("variant", ["thread", "address"])
def test_under_a_sanitizer(variant: str) -> None:
    run_program(program("device_pool_checks", variant), fake_library("cuda"), "mixed", 48, 5)
    run_program(program("device_pool_checks", variant), fake_library("cuda"), "order")


def test_calls_wait_for_the_stream_or_event_that_they_are_given(library: Path) -> None:
    run_program(program("device_pool_checks", "plain"), library, "order")


def test_objects_that_lie_across_pinned_chunks_keep_every_byte(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBP_FAKE_KNOBS", FIFTH_CHUNK_FAILS)
    run_program(program("device_pool_checks", "plain"), library, "chunks")


LEAK = "static auto* leaked = new std::vector<DeviceCopier::Ticket>; leaked->push_back(std::move({ticket}));"
PLANTED = {
    "no_wait_for_a_copy": (
        "device_moves.cpp",
        "for (DeviceCopier::Ticket& ticket : tickets) ticket.wait();",
        "for (DeviceCopier::Ticket& ticket : tickets) {" + LEAK.format(ticket="ticket") + "}",
    ),
    "no_order_of_a_copy": (
        "device_moves.cpp",
        "copier.submit(pinned, fragments, way, after)",
        "copier.submit(pinned, fragments, way, CopyOrder{})",
    ),
    "no_order_of_a_staged_copy": (
        "staged_copy.cpp",
        "CopyDirection::kDeviceToHost, after",
        "CopyDirection::kDeviceToHost, (static_cast<void>(after), CopyOrder{})",
    ),
    "no_order_of_the_host": ("pool_device.cpp", "devices()->await(after);", "static_cast<void>(after);"),
    "a_half_is_emptied_before_its_bytes_are_there": (
        "staged_copy.cpp",
        "  ticket.wait();\n  empty(",
        "  empty(",
    ),
    "a_half_is_emptied_twice_late": (
        "staged_copy.cpp",
        "    empty(both.halves[(turn + 1) % 2]);\n",
        "",
    ),
    "a_run_goes_on_beyond_its_chunk": (
        "device_moves.cpp",
        "const uint64_t nbytes = std::min(run.nbytes - done, piece.rest);",
        "const uint64_t nbytes = run.nbytes - done;",
    ),
    "a_run_goes_on_beyond_the_chunk_of_the_run_before": (
        "device_moves.cpp",
        "run.nbytes <= chunk.nbytes - (offset - chunk_begin)",
        "run.nbytes <= chunk.nbytes",
    ),
    "a_run_lies_where_the_run_before_does": (
        "device_moves.cpp",
        "chunk.alias + (offset - chunk_begin)",
        "chunk.alias",
    ),
    "memory_nobody_registered_is_the_hosts": (
        "device_memory.cpp",
        "if (info.kind != MemoryKind::kDevice) return kHostMemory;",
        "return kHostMemory;",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, right, mistake = PLANTED[name]
    text = (CORE / file).read_text()
    assert text.count(right) >= 1
    made = program_with("device_pool_checks", {file: text.replace(right, mistake)}, tmp_path)
    assert any(_fails(made, monkeypatch, *run) for run in RUNS)


RUNS = (
    ("separate_aliases=1", "order"),
    (FIFTH_CHUNK_FAILS, "chunks"),
    ("separate_aliases=1", "mixed", str(ROUNDS), "3"),
)


def _fails(binary: Path, monkeypatch: pytest.MonkeyPatch, knobs: str, *words: str) -> bool:
    monkeypatch.setenv("UMBP_FAKE_KNOBS", knobs)
    done = subprocess.run(
        [binary, fake_library("cuda"), *words], capture_output=True, timeout=PROGRAM_TIMEOUT_S, check=False
    )
    return done.returncode != 0
