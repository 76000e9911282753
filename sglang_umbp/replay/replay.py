"""The replay driver: look a request up, restore its hits through a session, put the rest."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter_ns

from .. import Namespace, PageLayout, Pool, PoolSettings, Session
from ..bench.node_server import opened_node_pool
from ..bench.restore_loop import count_failed
from ..bench.targets import page_layouts
from ..geometry import PoolGeometry, page_nbytes, restore_steps
from .pages import BlockHashes, PageRows, Rows
from .trace import TraceRequest

MAX_ROWS = 512


@dataclass(frozen=True)
class ReplayOptions:
    """What to replay against: pools, pages of capacity (payload, no slack), layers of a group,
    bytes checked or not.
    """

    pools: tuple[PoolGeometry, ...]
    capacity_pages: int
    group_layers: int
    verify: bool
    seed: int
    policy: str = "lru"
    mode: str = "embedded"
    address: str = ""
    """Of a node server that is there; empty: of one of the replay's own."""

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page over all pools."""
        return page_nbytes(self.pools)

    @property
    def chunk_pages(self) -> int:
        """Pages of one put or restore call: what the rows hold, and never more than fits into the
        pool.
        """
        return min(MAX_ROWS, self.capacity_pages)


@dataclass
class ReplayCounts:
    """What happened, and how long the waits that a user would feel were."""

    requests: int = 0
    blocks: int = 0
    hit_blocks: int = 0
    failed_puts: int = 0
    failed_gets: int = 0
    verified_pages: int = 0
    mismatches: int = 0
    lookup_us: list[float] = field(default_factory=list)
    ttfl_us: list[float] = field(default_factory=list)

    @property
    def failures(self) -> int:
        """Everything that makes the command fail."""
        return self.failed_puts + self.failed_gets + self.mismatches


class Replay:
    """A pool of exactly the asked capacity under a trace. Use as a context manager: it opens and
    closes the pool.
    """

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._steps = restore_steps(options.pools, options.group_layers)
        self._first_steps = sum(step.group == self._steps[0].group for step in self._steps)
        self._hashes = BlockHashes()
        self._stack = ExitStack()
        self.counts = ReplayCounts()

    def __enter__(self) -> Replay:
        options = self._options
        capacity_nbytes = options.capacity_pages * options.page_nbytes
        self.rows = PageRows(options.pools, options.chunk_pages, options.seed)
        # One session at a time: it may hold all there is, or small pools would cut its hits.
        settings = PoolSettings.from_env(
            capacity_bytes=capacity_nbytes, session_quota_bytes=capacity_nbytes, eviction_policy=options.policy
        )
        self.policy = settings.eviction_policy
        self.pool = self._stack.enter_context(
            opened_node_pool(settings, options.address) if options.mode == "node" else Pool(settings)
        )
        try:
            self._attach(self.pool)
        except BaseException:
            self._stack.close()
            raise
        return self

    def _attach(self, pool: Pool) -> None:
        for address, nbytes in self.rows.buffers.regions():
            pool.register_memory(address, nbytes)
        self.namespace: Namespace = pool.namespace(
            f"replay-{secrets.token_hex(8)}", [each.name for each in self._options.pools]
        )
        self.layouts: list[PageLayout] = page_layouts(pool, self.namespace, self.rows.buffers)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, requests: Sequence[TraceRequest], progress: Callable[[int, str], None]) -> ReplayCounts:
        """Replays `requests` in order, as fast as it goes."""
        for number, request in enumerate(requests, start=1):
            self._request(request.block_ids)
            progress(number, f"{self.counts.hit_blocks} of {self.counts.blocks} blocks hit")
        if self._options.verify:
            self.counts.mismatches += self.rows.count_touched_guards()
        return self.counts

    def _request(self, blocks: Sequence[int]) -> None:
        hits = self._restore_hits(blocks, self._hashes.of(blocks))
        self.counts.requests += 1
        self.counts.blocks += len(blocks)
        self.counts.hit_blocks += hits
        self._put_rest(blocks[hits:], hits)

    def _restore_hits(self, blocks: Sequence[int], hashes: Sequence[str]) -> int:
        """Number of leading blocks that were found, pinned and restored."""
        start_ns = perf_counter_ns()
        found = self.pool.exists_prefix(hashes, namespace=self.namespace) if hashes else 0
        if found == 0:
            return 0
        with self.pool.pin(hashes[:found], namespace=self.namespace) as session:
            self.counts.lookup_us.append((perf_counter_ns() - start_ns) / 1e3)
            pinned = session.prefix
            for first in range(0, pinned, self._options.chunk_pages):
                self._restore_chunk(session, first, blocks[first : min(pinned, first + self._options.chunk_pages)])
        return pinned

    def _restore_chunk(self, session: Session, first: int, blocks: Sequence[int]) -> None:
        rows = self.rows.pick(len(blocks))
        if self._options.verify:
            self.rows.wipe(rows)
        self.counts.failed_gets += self._restore_groups(session, first, rows)
        if self._options.verify:
            self.counts.verified_pages += len(blocks) * len(self._options.pools)
            self.counts.mismatches += self.rows.count_wrong(rows, blocks)

    def _restore_groups(self, session: Session, first: int, rows: Rows) -> int:
        """Number of failed page reads. The time to the first layer group of all pools is noted."""
        results = []
        start_ns = perf_counter_ns()
        for number, step in enumerate(self._steps, start=1):
            results.append(session.get_pages(self.layouts[step.pool], rows, step.layers, first=first))
            if number == self._first_steps:
                self.counts.ttfl_us.append((perf_counter_ns() - start_ns) / 1e3)
        return count_failed(results)

    def _put_rest(self, blocks: Sequence[int], depth: int) -> None:
        for first in range(0, len(blocks), self._options.chunk_pages):
            chunk = blocks[first : first + self._options.chunk_pages]
            rows, hashes = self.rows.pick(len(chunk)), self._hashes.of(chunk)
            self.rows.fill(rows, chunk)
            results = [self.pool.put_pages(layout, hashes, rows, depth=depth + first) for layout in self.layouts]
            self.counts.failed_puts += count_failed(results)
