"""A process that reads or writes a node server's pool without end, checks every byte, and marks what it does.

python -m node_worker JSON: see Job. It ends with exit code 0 when Mark.STOP is set, and with another one as soon as a
byte is wrong, an answer cannot be, or a call raises what it must not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import objects
from node_marks import Inside, Mark, Marks
from objects import Rows, names

from sglang_umbp import NodePool, Status
from sglang_umbp.errors import NodeServerError, RefusedError
from sglang_umbp.node import keeper, remote_put

ALLOWANCE_S = 3.0
"""What a call may take beside its deadline: copies, and a machine that has other things to do."""

PAUSE_S = 0.005
RETRY_S = 0.05
"""Between attempts to attach, which are not doubled here: the next server is there all the sooner."""

PUT_MAY = {Status.OK, Status.EXISTS, Status.BUSY, Status.NO_SPACE, Status.NO_SERVER}


@dataclass(frozen=True)
class Job:
    """path: of the server. keys: how many there are to choose from; own: the writer's are nobody else's."""

    path: str
    marks: str
    row: int
    writes: bool
    keys: int
    batch: int
    nbytes: int
    deadline_s: float
    own: bool = False

    def as_text(self) -> str:
        return json.dumps(self.__dict__)


def own_keys(row: int, batch: int, count: int) -> list[str]:
    """Of one batch of a writer whose keys are nobody else's."""
    return names(f"own{row}-{batch}-", count)


class Worker:
    """Does one turn after the other."""

    def __init__(self, pool: NodePool, job: Job) -> None:
        self.job = job
        self.pool = pool
        self.marks = marks = Marks(Marks.table_at(Path(job.marks)), job.row)
        self.chance = random.Random(job.row)
        self.keys = names("shared", job.keys)
        self.rows = Rows(pool, job.batch + 1, job.nbytes)  # one row more, which no call may touch
        limit_s = job.deadline_s + ALLOWANCE_S
        self.remove = marks.timed(pool.remove, limit_s)
        get = marks.timed(marks.inside(pool.get, Inside.GET), limit_s)
        self.rows.pool = SimpleNamespace(get=get, put=marks.timed(pool.put, limit_s))
        remote_put._copy = marks.inside(remote_put._copy, Inside.PUT)
        marks[Mark.ATTACH_NS] = pool.attach_ns

    def run(self) -> None:
        if not self.job.own:
            for key in self.keys:
                objects.pattern(key, self.job.nbytes)  # kept from now on
        self.marks[Mark.READY] = 1
        while not self.marks[Mark.STOP]:
            with self._server_noted() as found:
                found += self._write() if self.job.writes else self._read()
            self.marks[Mark.TURNS] += 1
            time.sleep(PAUSE_S * (1 + 3 * self.marks[Mark.ALONE]))

    @contextlib.contextmanager
    def _server_noted(self) -> Iterator[list[bool]]:
        """Without a server from begin to end of a turn nothing may be found and nothing stored."""
        native, found = self.pool.native, []  # type: ignore[var-annotated]
        lost = native.lost
        yield found
        alone = lost and self.pool.native is native
        assert not (alone and any(found)), "found or stored without a server"
        self.marks[Mark.ALONE] = alone
        self.marks[Mark.HITS] += 0 if self.job.writes else sum(found)

    def _read(self) -> list[bool]:
        keys = self.chance.sample(self.keys, self.job.batch)
        if self.chance.random() < 0.5:
            return self.rows.get(keys)
        with self.pool.pin(keys, firm=self.chance.random() < 0.5) as session:
            marked = SimpleNamespace(get_ranges=self.marks.inside(session.get_ranges, Inside.GET))
            return self.rows.read(marked, keys)  # type: ignore[arg-type]

    def _write(self) -> list[bool]:
        number = self.marks[Mark.BATCH] + 1
        keys = own_keys(self.job.row, number, self.job.batch)
        if not self.job.own:
            keys = self.chance.sample(self.keys, self.job.batch)
        self.marks[Mark.BATCH] = number
        statuses = self.rows.put(keys, status=True)
        self.marks[Mark.ANSWERED] = number
        assert set(statuses) <= PUT_MAY, statuses
        self.marks[Mark.STORED] += statuses.count(Status.OK)
        self.marks[Mark.NO_SERVER] += statuses.count(Status.NO_SERVER)
        self.marks[Mark.BUSY] += statuses.count(Status.BUSY)
        read = self.rows.get(keys)
        if self.chance.random() < 0.1:
            with contextlib.suppress(NodeServerError, RefusedError):
                self.remove(keys[:2])
        return [*map(bool, statuses), *read]


def main(argv: list[str]) -> int:
    job = Job(**json.loads(argv[0]))
    objects.pattern = functools.lru_cache(job.keys + 2 * job.batch)(objects.pattern)  # the same keys all the time
    keeper.FIRST_PAUSE_S = keeper.LONGEST_PAUSE_S = RETRY_S
    settings = {"standalone_address": f"unix:{job.path}", "copy_threads": 1, "deadline_s": job.deadline_s}
    with NodePool(**settings, label=f"worker{job.row}") as pool:
        Worker(pool, job).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
