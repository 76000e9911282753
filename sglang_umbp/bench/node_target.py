"""The node server's pool as a target: every pass over the same memory, mapped by this process."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack

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
        self._space = f"bench-{secrets.token_hex(8)}"

    def _open_pool(self, settings: PoolSettings) -> Pool:
        address = self._settings.address
        if not address:
            address = self._stack.enter_context(PrivateServer(settings)).address
        pool = NodePool(client_settings(settings, address), label="bench").open()
        try:
            wait_until_warm(pool)
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
