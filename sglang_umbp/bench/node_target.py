"""The node server's pool as a target: every pass over the same memory, mapped by this process."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter_ns

from .. import NodePool, Pool, PoolSettings
from ..geometry import PoolGeometry
from .node_server import PrivateServer, client_settings, wait_until_warm
from .targets import EmbeddedTarget, TargetFactory, TargetSettings


class NodeTarget(EmbeddedTarget):
    """A client of a node server, whose maps are populated: of one that it starts, or of one that is there."""

    def __init__(self, pools: Sequence[PoolGeometry], settings: TargetSettings) -> None:
        super().__init__(pools, settings)
        self._stack = ExitStack()
        # Of the pages of earlier runs nothing is found: what is put is new.
        self._space = settings.space or f"bench-{secrets.token_hex(8)}"
        self.attach_ns = 0
        """Nanoseconds of the attachment: greeting, descriptors, maps without their pages."""
        self.populate_ns = 0
        """Nanoseconds from then until the maps had their pages."""

    def _open_pool(self, settings: PoolSettings) -> Pool:
        address = self._settings.address
        if not address:
            address = self._stack.enter_context(PrivateServer(settings)).address
        pool = NodePool(client_settings(settings, address), label="bench").open()
        attached_ns = perf_counter_ns()
        try:
            wait_until_warm(pool)
            self.attach_ns, self.populate_ns = pool.attach_ns, perf_counter_ns() - attached_ns
        except BaseException:
            pool.close()
            raise
        return pool

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._stack.close()


TARGETS: dict[str, TargetFactory] = {"embedded": EmbeddedTarget, "node": NodeTarget}
