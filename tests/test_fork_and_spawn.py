"""A forked child does not own its parent's pool; a spawned one opens its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from objects import Rows, names

from sglang_umbp import ForkedPoolError, Pool, PoolSettings

# Copy helpers are threads, of which Python 3.12 warns at every fork: this is the subject here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

OBJECT = 1 << 20
OBJECTS = 8
DEADLINE_S = 60
KEYS = names("page", 4)


def wait_for_end(pid: int) -> int:
    """The exit code of a child; one that hangs is killed."""
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], DEADLINE_S)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail(f"the child hung for {DEADLINE_S} s")
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_forked_child(action: Callable[[], None]) -> None:
    """Runs the action in a forked child, which must end by itself and without an exception."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert wait_for_end(pid) == 0


class Parent:
    """A pool with four objects, a session on them, and a namespace with a layout over one buffer."""

    def __init__(self, **settings: Any) -> None:
        values = {"capacity_bytes": OBJECTS * OBJECT, "copy_threads": 2, "deadline_s": 0.2, **settings}
        self.pool = Pool(PoolSettings(**values)).open()
        self.rows = Rows(self.pool, 4, OBJECT)
        assert self.rows.put(KEYS) == [True] * 4
        self.session = self.pool.pin(KEYS)
        self.space = self.pool.namespace("model", ["kv"])
        self.pages = np.zeros((4, 64), dtype=np.uint8)
        self.pool.register_array(self.pages)
        self.layout = self.pool.page_layout(
            self.space,
            "kv",
            rows=4,
            bases=[self.pages.ctypes.data],
            strides=[64],
            sizes=[64],
            object_offsets=[0],
        )
        assert self.pool.put_pages(self.layout, ["hash"], [0]) == [True]
        self.page_session = self.pool.pin(["hash"], namespace=self.space)

    def assert_unharmed(self) -> None:
        assert self.rows.get(KEYS) == [True] * 4
        assert self.rows.read(self.session, KEYS) == [True] * 4
        assert self.rows.put(names("new", 2)) == [True] * 2
        assert self.pool.stats().sessions == 2


@pytest.fixture
def parent() -> Iterator[Parent]:
    made = Parent()
    with made.pool:
        yield made


def one_object(parent: Parent) -> tuple[list[str], list[int], list[int]]:
    return KEYS[:1], parent.rows.addresses[:1], [OBJECT]


def one_range(parent: Parent) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    return [parent.rows.addresses[:1]], [[OBJECT]], [[0]]


CALLS: dict[str, Callable[[Parent], object]] = {
    "put": lambda p: p.pool.put(*one_object(p)),
    "get": lambda p: p.pool.get(*one_object(p)),
    "put_ranges": lambda p: p.pool.put_ranges(KEYS[:1], [OBJECT], *one_range(p)),
    "get_ranges": lambda p: p.pool.get_ranges(KEYS[:1], *one_range(p)),
    "put_pages": lambda p: p.pool.put_pages(p.layout, ["hash"], [0]),
    "put_components": lambda p: p.pool.put_components([(p.layout, ["hash"], [0])]),
    "get_pages": lambda p: p.pool.get_pages(p.layout, ["hash"], [0]),
    "get_components": lambda p: p.pool.get_components([(p.layout, ["hash"], [0])]),
    "exists": lambda p: p.pool.exists(KEYS),
    "exists_prefix": lambda p: p.pool.exists_prefix(KEYS),
    "pin": lambda p: p.pool.pin(KEYS),
    "remove": lambda p: p.pool.remove(KEYS),
    "clear": lambda p: p.pool.clear(),
    "flush": lambda p: p.pool.flush(),
    "stats": lambda p: p.pool.stats(),
    "locate": lambda p: p.pool.locate(KEYS),
    "namespace": lambda p: p.pool.namespace("another", ["kv"]),
    "register_memory": lambda p: p.pool.register_memory(p.rows.addresses[0], 4 * OBJECT),
    "register_array": lambda p: p.pool.register_array(np.zeros(64, dtype=np.uint8)),
    "unregister_memory": lambda p: p.pool.unregister_memory(p.rows.addresses[0]),
    "session.get_pages": lambda p: p.page_session.get_pages(p.layout, [0]),
    "session.get_components": lambda p: p.page_session.get_components([(p.layout, [0])]),
    "session.get_ranges": lambda p: p.session.get_ranges(*one_range(p)),
    "native.share": lambda p: p.pool.native.share(),
    "native.bind_client": lambda p: p.pool.native.bind_client(1, os.getpid()),
    "native.remove_client": lambda p: p.pool.native.remove_client(1),
}


def raises_forked(call: Callable[[Parent], object], parent: Parent) -> bool:
    try:
        call(parent)
    except ForkedPoolError:
        return True
    return False


def test_every_call_on_the_pool_or_a_session_raises_in_a_forked_child(parent):
    def in_child() -> None:
        silent = [name for name, call in CALLS.items() if not raises_forked(call, parent)]
        assert silent == []

    in_forked_child(in_child)
    parent.assert_unharmed()


def test_the_list_of_calls_above_is_complete():
    harmless = {"open", "close", "closed", "native", "page_layout"}
    public = {name for name in dir(Pool) if not name.startswith("_")}
    assert public - harmless <= CALLS.keys()


def test_empty_batches_raise_in_a_forked_child_as_well(parent):
    def in_child() -> None:
        for call in (
            lambda p: p.pool.get([], [], []),
            lambda p: p.pool.put([], [], []),
            lambda p: p.pool.exists([]),
            lambda p: p.pool.remove([]),
            lambda p: p.pool.pin([]),
        ):
            assert raises_forked(call, parent)

    in_forked_child(in_child)


def test_closing_in_a_forked_child_touches_nothing(parent):
    def in_child() -> None:
        parent.session.close()
        parent.session.close()
        with parent.page_session:
            pass
        parent.pool.close()
        with parent.pool:
            pass

    in_forked_child(in_child)
    parent.assert_unharmed()


def test_closing_with_call_debug_on_touches_nothing_either(capfd):
    parent = Parent(ranged_call_debug=True)
    with parent.pool:
        in_forked_child(parent.pool.close)
        parent.assert_unharmed()
    assert "Error" not in capfd.readouterr().err


@pytest.mark.parametrize("memory", ["anonymous", "memfd"])
@pytest.mark.parametrize("copy_threads", [1, 2, 4])
def test_garbage_collection_in_a_forked_child_touches_nothing(memory, copy_threads):
    parent = Parent(memory=memory, copy_threads=copy_threads)

    def in_child() -> None:
        parent.__dict__.clear()
        gc.collect()

    with parent.pool as pool:
        in_forked_child(in_child)
        parent.assert_unharmed()
    del pool


# --- whole interpreters ------------------------------------------------------------------------

SCRIPT = """
import os, sys, threading, time, warnings
import numpy as np
from sglang_umbp import Pool, PoolSettings

warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork with threads
pool = Pool(PoolSettings(capacity_bytes=1 << 20, session_quota_bytes=1 << 20, copy_threads=2)).open()
data = np.arange(1 << 20, dtype=np.uint8)
pool.register_array(data)
assert pool.put(["a"], [data.ctypes.data], [1 << 20]) == [True]
session = pool.pin(["a"])
{before_fork}
pid = os.fork()
if pid == 0:
    {in_child}
else:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    session.close()
    {after_child}
    assert pool.get(["{key}"], [data.ctypes.data], [1 << 20]) == [True]
    pool.close()
    sys.exit(code)
"""

WAIT_IN_A_PUT = """
answers = []
put = threading.Thread(target=lambda: answers.extend(pool.put(["b"], [data.ctypes.data], [1 << 20])))
put.start()
while pool.stats().owner_locks < 20:
    pass
"""


def run_script(*, in_child: str, before_fork: str = "", after_child: str = "", key: str = "a") -> None:
    script = SCRIPT.format(in_child=in_child, before_fork=before_fork, after_child=after_child, key=key)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "in_child",
    ["sys.exit(0)", "os._exit(0)", "pass", "del session, pool", "session.close(); pool.close()"],
)
def test_a_forked_child_ends_quietly_with_0_and_the_parent_goes_on(in_child):
    run_script(in_child=in_child)


def test_a_forked_child_ends_although_a_put_of_its_parent_waited_at_the_fork():
    run_script(
        in_child="os._exit(0 if pool.native else 1)",
        before_fork=WAIT_IN_A_PUT,
        after_child="put.join(); assert answers == [True]",
        key="b",
    )


def use_inherited(parent: Parent, answers: Any) -> None:
    answers.put([name for name, call in CALLS.items() if not raises_forked(call, parent)])
    parent.session.close()
    parent.pool.close()


def test_a_multiprocessing_child_by_fork_raises_and_ends_normally(parent):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=use_inherited, args=(parent, answers))
    child.start()
    assert answers.get() == []
    assert wait_for_process(child) == 0
    parent.assert_unharmed()


def use_own_pool(seed: int, answers: Any) -> None:
    with Pool(PoolSettings(capacity_bytes=OBJECTS * OBJECT, copy_threads=2)) as pool:
        rows = Rows(pool, 4, OBJECT)
        rows.put_all(names(f"{seed}-", 20))
        kept = names(f"{seed}-", 4, start=16)
        answers.put(rows.get(kept) + rows.read(pool.pin(kept), kept))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_open_pools_of_their_own(parent, method):
    """A pool that is made after the fork belongs to the child, whatever it inherited beside it."""
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    children = [context.Process(target=use_own_pool, args=(seed, answers)) for seed in range(2)]
    for child in children:
        child.start()
    assert [answers.get() for _ in children] == [[True] * 8] * 2
    assert [wait_for_process(child) for child in children] == [0, 0]
    parent.assert_unharmed()


def test_a_grandchild_does_not_own_the_pool_of_its_parent_or_grandparent(parent):
    def in_child() -> None:
        own = Parent()

        def in_grandchild() -> None:
            for inherited in (parent, own):
                assert raises_forked(CALLS["get"], inherited)
                inherited.session.close()
                inherited.pool.close()

        in_forked_child(in_grandchild)
        own.assert_unharmed()
        own.pool.close()

    in_forked_child(in_child)
    parent.assert_unharmed()


def wait_for_process(child: Any) -> int:
    child.join(DEADLINE_S)
    if child.exitcode is None:
        child.kill()
        pytest.fail(f"the child hung for {DEADLINE_S} s")
    return child.exitcode
