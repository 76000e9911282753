"""Settings that a client of a node server was given and that are the server's."""

from __future__ import annotations

from ..errors import SettingsError
from ..settings import PoolSettings
from ..settings_report import value_text
from .protocol import Attached
from .server_settings import POOL_SETTINGS

CLIENTS_TOO = ("session_quota_bytes", "deadline_s")
"""Of the server's settings those that a client may have another value of."""

SERVERS_OWN = tuple(name for name in POOL_SETTINGS if name not in CLIENTS_TOO)


def refuse_other_memory(settings: PoolSettings) -> None:
    """Raises SettingsError: memory that no other process can map was asked for."""
    if settings.memory != "memfd" and settings.source("memory").kind != "default":
        raise SettingsError(
            f"{settings.named('memory')}={settings.memory!r} has no effect on a node server's pool, which is always "
            f"memfd; allowed: memfd, or leave it out"
        )


def without_effect(settings: PoolSettings, attached: Attached, *, starts_servers: bool) -> list[str]:
    """What was given ("name=value") and has no effect beside the server that is attached.

    starts_servers: this client may have started it with these settings, so that only what is known to differ counts.
    """
    theirs = {"dram_capacity_bytes": attached.capacity_bytes, "index_entries": attached.index_entries}
    found = []
    for name in SERVERS_OWN:
        value = getattr(settings, name)
        differs = value != theirs[name] if name in theirs else not starts_servers
        if settings.source(name).kind != "default" and value is not None and differs:
            found.append(f"{settings.named(name)}={value_text(value)}")
    return found
