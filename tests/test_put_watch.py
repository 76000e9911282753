"""Log lines about puts: the reason, the number of keys, who is in the way; one line a reason in ten seconds."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pool_client import open_pool

from sglang_umbp import put_watch
from sglang_umbp.put_watch import INTERVAL_S, PutWatch

KIB = 1024


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A pool whose watch has a clock that tests move."""

    def __init__(self, capacity_bytes: int, **settings) -> None:
        self.pool = open_pool(capacity_bytes, **settings)
        self.clock = Clock()
        self.pool._watch = PutWatch(self.pool.native, self.clock)
        self.memory = np.zeros(64 * KIB, np.uint8)
        self.pool.register_array(self.memory)

    def put(self, *keys: str, nbytes: int = KIB) -> list[bool]:
        return self.pool.put(keys, [self.memory.ctypes.data] * len(keys), [nbytes] * len(keys))


@pytest.fixture
def make():
    opened = []

    def open_watched(*args, **kwargs) -> Watched:
        opened.append(Watched(*args, **kwargs))
        return opened[-1]

    yield open_watched
    for watched in opened:
        watched.pool.close()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, put_watch.__name__)
    return lambda: [record.message for record in caplog.records]


def test_puts_that_succeed_log_nothing(make, lines):
    watched = make(4 * KIB)
    assert watched.put("a", "b") == [True, True]
    assert watched.put("a") == [True]
    assert lines() == []


def test_a_failed_put_says_its_reason_and_the_number_of_keys(make, lines):
    make(4 * KIB).put("a", "b", nbytes=5 * KIB)
    (line,) = lines()
    assert line == (
        "put failed: too_large: 2 keys since the last such line; the object is larger than the pool's capacity"
    )


def test_one_line_a_reason_in_ten_seconds_with_the_keys_of_all_of_them(make, lines):
    watched = make(4 * KIB)
    for key in "abc":
        watched.put(key, nbytes=5 * KIB)
    assert len(lines()) == 1
    watched.clock.now_s += INTERVAL_S
    watched.put("d", nbytes=5 * KIB)
    assert "too_large: 3 keys" in lines()[1]


def test_another_reason_has_a_line_of_its_own(make, lines):
    watched = make(4 * KIB)
    watched.put("a", nbytes=5 * KIB)
    watched.put("b")
    watched.put("b", nbytes=2 * KIB)
    assert [line.split(":")[1] for line in lines()] == [" too_large", " size_mismatch"]


def test_no_space_says_how_many_bytes_which_process_names(make, lines):
    watched = make(KIB, deadline_s=0.01, session_quota_bytes=KIB)
    watched.put("a")
    with watched.pool.pin(["a"]):
        assert watched.put("b") == [False]
    (line,) = lines()
    assert line.startswith("put failed: no_space: 1 keys")
    assert line.endswith(f"; 1024 bytes named by pid {os.getpid()}")


def test_a_full_index_is_warned_of_once(make, lines):
    watched = make(64 * KIB, index_entries=2)
    watched.put("a", "b")
    assert lines() == []
    watched.put("c")
    watched.put("d")
    (line,) = lines()
    assert "2 objects in index_entries=2, 2.0 KiB of 64.0 KiB used" in line
    assert "UMBP_DRAM_INDEX_ENTRIES" in line


def test_a_put_that_ends_beside_close_is_not_made_to_fail(make, lines):
    watched = make(4 * KIB)
    watch = watched.pool._watch
    watched.put("a", nbytes=5 * KIB)
    watched.pool.close()
    watch._seen = -1
    watch.after_put()


def test_lines_reach_standard_error_without_any_set_up():
    script = (
        "import numpy as np; from sglang_umbp import Pool\n"
        "with Pool(capacity_bytes='1MiB') as pool:\n"
        "    data = np.zeros(2 << 20, np.uint8); pool.register_array(data)\n"
        "    pool.put(['a'], [data.ctypes.data], [data.nbytes])\n"
    )
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert "too_large: 1 keys" in done.stderr
