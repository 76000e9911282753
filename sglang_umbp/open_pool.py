"""The one place that decides which pool a process gets: its own, or the one of its machine's node server."""

from __future__ import annotations

from .node.node_pool import NodePool
from .pool import Pool
from .settings import PoolSettings


def is_node(settings: PoolSettings, *, local_ranks: int = 1) -> bool:
    """Whether these settings mean the node server's pool.

    local_ranks: processes of one model on this machine that look for the same pages.
    """
    if settings.mode != "auto":
        return settings.mode == "node"
    return bool(settings.standalone_address) or local_ranks > 1


def make_pool(settings: PoolSettings, *, local_ranks: int = 1, label: str = "") -> Pool:
    """The pool that the settings mean, not opened yet. label: names this process in `stat`, such as "tp3"."""
    return NodePool(settings, label=label) if is_node(settings, local_ranks=local_ranks) else Pool(settings)


def open_pool(settings: PoolSettings | None = None, *, local_ranks: int = 1, label: str = "") -> Pool:
    """The same, opened; close it, or use it as a context manager. settings: default from the environment.

    A node pool opens although no server can be reached: it then runs on as misses and attaches as soon as there is
    one. Raises SettingsError, PoolMemoryError (an embedded pool).
    """
    return make_pool(settings or PoolSettings.from_env(), local_ranks=local_ranks, label=label).open()
