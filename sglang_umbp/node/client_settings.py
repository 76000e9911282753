"""Settings that a client of a node server was given and that are the server's."""

from __future__ import annotations

from dataclasses import fields

from ..settings import PoolSettings
from ..settings_report import value_text
from .protocol import Attached
from .server_settings import POOL_SETTINGS

CLIENTS_TOO = ("session_quota_bytes", "deadline_s")
"""Of the server's settings those that a client may have another value of."""

SERVERS_OWN = tuple(name for name in POOL_SETTINGS if name not in CLIENTS_TOO)


_DEFAULTS = {item.name: item.default for item in fields(PoolSettings)}


def without_effect(settings: PoolSettings, attached: Attached, *, starts_servers: bool) -> list[str]:
    """What was given ("name=value") and has no effect beside the server that is attached. A default is not given.

    starts_servers: this client may have started it with these settings, so that only what is known to differ counts.
    """
    theirs = {"dram_capacity_bytes": attached.capacity_bytes, "index_entries": attached.index_entries}
    found = []
    for name in SERVERS_OWN:
        value = getattr(settings, name)
        differs = value != theirs[name] if name in theirs else not starts_servers
        if value != _DEFAULTS[name] and differs:
            found.append(f"{settings.named(name)}={value_text(value)}")
    return found
