"""KV-cache page pool for SGLang HiCache."""

from ._native import Session
from ._version import __version__
from .errors import (
    DeviceError,
    ForkedPoolError,
    InvalidBatchError,
    PoolClosedError,
    PoolMemoryError,
    RegionError,
    SettingsError,
    UmbpError,
    UnregisteredMemoryError,
    UnsupportedHostPoolError,
)
from .layout import Component, Namespace, PageLayout
from .node.node_pool import NodePool
from .open_pool import open_pool
from .pool import Pool
from .settings import PoolSettings
from .stats import DeviceStats, PhaseSplit, PoolStats
from .status import Status

__all__ = [
    "Component",
    "DeviceError",
    "DeviceStats",
    "ForkedPoolError",
    "InvalidBatchError",
    "Namespace",
    "NodePool",
    "PageLayout",
    "PhaseSplit",
    "Pool",
    "PoolClosedError",
    "PoolMemoryError",
    "PoolSettings",
    "PoolStats",
    "RegionError",
    "Session",
    "SettingsError",
    "Status",
    "UmbpError",
    "UnregisteredMemoryError",
    "UnsupportedHostPoolError",
    "__version__",
    "open_pool",
]
