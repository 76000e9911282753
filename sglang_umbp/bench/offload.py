"""Background load: threads that put fresh requests all the time while others restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread

import numpy as np

from ..geometry import PoolGeometry
from .buffers import PageBuffers
from .options import RestoreOptions
from .restore_loop import count_failed
from .targets import RankPort, RestoreTarget
from .workload import Workload

REQUESTS_IN_FLIGHT = 4  # room a thread needs beside the held requests: the batch it puts and what it can evict
_FIRST_FRESH_REQUEST = 1 << 32

BuffersOf = Callable[[Sequence[PoolGeometry], int, str], PageBuffers]
"""Makes the buffers of one thread: pools, rows, arrangement."""


class OffloadLoad:
    """Putting threads for as long as the context lasts; no request comes twice."""

    def __init__(
        self,
        options: RestoreOptions,
        workload: Workload,
        target: RestoreTarget,
        buffers_of: BuffersOf = PageBuffers,
    ) -> None:
        self._buffers_of = buffers_of
        self._options = options
        self._workload = workload
        self._target = target
        self._stop = Event()
        self._threads: list[Thread] = []
        self._buffers: list[PageBuffers] = []
        self.put_pages = 0
        self.failed_pages = 0
        self.errors: list[Exception] = []

    def __enter__(self) -> OffloadLoad:
        counts = [[0, 0] for _ in range(self._options.offload_ranks)]
        self._counts = counts
        for rank in range(self._options.offload_ranks):
            buffers = self._buffers_of(self._options.pools, self._options.pages, self._options.arrangement)
            self._buffers.append(buffers)
            port = self._target.attach(buffers)
            self._threads.append(Thread(target=self._run, args=(rank, port, counts[rank])))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.put_pages = sum(done for done, _ in self._counts)
        self.failed_pages = sum(failed for _, failed in self._counts)
        if self.errors:
            raise self.errors[0]

    def _run(self, rank: int, port: RankPort, counts: list[int]) -> None:
        rows = np.arange(self._options.pages, dtype=np.int64)
        number = _FIRST_FRESH_REQUEST * (1 + rank)
        try:
            while not self._stop.is_set():
                hashes = self._workload.make_request(number).hashes
                results = [port.put(pool, hashes, rows) for pool in range(len(self._options.pools))]
                counts[0] += len(hashes) * len(results)
                counts[1] += count_failed(results)
                number += 1
        except Exception as error:  # handed to the thread that waits in __exit__
            self.errors.append(error)
