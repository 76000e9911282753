"""Settings of a node server: those of its pool, and its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..machine import available_bytes, cgroup_limit
from ..setting_kinds import Real, Size, Whole
from ..setting_values import Given, Setting, Source
from ..settings import PoolSettings
from ..sizing import Memory, Sizes, sizes_for
from .address import chosen_address, parse_address

QUOTA_SHARE, TOTAL_SHARE = 4, 2
"""A client may have a quarter of the capacity reserved, all of them half of it, unless told otherwise."""

POOL_SETTINGS = (
    *("dram_capacity_bytes", "index_entries", "session_quota_bytes", "deadline_s", "eviction_policy"),
    *("high_watermark", "low_watermark", "hugepages", "prefault", "prefault_in_background", "numa_node"),
)
"""Settings of a pool that have an effect in the server. The others belong to each client."""

OWN_SETTINGS: dict[str, tuple[object, Setting]] = {
    "reservation_quota_bytes": (
        None,
        Setting(
            Size(1, 1 << 63, auto=True, zero=True),
            "bytes that one client may have allocated and not committed, also while it is stopped; auto: a quarter of "
            "the capacity. One object alone may always",
            ("UMBP_RESERVATION_QUOTA_BYTES",),
        ),
    ),
    "reservations_total_bytes": (
        None,
        Setting(
            Size(1, 1 << 63, auto=True, zero=True),
            "bytes that all clients together may have allocated and not committed, those that are stopped included; "
            "auto: half of the capacity, but no less than the quota of one client",
            ("UMBP_RESERVATIONS_TOTAL_BYTES",),
        ),
    ),
    "max_clients": (
        256,
        Setting(Whole(1, 4096, "clients"), "clients that may be attached at once", ("UMBP_MAX_CLIENTS",)),
    ),
    "idle_exit_s": (
        0.0,
        Setting(
            Real(0, 1e9, "seconds"),
            "the server stops when no client has been attached for so long; 0: never",
            ("UMBP_IDLE_EXIT_S",),
        ),
    ),
}
"""Default and description of each of the server's own settings."""

ADDRESS_VARIABLE = "UMBP_STANDALONE_ADDRESS"


@dataclass(frozen=True)
class ServerSettings:
    """Everything a node server can be told."""

    path: Path
    """Of the socket."""
    pool: PoolSettings
    reservation_quota_bytes: int | None = None
    reservations_total_bytes: int | None = None
    max_clients: int = 256
    idle_exit_s: float = 0.0

    @property
    def address(self) -> str:
        """As clients name it."""
        return f"unix:{self.path}"


@dataclass(frozen=True)
class ServerSizes:
    """The sizes that may be 'auto', worked out."""

    pool: Sizes
    reservation_quota_bytes: int
    reservations_total_bytes: int
    memory: Memory


def server_settings(given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> ServerSettings:
    """Defaults < UMBP_* variables < given: a value by its setting's name, 'address' among them.

    The memory is always memfd, and prefaulted in the background unless something else is said. Raises SettingsError.
    """
    environ = os.environ if environ is None else environ
    unknown = given.keys() - {"address", *POOL_SETTINGS, *OWN_SETTINGS}
    if unknown:
        raise SettingsError(f"a node server has no setting {', '.join(sorted(unknown))}")
    pool = {name: given[name] for name in POOL_SETTINGS if name in given}
    return ServerSettings(
        path=_path(given, environ),
        pool=_prefaulted(PoolSettings.from_env(environ, pool, memory="memfd", device="none"), pool, environ),
        **{name: _own(name, given, environ) for name in OWN_SETTINGS},  # type: ignore[arg-type]
    )


def _path(given: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    if given.get("address"):
        return parse_address(given["address"], "address")
    if environ.get(ADDRESS_VARIABLE):
        return parse_address(environ[ADDRESS_VARIABLE], ADDRESS_VARIABLE)
    return parse_address(chosen_address(environ))


def _prefaulted(settings: PoolSettings, given: Mapping[str, Any], environ: Mapping[str, str]) -> PoolSettings:
    """The server touches the pages first, so that its cgroup pays for them and not the first client's."""
    if settings.source("prefault").kind != "default":
        return settings
    added = {"prefault": True}
    if settings.source("prefault_in_background").kind == "default":
        added["prefault_in_background"] = True
    return PoolSettings.from_env(environ, {**given, **added}, memory="memfd", device="none")


def _own(name: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> object:
    default, about = OWN_SETTINGS[name]
    if name in given:
        return Given(given[name], Source("argument", name)).parsed(about)
    for variable in about.variables:
        if variable in environ:
            return Given(environ[variable], Source("environment", variable)).parsed(about)
    return default


def server_sizes(settings: ServerSettings) -> ServerSizes:
    """The sizes that fit this machine. Raises PoolMemoryError."""
    memory = Memory(available_bytes(), cgroup_limit())
    sizes = sizes_for(settings.pool, memory)
    quota = settings.reservation_quota_bytes or max(1, sizes.capacity_bytes // QUOTA_SHARE)
    total = settings.reservations_total_bytes or max(quota, sizes.capacity_bytes // TOTAL_SHARE)
    return ServerSizes(sizes, quota, total, memory)
