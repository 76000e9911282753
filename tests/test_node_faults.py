"""Readers, writers and the server of a node are killed and stopped in mid-copy, and the server restarted under load.

Others read and write all the time and check every byte. No call is late, nothing is left of whoever was struck.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from node_marks import Mark
from node_stage import BATCH, NBYTES, PUT_DEADLINE_S, QUOTA_BYTES, WITHIN_S, Stage, WorkerProcess, stage, wait_for
from node_worker import ALLOWANCE_S, own_keys
from waiting import DEADLINE_S

from sglang_umbp import NodePool

FEW, MANY = 6, 100
"""Strikes of each kind: in make test, in make soak."""

FREE = ("reserved_bytes", "quarantined_bytes")
pytestmark = pytest.mark.soak


@pytest.fixture
def node() -> Iterator[Stage]:
    with stage() as opened:
        yield opened


class Strikes:
    """Counts of the rounds of one test."""

    def __init__(self, soak_scale: int) -> None:
        self.rounds = FEW if soak_scale == 1 else MANY
        self.inside = 0
        self.longest_s = 0.0

    def counts(self) -> dict[str, object]:
        """Half of the strikes, at least, must have hit a copy."""
        assert 2 * self.inside >= self.rounds, f"only {self.inside} of {self.rounds} hit inside a copy"
        return {"strikes": self.rounds, "inside a copy": self.inside}


@pytest.mark.parametrize("writes", [False, True], ids=["reader", "writer"])
def test_what_a_killed_client_held_is_free_within_a_second(node, writes, soak_scale, soak_report):
    node.start_crowd("reader", "writer")
    strikes = Strikes(soak_scale)
    before = []
    with NodePool(standalone_address=f"unix:{node.path}") as pool:
        for number in range(strikes.rounds):
            victim = node.start_worker(writes=writes, own=writes).ready()
            victim.wait_for_turns(1)
            inside = victim.strike(signal.SIGKILL)
            strikes.inside += inside
            strikes.longest_s = max(strikes.longest_s, node.seconds_until_gone(victim))
            victim.end()
            if writes and inside:
                batch = victim.marks[Mark.BATCH]
                assert batch > victim.marks[Mark.ANSWERED]
                assert pool.exists(own_keys(victim.job.row, batch, BATCH)) == [False] * BATCH
            node.wait_for_crowd(1)
            if number == 1:
                before = node.processes()
        node.check_nothing_left(before)
    assert strikes.longest_s < WITHIN_S
    others = node.finish()
    name = f"{'writers' if writes else 'readers'} of a node killed"
    soak_report(name, **strikes.counts(), longest_until_free_ms=round(strikes.longest_s * 1e3), **others)


def test_a_reader_stopped_in_mid_copy_reads_right_bytes_when_it_goes_on(node, soak_scale, soak_report):
    node.start_crowd("reader", "writer", "writer")
    victim = node.start_worker(writes=False).ready()
    victim.wait_for_turns()
    strikes = Strikes(soak_scale)
    before = [*node.processes()]
    for _ in range(strikes.rounds):
        strikes.inside += victim.strike(signal.SIGSTOP)
        entry = node.entry_of(victim)
        assert entry is not None
        assert (entry["state"], *(entry[name] for name in FREE)) == ("stopped", 0, 0)
        # Meanwhile the writers store more than the pool has room for.
        node.wait_for_all(Mark.STORED, 2 * BATCH, role=True)
        victim.process.send_signal(signal.SIGCONT)
        victim.wait_for_turns()
    victim.finish()
    node.check_nothing_left(before)
    soak_report("readers of a node stopped", **strikes.counts(), **node.finish())


def test_what_a_stopped_writer_reserved_is_quarantined_until_it_goes_on_or_dies(node, soak_scale, soak_report):
    node.start_crowd("reader", "writer")
    strikes = Strikes(soak_scale)
    victim: WorkerProcess | None = None
    before = []
    for number in range(strikes.rounds):
        if victim is None:
            victim = node.start_worker(writes=True, own=True).ready()
            victim.wait_for_turns()
        if number == 1:
            before = node.processes()
        inside = victim.strike(signal.SIGSTOP)
        strikes.inside += inside
        entry = node.entry_of(victim)
        assert entry is not None
        assert entry["state"] == "stopped"
        assert entry["quarantined_bytes"] == entry["reserved_bytes"] <= QUOTA_BYTES
        if inside:
            assert entry["quarantined_bytes"] == BATCH * NBYTES
        node.wait_for_crowd(2)
        node.wait_for_all(Mark.STORED, role=True)
        after = node.entry_of(victim)
        assert after is not None
        assert after["quarantined_bytes"] == entry["quarantined_bytes"], "freed while it may still copy there"
        if number % 2:
            victim.process.send_signal(signal.SIGKILL)
            strikes.longest_s = max(strikes.longest_s, node.seconds_until_gone(victim))
            victim.end()
            victim = None
        else:
            victim.process.send_signal(signal.SIGCONT)
            victim.wait_for_turns()
            entry = node.entry_of(victim)
            assert entry is not None
            assert (entry["state"], entry["quarantined_bytes"]) == ("running", 0)
    if victim is not None:
        victim.finish()
    node.check_nothing_left(before)
    assert strikes.longest_s < WITHIN_S
    soak_report(
        "writers of a node stopped",
        **strikes.counts(),
        longest_until_free_ms=round(strikes.longest_s * 1e3),
        **node.finish(),
    )


def test_a_killed_server_is_misses_within_a_second_and_the_next_one_is_used(node, soak_scale, soak_report):
    node.start_crowd("reader", "writer", "writer")
    strikes, longest_return_s, before = Strikes(soak_scale), 0.0, []
    for number in range(strikes.rounds):
        strikes.inside += node.strike_server(signal.SIGKILL, number)
        begun = time.monotonic()
        for worker in node.crowd:
            worker.wait_for(lambda worker=worker: bool(worker.marks[Mark.ALONE]))
        strikes.longest_s = max(strikes.longest_s, time.monotonic() - begun)
        node.wait_for_all(Mark.NO_SERVER, role=True)
        assert node.server.process.wait(DEADLINE_S) == -signal.SIGKILL
        longest_return_s = max(longest_return_s, next_server(node))
        if number == 1:
            before = node.processes()
    node.check_nothing_left(before)
    assert strikes.longest_s < WITHIN_S
    times = {
        "longest until misses (ms)": round(strikes.longest_s * 1e3),
        "longest until hits again (ms)": round(longest_return_s * 1e3),
    }
    soak_report("servers killed", **strikes.counts(), **times, **node.finish())


def test_a_server_restarted_under_load_is_used_again(node, soak_scale, soak_report):
    node.start_crowd("reader", "writer", "writer")
    strikes, longest_return_s, before = Strikes(soak_scale), 0.0, []
    for number in range(strikes.rounds):
        strikes.inside += node.strike_server(signal.SIGTERM, number)
        assert node.server.process.wait(DEADLINE_S) == 0, node.server.log.read_text()
        longest_return_s = max(longest_return_s, next_server(node))
        if number == 1:
            before = node.processes()
    node.check_nothing_left(before)
    assert "Traceback" not in node.server.log.read_text()
    times = {"longest until hits again (ms)": round(longest_return_s * 1e3)}
    soak_report("servers restarted under load", **strikes.counts(), **times, **node.finish())


def next_server(node: Stage) -> float:
    """Starts it; seconds until everyone uses it, once it listens."""
    node.start_server()
    begun = time.monotonic()
    node.wait_for_all(Mark.STORED, role=True)
    node.wait_for_all(Mark.HITS, role=False)
    return time.monotonic() - begun


def test_a_stopped_server_is_read_from_and_puts_fail_at_their_deadline(node, soak_scale, soak_report):
    node.start_crowd("reader", "writer", "writer")
    strikes = Strikes(soak_scale)
    before = node.processes()
    for number in range(strikes.rounds):
        strikes.inside += node.strike_server(signal.SIGSTOP, number)
        begun = time.monotonic()
        node.wait_for_all(Mark.NO_SERVER, role=True)
        strikes.longest_s = max(strikes.longest_s, time.monotonic() - begun)
        node.wait_for_all(Mark.HITS, BATCH, role=False)
        assert not any(worker.marks[Mark.ALONE] for worker in node.crowd)
        node.server.send(signal.SIGCONT)
        node.wait_for_all(Mark.STORED, role=True)
    assert strikes.longest_s < 2 * PUT_DEADLINE_S + ALLOWANCE_S
    wait_for(lambda: node.figures()["memory"]["quarantined_bytes"] == 0)
    node.check_nothing_left(before)
    longest = {"longest until puts fail (ms)": round(strikes.longest_s * 1e3)}
    soak_report("servers stopped", **strikes.counts(), **longest, **node.finish())
