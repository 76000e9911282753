"""The reading half of test_shared_reader, as a process of its own.

python -m shared_reader JSON: attaches to the pool whose descriptors it inherited, does what the job says,
and prints one JSON line when it is ready and one with its counts at the end.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from objects import Rows

from sglang_umbp import Pool, PoolSettings, _native
from sglang_umbp.identity import RAW_KEYS_IDENTITY
from sglang_umbp.layout import Namespace
from sglang_umbp.pool import native_config

COUNTERS = ("calls", "stop")
"""Words of the control page, which both processes map."""


class Control:
    """A page of counters that both processes see."""

    def __init__(self, fd: int) -> None:
        self._words = np.frombuffer(mmap.mmap(fd, mmap.PAGESIZE), dtype=np.uint64)

    def __getitem__(self, name: str) -> int:
        return int(self._words[COUNTERS.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        self._words[COUNTERS.index(name)] = value


def attach(memory: list[int], client: int, **settings: Any) -> Pool:
    """A pool that only reads what another process (or this one) owns."""
    pool = Pool(PoolSettings(**{"copy_threads": 1, **settings}))
    pool._open = _native.Pool.attach(native_config(pool.settings), memory, client)
    pool._open.raw_namespace = Namespace(pool._open, b"", ("",), [RAW_KEYS_IDENTITY])
    return pool


class Reader:
    def __init__(self, job: dict[str, Any]) -> None:
        self.pool = attach(job["memory"], job["client"], **job["settings"])
        self.control = Control(job["control"])
        self.keys: list[str] = job["keys"]
        self.batch: int = job["batch"]
        self.nbytes: int = job["nbytes"]
        self.rows = Rows(self.pool, self.batch, self.nbytes)
        self.space = self.pool.namespace("model", ["kv"])
        self.layout = self.pool.page_layout(
            self.space,
            "kv",
            rows=self.batch,
            bases=[self.rows.addresses[0], self.rows.addresses[0] + self.nbytes // 2],
            strides=[self.nbytes] * 2,
            sizes=[self.nbytes // 2] * 2,
            object_offsets=[0, self.nbytes // 2],
        )
        self.hits = 0
        self.random = random.Random(job["seed"])

    # Jobs ----------------------------------------------------------------------------------------

    def read_every_way(self) -> Iterator[dict[str, Any]]:
        """Whole objects, ranges, pages through a layout, sessions: until told to stop."""
        yield {}
        ways = (self.get_whole, self.get_ranges, self.get_pages, self.get_pinned)
        while not self.control["stop"]:
            self.control["calls"] += 1
            answers = self.random.choice(ways)(self.random.sample(self.keys, self.batch))
            self.hits += sum(map(bool, answers))
        yield {"hits": self.hits, "calls": self.control["calls"]}

    def copy_without_pause(self) -> Iterator[dict[str, Any]]:
        """The same big copy again and again; every byte of every success is checked."""
        yield {}
        while not self.control["stop"]:
            self.control["calls"] += 1
            answers = self.rows.get(self.keys)
            self.hits += sum(answers)
        yield {"hits": self.hits, "last": answers}

    def copy_pinned_without_pause(self) -> Iterator[dict[str, Any]]:
        """The same through one session."""
        session = self.pool.pin(self.keys)
        yield {"pinned": session.hits}
        while not self.control["stop"]:
            self.control["calls"] += 1
            answers = self.rows.read(session, self.keys)
            self.hits += sum(answers)
        session.close()
        yield {"hits": self.hits, "last": answers}

    def copy_blindly(self) -> Iterator[dict[str, Any]]:
        """Copies without looking at the bytes, so that a signal finds it copying; never ends by itself."""
        yield {}
        addresses, sizes = self.rows.addresses[: len(self.keys)], [self.nbytes] * len(self.keys)
        while True:
            self.control["calls"] += 1
            self.pool.get(self.keys, addresses, sizes)

    # Ways to read ------------------------------------------------------------------------------------

    def get_whole(self, keys: list[str]) -> list[bool]:
        return self.rows.get(keys)

    def get_ranges(self, keys: list[str]) -> list[bool]:
        half = self.nbytes // 2
        self.rows.wipe()
        answers = self.pool.get_ranges(
            keys,
            [[address + half, address] for address in self.rows.addresses[: len(keys)]],
            [[half, half]] * len(keys),
            [[half, 0]] * len(keys),
        )
        self.rows.check(keys, answers)
        return answers

    def get_pages(self, keys: list[str]) -> list[bool]:
        self.rows.wipe()
        answers = self.pool.get_pages(self.layout, keys, range(len(keys)))
        self.rows.check(keys, answers)
        return answers

    def get_pinned(self, keys: list[str]) -> list[bool]:
        firm = self.random.random() < 0.5
        with self.pool.pin(keys, namespace=self.space, firm=firm) as session:
            held = session.hits
            for _ in range(2):
                self.rows.wipe()
                answers = session.get_pages(self.layout, range(len(keys)))
                self.rows.check(keys, answers)
                assert answers == held, "a session lost what it held"
        return answers


def main(argv: list[str]) -> int:
    job = json.loads(argv[0])
    for report in getattr(Reader(job), job["do"])():
        print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
