"""The node server, spoken to message by message: puts, quotas, connections, the life of its clients."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from node_rig import NBYTES, Client, Talker, groups, running, settings_for, short_directory, statuses
from objects import names
from shared_reader import attach as attach_pool
from waiting import DEADLINE_S, Background, wait_until

from sglang_umbp import NodePool, PoolSettings, SettingsError, Status, _native
from sglang_umbp.errors import NodeServerError, PoolMemoryError, RefusedError
from sglang_umbp.node import connection, node_client, protocol, stat_report, stat_view
from sglang_umbp.node.attachment import Attachment
from sglang_umbp.node.channel import Channel, ConnectionEndedError
from sglang_umbp.node.client_connection import ClientConnection
from sglang_umbp.node.connection import STRANGER_S
from sglang_umbp.node.protocol import ErrorCode
from sglang_umbp.node.server import NodeServer
from sglang_umbp.node.server_settings import server_sizes
from sglang_umbp.node.stat_report import MAX_REPORT_BYTES

FREED_WITHIN_S = 1.0
TESTS = Path(__file__).parent


class Node:
    """A running server and its clients."""

    def __init__(self, stack: ExitStack, path: Path, server: NodeServer) -> None:
        self.stack = stack
        self.path = path
        self.server = server

    def client(self, **options: Any) -> Client:
        return self.stack.enter_context(Client(self.path, **options))

    def talker(self, **options: Any) -> Talker:
        return self.stack.enter_context(Talker(self.path, **options))

    def process(self, **job: Any) -> Process:
        process = Process({"path": str(self.path), **job})
        self.stack.callback(process.end)
        return process

    def figures(self) -> dict[str, Any]:
        return json.loads(self.server.service.report(True))

    @property
    def memory(self) -> dict[str, int]:
        return self.figures()["memory"]


class Process:
    """A client in a process of its own."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "node_rig", json.dumps(job)],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, "the client ended before it was ready"
        self.ready = json.loads(line)

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait(DEADLINE_S)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@pytest.fixture
def make_node() -> Iterator[Callable[..., Node]]:
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory())

        def make(**settings: Any) -> Node:
            path = directory / "node.sock"
            server = stack.enter_context(running(settings_for(path, **settings)))
            return Node(stack, path, server)

        yield make


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """Expects an Error with this code."""
    with pytest.raises(RefusedError) as raised:
        yield
    assert raised.value.code == code, str(raised.value)


# --- puts ----------------------------------------------------------------------------------------


def test_what_one_client_puts_another_reads(node):
    one, two = node.client(), node.client()
    keys = names("page", 8)
    assert one.put(keys) == [Status.OK] * 8
    assert two.get(keys) == [True] * 8


def test_what_is_there_is_over_in_one_message(node):
    one, two = node.client(), node.client()
    keys = names("page", 4)
    one.put(keys)
    places = two.allocate([*keys, "page0"])
    assert statuses(places) == [Status.EXISTS] * 5


def test_a_full_pool_evicts_for_a_client_and_a_removed_object_is_gone(node):
    client = node.client()
    for batch in range(4):
        assert client.put(names(f"batch{batch}-", 16)) == [Status.OK] * 16
    assert client.remove(["batch3-0", "batch0-0", "batch3-1"]) == [True, False, True]
    assert client.get(["batch3-0", "batch3-2"]) == [False, True]
    assert client.call(protocol.Clear()) == protocol.Done()
    assert node.memory["objects"] == 0


def test_a_put_waits_for_the_same_key_of_another_client_and_finds_it_there(node):
    one, two = node.client(), node.client()
    places = one.allocate(["key"], 1)
    other = Background(lambda: two.put(["key", "mine"], deadline_s=30))
    one.copy(["key"], places)
    assert statuses(one.call(protocol.Commit(batch=1, round=places.round, deadline_s=1.0))) == [Status.OK]
    assert other.result() == [Status.EXISTS, Status.OK]


def test_a_put_whose_neighbour_gave_up_puts_that_key_itself(node):
    one, two = node.client(), node.client()
    one.allocate(["key"], 1)
    first = two.allocate(["mine", "key"], 1)
    assert np.frombuffer(first.picks, "<u4").tolist() == [0]
    two.copy(["mine", "key"], first)
    committed = Background(lambda: two.call(protocol.Commit(batch=1, round=first.round, deadline_s=30.0)))
    assert one.call(protocol.Abandon(batch=1)) == protocol.Done()
    second = committed.result()
    assert not second.over
    assert np.frombuffer(second.picks, "<u4").tolist() == [1]
    two.copy(["mine", "key"], second)
    assert statuses(two.call(protocol.Commit(batch=1, round=second.round, deadline_s=1.0))) == [Status.OK] * 2
    assert one.get(["mine", "key"]) == [True, True]


def test_two_crossing_puts_do_not_wait_for_each_other(node):
    one, two = node.client(), node.client()
    begun = [one.allocate(["a", "b"], 1), two.allocate(["c", "d", "a"], 1)]
    crossing = one.allocate(["c", "e"], 2)
    for client, keys, batch, places in ((one, ["c", "e"], 2, crossing), (two, ["c", "d", "a"], 1, begun[1])):
        client.copy(keys, places)
        client.send(protocol.Commit(batch=batch, round=places.round, deadline_s=20.0))
    helper = node.talker()
    helper.join(one.attached.client)
    one.copy(["a", "b"], begun[0])
    assert statuses(helper.call(protocol.Commit(batch=1, round=begun[0].round, deadline_s=1.0))) == [Status.OK] * 2
    assert statuses(one.receive()) == [Status.EXISTS, Status.OK]
    assert statuses(two.receive()) == [Status.OK, Status.OK, Status.EXISTS]


def test_nothing_of_a_put_is_visible_before_its_commit(node):
    client, other = node.client(), node.client()
    places = client.allocate(["key"], 1)
    client.copy(["key"], places)
    assert other.get(["key"]) == [False]
    client.call(protocol.Commit(batch=1, round=places.round, deadline_s=1.0))
    assert other.get(["key"]) == [True]


def test_a_commit_of_another_round_or_of_no_batch_is_refused_and_commits_nothing(node):
    client = node.client()
    places = client.allocate(["key"], 1)
    for batch, number in ((1, places.round + 1), (1, 0), (2, places.round)):
        with refused(ErrorCode.UNKNOWN):
            client.call(protocol.Commit(batch=batch, round=number, deadline_s=0.0))
    assert client.get(["key"]) == [False]
    client.copy(["key"], places)
    assert statuses(client.call(protocol.Commit(batch=1, round=places.round, deadline_s=0.0))) == [Status.OK]
    with refused(ErrorCode.UNKNOWN):
        client.call(protocol.Commit(batch=1, round=places.round, deadline_s=0.0))


def test_a_batch_number_is_good_for_one_put_even_if_it_was_only_abandoned(node):
    client = node.client()
    client.put(["a"])
    client.call(protocol.Abandon(batch=9))
    for used in (1, 9):
        with refused(ErrorCode.BAD_REQUEST):
            client.allocate(["b"], used)
    assert node.memory["used_bytes"] == NBYTES


def test_a_client_cannot_commit_or_abandon_what_another_reserved(node):
    one, two = node.client(), node.client()
    places = one.allocate(["key"], 1)
    with refused(ErrorCode.UNKNOWN):
        two.call(protocol.Commit(batch=1, round=places.round, deadline_s=0.0))
    two.call(protocol.Abandon(batch=1))
    one.copy(["key"], places)
    assert statuses(one.call(protocol.Commit(batch=1, round=places.round, deadline_s=0.0))) == [Status.OK]


def test_sizes_that_do_not_match_or_fit_are_refused_or_answered(node):
    client = node.client()
    sizes = np.array([0, 1 << 40, NBYTES], dtype="<u8").tobytes()
    places = client.allocate(["a", "b", "c"], sizes=sizes)
    assert np.frombuffer(places.picks, "<u4").tolist() == [2]
    for wrong in (sizes[:16], b"", sizes + sizes):
        with refused(ErrorCode.BAD_REQUEST):
            client.allocate(["a", "b", "c"], sizes=wrong)
    with refused(ErrorCode.UNKNOWN):
        client.allocate(["a"], groups=groups((77, 0, 1, 0)))
    with refused(ErrorCode.BAD_REQUEST):
        client.allocate(["a"], groups=groups((client.namespace, 1, 1, 0)))


def test_keys_that_the_groups_or_the_sizes_do_not_add_up_to_are_refused(node):
    client = node.client()
    group = (client.namespace, 0, 1, 0)
    wrong = [
        {"groups": b""},
        {"groups": groups(group)},
        {"groups": groups(group, (client.namespace, 0, 2, 0))},
        {"groups": groups((client.namespace, 0, (1 << 32) - 1, 0))},
        {"keys": b"a"},
        {"keys": b"abc"},
        {"key_sizes": np.array([1], dtype="<u4").tobytes()},
        {"key_sizes": np.array([1, (1 << 32) - 1], dtype="<u4").tobytes()},
        {"key_sizes": np.array([0, protocol.MAX_KEY_BYTES + 1], dtype="<u4").tobytes(), "keys": b"k" * 1_048_577},
    ]
    for values in wrong:
        with refused(ErrorCode.BAD_REQUEST):
            client.call(replace(client.allocation(["a", "b"]), **values))
    assert client.put(["a", "b"]) == [Status.OK] * 2


def test_one_message_puts_objects_of_several_components(node):
    client = node.client()
    space = client.call(protocol.Register(identities=[b"one", b"two"], titles=["c4", "c128"])).namespace
    both = groups((space, 0, 2, 0), (space, 1, 1, 7))
    places = client.allocate(["a", "b", "a"], 50, groups=both)
    assert np.frombuffer(places.picks, "<u4").tolist() == [0, 1, 2]
    client.copy(["a", "b", "a"], places)
    assert statuses(client.call(protocol.Commit(batch=50, round=places.round, deadline_s=1.0))) == [Status.OK] * 3
    assert [entry["objects"] for entry in node.figures()["components"]] == [2, 1]
    assert statuses(client.allocate(["a", "a"], groups=groups((space, 1, 2, 0)))) == [Status.EXISTS] * 2


def test_every_object_of_a_message_of_two_thousand_is_stored(make_node):
    node = make_node(objects=4096, nbytes=64)
    client = node.client(rows=2000, nbytes=64)
    keys = names("page", protocol.MAX_OBJECTS)
    assert client.put(keys) == [Status.OK] * 2000
    assert client.get(keys) == [True] * 2000


# --- reservations --------------------------------------------------------------------------------


def test_a_message_beyond_the_quota_is_refused_and_a_single_object_is_not(make_node):
    node = make_node(reservation_quota_bytes=2 * NBYTES)
    client = node.client()
    with refused(ErrorCode.QUOTA):
        client.allocate(names("a", 3))
    assert node.memory["reserved_bytes"] == 0
    assert client.put(names("a", 2)) == [Status.OK] * 2
    places = client.allocate(["large"], 50, sizes=np.array([5 * NBYTES], dtype="<u8").tobytes())
    assert not places.over


def test_what_exceeds_the_quota_beside_other_puts_waits_for_them_or_fails_at_its_deadline(make_node):
    node = make_node(reservation_quota_bytes=2 * NBYTES)
    client, helper = node.client(), node.talker()
    helper.join(client.attached.client)
    client.allocate(names("a", 2), 100)
    begin = time.monotonic()
    assert statuses(client.allocate(["b"], deadline_s=0.05)) == [Status.NO_SPACE]
    assert time.monotonic() - begin < DEADLINE_S / 2
    waiting = Background(lambda: client.put(["b"], deadline_s=30))
    helper.call(protocol.Abandon(batch=100))
    assert waiting.result() == [Status.OK]
    assert node.memory["reserved_bytes"] == 0


def test_one_client_at_its_quota_leaves_the_others_theirs(make_node):
    node = make_node(reservation_quota_bytes=2 * NBYTES)
    one, two = node.client(), node.client()
    one.allocate(names("a", 2))
    assert two.put(names("b", 2), deadline_s=0.0) == [Status.OK] * 2


def test_what_all_clients_reserve_is_bounded_and_a_refusal_says_who_is_stopped(make_node):
    node = make_node(reservation_quota_bytes=2 * NBYTES, reservations_total_bytes=4 * NBYTES)
    stopped = [node.process(reserved=names(f"kept{number}-", 2)) for number in range(2)]
    for process in stopped:
        process.signal(signal.SIGSTOP)
    wait_until(lambda: node.memory["quarantined_bytes"] == 4 * NBYTES)
    client = node.client()
    with refused(ErrorCode.QUOTA):
        client.put(["a"], deadline_s=0.05)
    with pytest.raises(RefusedError, match=f"quarantined by stopped processes.*{stopped[0].popen.pid}.*allowed: 16384"):
        client.put(["a"], deadline_s=0)
    assert node.figures()["settings"]["reservations_total_bytes"] == 4 * NBYTES
    waiting = Background(lambda: client.put(names("a", 2), deadline_s=50))
    stopped[0].signal(signal.SIGKILL)
    assert waiting.result() == [Status.OK] * 2
    assert node.memory["reserved_bytes"] == 2 * NBYTES


def test_an_object_larger_than_what_all_may_reserve_is_put_while_nobody_else_puts(make_node):
    node = make_node(reservation_quota_bytes=NBYTES, reservations_total_bytes=NBYTES)
    one, two = node.client(), node.client()
    places = one.allocate(["large"], 7, sizes=np.array([5 * NBYTES], dtype="<u8").tobytes())
    assert not places.over
    with refused(ErrorCode.QUOTA):
        two.allocate(["small"], deadline_s=0)
    one.call(protocol.Abandon(batch=7))
    assert two.put(["small"]) == [Status.OK]


@pytest.mark.parametrize(("quota", "total"), [(None, 8), (2, 8), (12, 12)])
def test_all_clients_may_reserve_half_of_the_pool_or_what_one_may(node, quota, total):
    quota_bytes = None if quota is None else quota * NBYTES
    settings = settings_for(node.path, reservation_quota_bytes=quota_bytes, reservations_total_bytes=None)
    assert server_sizes(settings).reservations_total_bytes == total * NBYTES


def test_who_asks_for_sizes_alone_has_the_server_look_at_no_client(node, monkeypatch):
    client = node.client()
    client.put(names("page", 3))
    looks = []
    monkeypatch.setattr(node.server.service.clients, "figures", lambda: looks.append(1) or {})
    figures = json.loads(client.call(protocol.Stat(clients=False)).body)
    assert figures["memory"]["objects"] == 3
    with NodePool(standalone_address=f"unix:{node.path}") as pool:
        assert pool.stats().objects == 3
        assert not looks
        assert len(client.stat()["clients"]) == 2
        assert looks


def test_a_call_may_wait_as_long_as_the_setting_allows():
    longest_s = protocol.MAX_DEADLINE_S
    assert PoolSettings(deadline_s=longest_s).deadline_s == longest_s
    with pytest.raises(SettingsError):
        PoolSettings(deadline_s=longest_s + 1)
    assert connection._deadline(longest_s) >= time.monotonic() + longest_s - DEADLINE_S


def test_stat_shows_what_is_reserved_and_by_whom(node):
    one, two = node.client(label="tp0"), node.client(label="tp1")
    two.allocate(names("a", 3), 1)
    shown = {client["label"]: client for client in node.talker().stat()["clients"]}
    assert shown["tp0"]["reserved_bytes"] == 0
    assert (shown["tp1"]["reserved_bytes"], shown["tp1"]["puts_under_way"]) == (3 * NBYTES, 1)
    assert shown["tp1"]["pid"] == os.getpid()
    assert one.attached.client != two.attached.client


def test_stat_counts_objects_and_bytes_of_each_component_under_its_title(node):
    client = node.client()
    space = client.call(protocol.Register(identities=[b"one", b"two"], titles=["c4", "c128"])).namespace
    again = node.client().call(protocol.Register(identities=[b"one", b"two"], titles=["", ""]))
    assert again.namespace == space
    for part, count in ((0, 3), (1, 1)):
        keys, batch = names("page", count), next(client.batches)
        places = client.allocate(keys, batch, groups=groups((space, part, count, 0)))
        client.copy(keys, places)
        client.call(protocol.Commit(batch=batch, round=places.round, deadline_s=1.0))
    assert node.figures()["components"] == [
        {"title": "c4", "objects": 3, "live_bytes": 3 * NBYTES},
        {"title": "c128", "objects": 1, "live_bytes": NBYTES},
    ]
    assert client.call(protocol.Remove(namespace=space, keys=[b"page0", b"page1"])).flags == b"\1\1"
    assert [entry["objects"] for entry in node.figures()["components"]] == [1]


def test_a_report_that_is_no_frame_is_cut_and_says_what_is_missing(node, monkeypatch):
    client, other = node.client(), node.client()
    titles = [f"part {number:04d} {'x' * 100}" for number in range(32)]
    identities = [title.encode() for title in titles]
    space = client.call(protocol.Register(identities=identities, titles=titles)).namespace
    for part in range(len(titles)):
        objects = 1 if part < 31 else 2
        for number in range(objects):
            batch = next(client.batches)
            places = client.allocate(
                [f"k{number}"], batch, groups=groups((space, part, 1, 0)), sizes=struct.pack("<Q", 64)
            )
            assert client.call(protocol.Commit(batch=batch, round=places.round, deadline_s=1.0)).over
    whole = other.stat()
    assert (len(whole["components"]), whole["left_out"]) == (32, {"components": 0, "clients": 0})
    assert whole["components"][0]["objects"] == 2, "the largest first"
    size = len(node.server.service.report(clients=True))
    monkeypatch.setattr(stat_report, "MAX_REPORT_BYTES", size - 1000)
    cut = other.stat()
    assert len(node.server.service.report(clients=True)) <= size - 1000
    assert (len(cut["components"]), cut["left_out"]) == (16, {"components": 16, "clients": 0})
    assert cut["components"][0] == whole["components"][0]
    assert "and 16 pools more" in stat_view.view(cut, None)
    monkeypatch.setattr(stat_report, "MAX_REPORT_BYTES", len(json.dumps({**cut, "components": []})) - 100)
    cut = other.stat()
    assert cut["left_out"] == {"components": 32, "clients": 1}
    assert "and 1 clients more" in stat_view.view(cut, None)
    assert MAX_REPORT_BYTES < protocol.MAX_FRAME_BYTES


def test_labels_and_titles_of_clients_bring_no_control_characters_to_a_terminal(node, caplog):
    caplog.set_level(logging.INFO)
    client = node.client(label="tp\x1b[2J\n\u202e")
    identity = b"raw\x1b"
    space = client.call(protocol.Register(identities=[identity], titles=["\x1b]0;x\x07"])).namespace
    batch = next(client.batches)
    places = client.allocate(["k"], batch, groups=groups((space, 0, 1, 0)), sizes=struct.pack("<Q", 64))
    assert client.call(protocol.Commit(batch=batch, round=places.round, deadline_s=1.0)).over
    lines = stat_view.view(client.stat(), None)
    assert all(line.isprintable() for line in lines), lines
    assert any("tp.[2J.." in line for line in lines)
    assert any(".]0;x." in line for line in lines)
    assert [client.label for client in node.server.service.clients.all()] == ["tp.[2J.."]


def test_every_figure_of_stat_is_documented(node):
    client = node.client()
    client.put(["key"])
    documented = set(re.findall(r"`(?:\w+\.)?(\w+)`", (TESTS.parent / "docs" / "node.md").read_text()))
    figures = node.figures()
    shown = {"version", "pid", "address", "uptime_s"} | set(figures["memory"]) | set(figures["reads"])
    shown |= set(figures["clients"][0]) | set(figures["components"][0]) - set(figures["puts"])
    assert shown - documented == set()


# --- connections ---------------------------------------------------------------------------------


def test_a_call_that_waits_holds_up_nobody_else(node):
    one, two = node.client(), node.client()
    one.allocate(names("held", 16), 1)
    waiting = Background(lambda: two.put(["more"], deadline_s=30))
    third = node.client()
    assert third.get(["nothing"]) == [False]
    for _ in range(10):
        third.call(protocol.Ping())
        assert third.stat()["memory"]["reserved_bytes"] >= 16 * NBYTES
    assert waiting.running
    one.call(protocol.Abandon(batch=1))
    assert waiting.result() == [Status.OK]


def test_the_end_of_a_connection_alone_frees_nothing_and_another_one_abandons(node):
    client = node.client()
    second = node.talker()
    second.join(client.attached.client)
    second.send(client.allocation(["key"], 1))
    assert not second.receive().over
    second.close()
    wait_until(lambda: node.figures()["clients"][0]["connections"] == 1)
    assert node.memory["reserved_bytes"] == NBYTES
    client.call(protocol.Abandon(batch=1))
    assert node.memory["reserved_bytes"] == 0 == node.memory["used_bytes"]


def test_an_answer_that_nobody_can_read_any_more_reserves_nothing(node):
    holder, client = node.client(), node.client()
    holder.allocate(names("held", 16), 1)
    gone = node.talker()
    gone.join(client.attached.client)
    gone.send(client.allocation(["key"], 1, deadline_s=30.0))
    wait_until(lambda: node.figures()["clients"][1]["puts_under_way"] == 1)
    gone.close()
    holder.call(protocol.Abandon(batch=1))
    wait_until(lambda: node.figures()["clients"][1]["puts_under_way"] == 0)
    wait_until(lambda: node.memory["used_bytes"] == 0)


def test_an_abandoned_put_that_still_waits_for_room_ends_at_once(node):
    holder, client, helper = node.client(), node.client(), node.talker()
    helper.join(client.attached.client)
    holder.allocate(names("held", 16), 1)
    waiting = Background(lambda: client.allocate(["key"], 5, deadline_s=50.0))
    wait_until(lambda: node.figures()["clients"][1]["puts_under_way"] == 1)
    begin = time.monotonic()
    helper.call(protocol.Abandon(batch=5))
    with refused(ErrorCode.UNKNOWN):
        waiting.result()
    assert time.monotonic() - begin < 10


def test_requests_before_hello_or_attach_are_refused(node):
    stranger = node.talker(greet=False)
    stranger.send(protocol.Ping())
    with pytest.raises(ConnectionEndedError):
        stranger.receive()
    greeted = node.talker()
    for request in (protocol.Clear(), protocol.Register(identities=[b"x"], titles=["x"]), protocol.Abandon(batch=1)):
        with refused(ErrorCode.NOT_ATTACHED):
            greeted.call(request)
    assert greeted.stat()["clients"] == []


def test_another_version_is_refused_with_both_versions(node):
    with pytest.raises(RefusedError, match=r"client has version 9\.9/1, this server .*both need the same") as raised:
        node.talker(version="9.9/1")
    assert raised.value.code == ErrorCode.VERSION
    assert f"(pid {os.getpid()}) {protocol.VERSION};" in str(raised.value)
    assert f"`kill {os.getpid()}` ends this server" in str(raised.value)
    assert "does not end by itself" in str(raised.value)


def test_another_version_learns_when_the_server_ends_by_itself_and_writes_no_lines_into_the_log(make_node, caplog):
    node = make_node(idle_exit_s=3600)
    with pytest.raises(RefusedError, match="ends by itself 3600 s after its last client"):
        node.talker(version="9\nall is well")
    assert "9.all is well" in caplog.text


def test_an_attach_without_the_nonce_of_its_welcome_is_refused(node):
    first, second = node.talker(), node.talker()
    first.nonce = second.nonce
    with refused(ErrorCode.NOT_ALLOWED):
        first.attach()
    assert node.figures()["clients"] == []


def test_a_connection_speaks_for_one_client_and_only_for_one_of_its_process(node):
    client = node.client()
    with refused(ErrorCode.BAD_REQUEST):
        client.call(protocol.Attach(nonce=client.nonce, label=""))
    with refused(ErrorCode.BAD_REQUEST):
        client.call(protocol.Join(client=client.attached.client))
    process = node.process()
    for number in (process.ready["client"], 999):
        with refused(ErrorCode.UNKNOWN):
            node.talker().call(protocol.Join(client=number))


def test_more_clients_than_allowed_are_refused_until_one_detaches(make_node):
    node = make_node(max_clients=2)
    one, two = node.talker(), node.talker()
    first = one.attach()
    two.attach()
    with refused(ErrorCode.LIMIT):
        node.talker().attach()
    assert two.call(protocol.Detach(client=first.client)) == protocol.Done()
    node.talker().attach()


def test_a_client_that_cannot_map_what_it_was_given_takes_no_place(make_node):
    node = make_node(max_clients=1)

    def no_room(_: protocol.Attached, __: list[int]) -> NoReturn:
        raise PoolMemoryError("no address space")

    for _ in range(3):
        with pytest.raises(PoolMemoryError):
            Attachment.make(node.path, "", no_room, time.monotonic() + DEADLINE_S)
        assert node.figures()["clients"] == []


def test_a_client_that_cannot_be_watched_takes_no_place(node, monkeypatch):
    def out_of_watches(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(node.server.service.clients, "_watch", out_of_watches)
    talker = node.talker()
    with refused(ErrorCode.FAILED):
        talker.attach()
    assert node.figures()["clients"] == []
    monkeypatch.undo()
    talker.attach()


def test_a_client_that_is_never_told_so_takes_no_place(node):
    talker = node.talker()
    talker.socket.shutdown(socket.SHUT_RD)
    talker.send(protocol.Attach(nonce=talker.nonce, label=""))
    wait_until(lambda: not node.server._threads)
    assert node.figures()["clients"] == []


def test_a_client_that_ends_its_connection_before_it_read_what_it_was_told_takes_no_place(make_node):
    node = make_node(max_clients=1)
    for _ in range(3):
        talker = node.talker()
        talker.send(protocol.Attach(nonce=talker.nonce, label=""))
        wait_until(lambda: len(node.figures()["clients"]) == 1)
        talker.close()
        wait_until(lambda: not node.figures()["clients"])
    node.client()


def test_a_client_that_was_heard_of_stays_when_its_connection_ends(node):
    """It may be reading, or copying, what it was given."""
    with Talker(node.path) as asks, Talker(node.path) as joined, Talker(node.path) as other:
        asks.attach()
        asks.call(protocol.Ping())
        other.join(joined.attach().client)
    wait_until(lambda: not node.server._threads)
    assert len(node.figures()["clients"]) == 2


def attach_native(_: protocol.Attached, descriptors: list[int]) -> _native.Pool:
    return attach_pool(descriptors[:4], descriptors[4]).native


def test_a_pool_confirms_its_attachment_before_it_reads(node):
    attachment = Attachment.make(node.path, "", attach_native, time.monotonic() + DEADLINE_S)
    (client,) = node.server.service.clients.all()
    assert client.heard_of
    attachment.detach()


def test_a_pool_that_cannot_confirm_its_attachment_takes_no_place_and_keeps_no_memory(node, monkeypatch):
    made = []

    def make_native(attached: protocol.Attached, descriptors: list[int]) -> _native.Pool:
        made.append(attach_native(attached, descriptors))
        return made[0]

    def no_answer(self: object, request: protocol.Message, *_: object) -> NoReturn:
        raise NodeServerError(f"no answer to {request.NAME}")

    ask = ClientConnection.ask
    monkeypatch.setattr(
        ClientConnection, "ask", lambda c, r, *more: (no_answer if isinstance(r, protocol.Ping) else ask)(c, r, *more)
    )
    with pytest.raises(NodeServerError, match="no answer to ping"):
        Attachment.make(node.path, "", make_native, time.monotonic() + DEADLINE_S)
    assert made[0].closed
    assert node.figures()["clients"] == []


def test_a_fault_while_one_client_is_attended_to_leaves_the_server_to_the_others(node, monkeypatch, caplog):
    """A client's end, and a connection that comes in."""
    clients, started = node.server.service.clients, []

    def fails(*_: object) -> NoReturn:
        raise ZeroDivisionError("a planted fault")

    monkeypatch.setattr(clients, "end_of", lambda descriptor: started.append(descriptor) or fails())
    process = node.process()
    process.end()
    wait_until(lambda: bool(started))
    for _ in range(3):  # each makes the server look for what there is to attend to
        node.talker()
    with monkeypatch.context() as planted:
        planted.setattr(node.server, "_start", fails)
        with pytest.raises(ConnectionEndedError):
            node.talker()
    node.client()
    assert len(started) == 1, "attended to again and again"
    assert caplog.text.count("ZeroDivisionError: a planted fault") == 2


def test_who_read_all_and_is_gone_was_told():
    """Of a message with descriptors: what is left to send after them may be nothing, and nobody there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)

    class Gone(socket.socket):
        def sendall(self, data: object, *_: object) -> NoReturn:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with theirs, Gone(fileno=ours.detach()) as gone:
        channel = Channel(gone, protocol.REQUESTS)
        channel.send(1, protocol.Done(), descriptors=[0])
        assert theirs.recv(1 << 16)
        with pytest.raises(ConnectionEndedError):
            channel.send(2, protocol.Done())


def test_a_connection_without_a_client_does_not_keep_an_idle_server():
    with short_directory() as directory, NodeServer(settings_for(directory / "node.sock", idle_exit_s=0.3)) as server:
        serving = Background(server.run)
        with Talker(directory / "node.sock"):
            serving.result(STRANGER_S / 2)


def test_keys_and_connections_of_one_client_are_bounded(node, monkeypatch):
    monkeypatch.setattr(node_client, "MAX_KEY_BYTES", 10)
    monkeypatch.setattr(node_client, "MAX_CONNECTIONS", 2)
    client = node.client()
    assert not client.allocate(["123456"]).over
    with refused(ErrorCode.LIMIT):
        client.allocate(["12345"])
    assert node.memory["reserved_bytes"] == NBYTES
    node.talker().join(client.attached.client)
    with refused(ErrorCode.LIMIT):
        node.talker().join(client.attached.client)


def test_detach_frees_what_the_client_reserved_and_named(node):
    client, helper = node.client(), node.talker()
    client.put(["pinned"])
    session = client.pool.pin(["pinned"])
    assert session.hits == [True]
    client.allocate(["key"], 7)
    named = {entry["client"]: entry["named_bytes"] for entry in node.figures()["clients"]}
    assert named[client.attached.client] == NBYTES
    helper.call(protocol.Detach(client=client.attached.client))
    assert node.figures()["clients"] == []
    assert node.memory["reserved_bytes"] == 0
    assert node.memory["used_bytes"] == NBYTES
    assert helper.call(protocol.Detach(client=client.attached.client)) == protocol.Done()


def test_what_clients_reported_stays_in_the_sums_when_they_are_gone(node):
    client = node.client()
    client.put(["a"])
    client.get(["a", "b"])
    client.pool.native.report_reads()
    client.call(protocol.Detach(client=client.attached.client))
    reads = node.figures()["reads"]
    assert (reads["gets"], reads["hits"], reads["hit_ratio"], reads["bytes_read"]) == (2, 1, 0.5, NBYTES)


def test_many_attachments_leave_nothing(node):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def attach_and_go() -> None:
        with Client(node.path) as client:
            client.put(["key"])
            client.call(protocol.Detach(client=client.attached.client))

    attach_and_go()
    wait_until(lambda: not node.server._threads)
    before = descriptors()
    for _ in range(30):
        attach_and_go()
    wait_until(lambda: not node.server._threads)
    assert descriptors() == before
    assert node.figures()["clients"] == []


# --- death and stop ------------------------------------------------------------------------------


def test_what_a_killed_client_reserved_and_pinned_is_free_within_a_second(node):
    process = node.process(stored=["pinned"], reserved=names("reserved", 3), pinned=["pinned"])
    assert process.ready["pinned"] == [True]
    assert node.memory["reserved_bytes"] == 3 * NBYTES
    process.signal(signal.SIGKILL)
    process.popen.wait(DEADLINE_S)
    begin = time.monotonic()
    wait_until(lambda: not node.figures()["clients"])
    assert time.monotonic() - begin < FREED_WITHIN_S
    assert node.memory["used_bytes"] == NBYTES
    assert node.client().put(names("whole", 16), deadline_s=0.0) == [Status.OK] * 16


def test_a_client_killed_while_it_waits_for_room_frees_what_it_had_got(node):
    holder = node.client()
    holder.allocate(names("held", 15), 1)
    process = node.process(allocate_long=names("wanted", 4))
    wait_until(lambda: node.memory["used_bytes"] == 16 * NBYTES)
    process.signal(signal.SIGKILL)
    process.popen.wait(DEADLINE_S)
    begin = time.monotonic()
    wait_until(lambda: node.memory["used_bytes"] == 15 * NBYTES)
    assert time.monotonic() - begin < FREED_WITHIN_S


def test_what_a_stopped_client_reserved_is_quarantined_until_it_continues_or_dies(node):
    process = node.process(reserved=names("reserved", 3), label="tp5")
    process.signal(signal.SIGSTOP)
    wait_until(lambda: node.figures()["clients"][0]["state"] == "stopped")
    (shown,) = node.figures()["clients"]
    assert (shown["label"], shown["quarantined_bytes"]) == ("tp5", 3 * NBYTES)
    client = node.client()
    answers = client.put(names("whole", 16), deadline_s=0.1)
    assert sum(map(bool, answers)) == 13, "what a stopped client may still be writing to is nobody else's"
    process.signal(signal.SIGCONT)
    wait_until(lambda: node.memory["quarantined_bytes"] == 0)
    assert node.memory["reserved_bytes"] == 3 * NBYTES
    process.signal(signal.SIGSTOP)
    wait_until(lambda: node.memory["quarantined_bytes"] != 0)
    process.signal(signal.SIGKILL)
    wait_until(lambda: node.memory["reserved_bytes"] == 0)
    assert client.put(names("other", 16), deadline_s=1.0) == [Status.OK] * 16


def test_a_server_that_stops_ends_calls_that_wait(make_node):
    with short_directory() as directory:
        settings = settings_for(directory / "node.sock")
        with running(settings):
            one = Client(settings.path)
            two = Client(settings.path)
            one.allocate(names("held", 16), 1)
            waiting = Background(lambda: two.put(["more"], deadline_s=50))
            wait_until(lambda: one.stat()["clients"][1]["puts_under_way"] == 1)
        with pytest.raises(NodeServerError):
            waiting.result()
        assert os.listdir(directory) == []
        one.close()
        two.close()
