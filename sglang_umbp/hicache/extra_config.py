"""Settings of the HiCache store, from --hicache-storage-backend-extra-config and the environment. No SGLang here.

One JSON object carries the settings of the pool (``PoolSettings``), those of the connector (``ConnectorSettings``) and
some of SGLang's own, which are let through. Everything else is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from ..errors import SettingsError
from ..machine import available_bytes, cgroup_limit
from ..open_pool import is_node
from ..setting_kinds import Real, Text, Whole
from ..setting_values import DEFAULT, Given, Setting, Source, setting
from ..settings import PoolSettings
from ..sizing import Memory, default_capacity_bytes

# SGLang takes most of these out before a store sees them; not on every way to it. file_storage_path it puts in by
# itself, for any backend, if it was started with --file-storage-path.
SGLANG_KEYS = frozenset(
    (
        "prefetch_threshold prefetch_timeout_base prefetch_timeout_per_ki_token hicache_storage_pass_prefix_keys "
        "tp_lcm_size interface_v1 backend_name module_path class_name file_storage_path allocator"
    ).split()
)
# What chooses a pool for several machines, or a disk: refused by name, because a pool without would be a cache
# without the hits that are expected of it.
MODE_KEYS = {
    "master_address": "UMBP_MASTER_ADDRESS",
    "ssd_enabled": "UMBP_SSD_ENABLED",
}
_ALIGNMENT = 2 << 20
DYNAMIC_KEYS = ("backend_name", "module_path", "class_name")


@dataclass(frozen=True)
class ConnectorSettings:
    """What the connector itself can be told, beside the pool's settings."""

    model_revision: str = setting(
        "",
        Text(),
        "revision or fingerprint of the weights, a part of every page's identity; give one where the model is a local "
        "path, whose weights can change under the same name",
        "UMBP_MODEL_REVISION",
    )
    extra_backend_tag: str = setting(
        "",
        Text(),
        "a name of your choice, a part of every page's identity: pages of another tag are never found",
        "UMBP_EXTRA_BACKEND_TAG",
    )
    hold_lookups: int = setting(
        512,
        Whole(0, 65536, "look-ups"),
        "look-ups whose pages are held until SGLang loads them, the oldest let go of first; a request makes one for "
        "each host pool, or more if it is long; 0: none are held",
        "UMBP_HOLD_LOOKUPS",
    )
    hold_s: float = setting(
        10.0,
        Real(0.001, 3600, "seconds"),
        "after this the pages of a look-up that SGLang did not load are let go of",
        "UMBP_HOLD_S",
    )
    metrics_port: int = setting(
        0,
        Whole(0, 65000, "port"),
        "serve metrics on 127.0.0.1 at this port plus the number of the rank; 0: no port of our own. SGLang's "
        "--enable-metrics serves them without it",
        "UMBP_METRICS_PORT",
    )


@dataclass(frozen=True)
class StoreSettings:
    """Everything a store was told."""

    pool: PoolSettings
    connector: ConnectorSettings
    by_tensors: bool
    """Whether SGLang passes pages as tensors, one by one: the dynamic backend without interface_v1."""
    ranks: int = 1
    """Of this server on this machine."""

    @property
    def shared(self) -> bool:
        """Whether the pool is that of the machine's node server, and not one of this process."""
        return is_node(self.pool, local_ranks=self.ranks)


_FIELDS: dict[str, Field[Any]] = {item.name: item for item in fields(ConnectorSettings)}
_POOL_NAMES = frozenset(
    name for item in fields(PoolSettings) for name in (item.name, *PoolSettings.about(item.name).aliases)
)
_CAPACITY_NAMES = ("dram_capacity_bytes", *PoolSettings.about("dram_capacity_bytes").aliases)


def read_settings(
    extra_config: Mapping[str, Any] | None, environ: Mapping[str, str] | None = None, ranks: int = 1
) -> StoreSettings:
    """The settings of a store. extra_config wins over the environment (of the process unless given).

    ranks: processes of this server on this machine; if each opens a pool of its own, they share what a capacity of
    'auto' comes to.
    Raises SettingsError naming the key or variable, its value and what is allowed.
    """
    config = {} if extra_config is None else extra_config
    if not isinstance(config, Mapping):
        raise SettingsError(
            f"the storage backend's extra config is a {type(config).__name__} ({config!r:.80}); allowed: a JSON object"
        )
    environ = os.environ if environ is None else environ
    _refuse_other_modes(config, environ)
    known = _POOL_NAMES | _FIELDS.keys() | SGLANG_KEYS | MODE_KEYS.keys()
    unknown = sorted(name for name in config if name not in known)
    if unknown:
        raise SettingsError(
            f"unknown key {', '.join(map(repr, unknown))} in the storage backend's extra config; allowed: "
            f"{', '.join(sorted(_POOL_NAMES | _FIELDS.keys()))}; and of SGLang: {', '.join(sorted(SGLANG_KEYS))}"
        )
    for_pool = {name: value for name, value in config.items() if name in _POOL_NAMES}
    pool = PoolSettings.from_env(environ, for_pool)
    if pool.dram_capacity_bytes is None and ranks > 1 and not is_node(pool, local_ranks=ranks):
        for_pool = {name: value for name, value in for_pool.items() if name not in _CAPACITY_NAMES}
        pool = PoolSettings.from_env(environ, for_pool, dram_capacity_bytes=_share_of_capacity(ranks))
    dynamic = all(name in config for name in DYNAMIC_KEYS)
    if "allocator" in config and not dynamic:
        raise SettingsError(
            f"allocator={config['allocator']!r} has no effect with --hicache-storage-backend umbp: SGLang looks at it "
            f"with dynamic only; allowed: leave it out"
        )
    connector = _connector_settings(config, environ)
    if connector.hold_lookups == 0 and pool.session_quota_bytes is not None:
        raise _without_effect(pool.named("session_quota_bytes"))
    return StoreSettings(pool, connector, dynamic and not config.get("interface_v1"), ranks)


def _share_of_capacity(ranks: int) -> int:
    """What 'auto' comes to for one of so many pools: memory is taken as it is used, so that each would fit alone."""
    return default_capacity_bytes(Memory(available_bytes(), cgroup_limit())) // ranks // _ALIGNMENT * _ALIGNMENT


def about(name: str) -> Setting:
    """Kind, meaning and variables of a setting of the connector."""
    found: Setting = _FIELDS[name].metadata["setting"]
    return found


def _refuse_other_modes(config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    for name, variable in MODE_KEYS.items():
        given = name if name in config else variable
        value = config.get(name, environ.get(variable))
        if value is not None and str(value).strip().lower() not in ("", "0", "false", "no", "off"):
            raise SettingsError(
                f"{given}: this version has pools in the memory of one machine only; "
                f"allowed: leave {name} and {variable} out"
            )


def _connector_settings(config: Mapping[str, Any], environ: Mapping[str, str]) -> ConnectorSettings:
    given = {name: _given(name, config, environ) for name in _FIELDS}
    settings = ConnectorSettings(**{name: value.parsed(about(name)) for name, value in given.items()})  # type: ignore[arg-type]
    if settings.hold_lookups == 0 and given["hold_s"].source is not DEFAULT:
        raise _without_effect(given["hold_s"].source.name)
    return settings


def _without_effect(name: str) -> SettingsError:
    return SettingsError(f"{name} has no effect with hold_lookups=0; allowed: leave one out")


def _given(name: str, config: Mapping[str, Any], environ: Mapping[str, str]) -> Given:
    if name in config:
        return Given(config[name], Source("argument", name))
    for variable in about(name).variables:
        if variable in environ:
            return Given(environ[variable], Source("environment", variable))
    return Given(_FIELDS[name].default, DEFAULT)
