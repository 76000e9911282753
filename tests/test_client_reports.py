"""What an owner can tell of its clients and of what it stores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from objects import Rows, names
from shared_reader import attach

from sglang_umbp import Pool, PoolSettings, UmbpError

NBYTES = 4096
KEYS = names("page", 4)
DEADLINE_S = 60


@pytest.fixture
def owner() -> Iterator[Pool]:
    settings = {"capacity_bytes": 4 * NBYTES, "session_quota_bytes": 4 * NBYTES, "deadline_s": 0.2}
    with Pool(PoolSettings(memory="memfd", copy_threads=1, **settings)) as pool:
        rows = Rows(pool, 4, NBYTES)
        rows.put_all(KEYS)
        pool.unregister_memory(rows.addresses[0])
        yield pool


def test_what_a_client_holds_and_what_it_reports(owner):
    share = owner.native.share()
    own, other = owner.native.clients()
    assert (own["client_id"], own["pid"]) == (0, os.getpid())
    assert set(other.values()) == {share["client_id"], os.getpid(), 0}
    with attach(share["memory"], share["client"], session_quota_bytes=4 * NBYTES) as client:
        rows = Rows(client, 4, NBYTES)
        session = client.pin(KEYS[:3])
        rows.get([*KEYS[:2], "missing"])
        rows.read(session, KEYS[:1])
        client.exists([*KEYS, "missing"])
        report = owner.native.clients()[1]
        assert report["named_bytes"] == report["session_bytes"] == 3 * NBYTES
        assert report["gets"] == 0, "nothing is told before it is reported"
        client.native.report_reads()
        report = owner.native.clients()[1]
        told = {name: report[name] for name in ("get_calls", "gets", "hits", "bytes_read")}
        assert told == {"get_calls": 2, "gets": 4, "hits": 3, "bytes_read": 3 * NBYTES}
        assert (report["exists_keys"], report["exists_found"]) == (5, 4)
        session.close()
        assert owner.native.clients()[1]["named_bytes"] == 0
        client.native.lose()
        client.native.unmap()
        client.native.report_reads()
        assert client.native.clients() == []
    owner.native.remove_client(share["client_id"])
    assert len(owner.native.clients()) == 1


def test_objects_and_bytes_of_each_component(owner):
    rows = Rows(owner, 4, NBYTES)
    space = owner.namespace("model", ["kv", "indexer"])
    where = space.component("indexer")

    def totals() -> list[tuple[int, int]]:
        return [(objects, nbytes) for _, objects, nbytes in owner.native.component_totals()]

    assert totals() == [(4, 4 * NBYTES), (0, 0), (0, 0)]
    owner.put(["a", "b"], rows.addresses[:2], [NBYTES] * 2, namespace=where)
    assert totals() == [(2, 2 * NBYTES), (0, 0), (2, 2 * NBYTES)]
    owner.remove(["a"], namespace=space)
    assert totals() == [(2, 2 * NBYTES), (0, 0), (1, NBYTES)]
    owner.clear()
    assert totals() == [(0, 0)] * 3
    identities = [identity for identity, _, _ in owner.native.component_totals()]
    assert len(set(identities)) == 3
    assert b"indexer" in identities[2]
    share = owner.native.share()
    with attach(share["memory"], share["client"]) as client, pytest.raises(UmbpError, match="only reads"):
        client.native.component_totals()


def test_what_a_removed_client_named_is_free_at_once(owner):
    share = owner.native.share()
    with attach(share["memory"], share["client"], session_quota_bytes=4 * NBYTES) as client:
        session = client.pin(KEYS)
        owner.remove(KEYS)
        assert owner.stats().retired_bytes == 4 * NBYTES
        owner.native.remove_client(share["client_id"])
        assert owner.stats().used_bytes == 0
        session.close()


def test_a_client_can_be_bound_by_the_descriptor_of_its_process(owner):
    share = owner.native.share()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(process.pid)
    before = len(os.listdir("/proc/self/fd"))
    owner.native.bind_client(share["client_id"], process.pid, pidfd)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    os.close(pidfd)
    with attach(share["memory"], share["client"], session_quota_bytes=4 * NBYTES) as client:
        session = client.pin(KEYS)
        rows = Rows(owner, 4, NBYTES)
        assert owner.native.clients()[1]["pid"] == process.pid
        assert rows.put(["new"]) == [False]
        process.communicate(b"\n", timeout=DEADLINE_S)
        assert rows.put(names("new", 4)) == [True] * 4
        assert len(owner.native.clients()) == 1
        session.close()
