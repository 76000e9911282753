"""Settings of a pool: one frozen record, made from defaults, the environment, and a dict or arguments.

The names are those of SGLang's in-tree UMBP store and of its environment where they mean the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from .errors import SettingsError
from .setting_kinds import AutoBool, AutoWhole, Bool, Choice, Real, Size, UnixAddress, Whole
from .setting_values import DEFAULT, Given, Setting, Source, setting


@dataclass(frozen=True, init=False)
class PoolSettings:
    """Everything a pool can be told. Sizes are bytes, times seconds; None is 'auto'.

    ``about(name)`` tells what a setting means and what is allowed, ``source(name)`` where its value came from.
    """

    dram_capacity_bytes: int | None = setting(
        None,
        Size(64, 1 << 46, auto=True),
        "payload the pool holds at most; auto: a quarter of the memory that is available, or what the cgroup has left "
        "if that is less, but at least 256 MiB. The arena is larger by 1/32 and 64 bytes an index entry",
        *("UMBP_DRAM_CAPACITY", "UMBP_DRAM_CAPACITY_BYTES"),
        aliases=("capacity_bytes",),
    )
    mode: str = setting(
        "auto",
        Choice(("auto", "embedded", "node")),
        "embedded: memory of this process alone; node: one pool for all processes of this user on this machine, in a "
        "server; auto: node where standalone_address is given or several ranks of one model share the machine",
        "UMBP_MODE",
    )
    standalone_address: str = setting(
        "",
        UnixAddress(),
        "socket of the node server; empty: one of this user's own, the same for all processes",
        "UMBP_STANDALONE_ADDRESS",
    )
    standalone_auto_start: bool | None = setting(
        None,
        AutoBool(),
        "start a node server where none listens; it gets the pool's settings of the process that starts it, and "
        "outlives it. auto: only where no address is given",
        "UMBP_STANDALONE_AUTO_START",
    )
    copy_threads: int = setting(
        2,
        Whole(1, 64, "threads"),
        "threads that copy one call, its caller included; 1: no helpers",
        "UMBP_DRAM_COPY_THREADS",
    )
    nt_copy_min_bytes: int = setting(
        512,
        Size(0, 1 << 63),
        "copies of at least this size use non-temporal stores; no effect with copy_isa=plain, which has none",
        "UMBP_DRAM_NT_COPY_MIN_BYTES",
    )
    copy_isa: str = setting(
        "auto",
        Choice(("auto", "avx512", "avx2", "neon", "plain")),
        "instructions that copy; auto: the widest of this CPU",
        "UMBP_DRAM_COPY_ISA",
    )
    memory: str = setting(
        "anonymous",
        Choice(("anonymous", "memfd")),
        "private memory, or memfd for memory that another process can map",
        "UMBP_DRAM_MEMORY",
    )
    hugepages: bool = setting(
        True,
        Bool(),
        "ask for transparent hugepages",
        *("UMBP_DRAM_USE_HUGEPAGES", "UMBP_DRAM_HUGEPAGES"),
        aliases=("use_hugepages",),
    )
    prefault: bool = setting(False, Bool(), "touch the whole arena when the pool opens", "UMBP_DRAM_PREFAULT")
    prefault_in_background: bool = setting(
        False,
        Bool(),
        "with prefault: open at once and let a thread touch the arena",
        "UMBP_DRAM_PREFAULT_IN_BACKGROUND",
    )
    numa_node: int = setting(
        -1,
        Whole(-1, 1023),
        "NUMA node that the arena's pages come from first; -1: the kernel chooses",
        "UMBP_DRAM_NUMA_NODE",
    )
    index_entries: int | None = setting(
        None,
        AutoWhole(1, 1 << 31, "objects"),
        "objects the index can hold; auto: one for 16 KiB of capacity, at least 65,536",
        "UMBP_DRAM_INDEX_ENTRIES",
    )
    session_quota_bytes: int | None = setting(
        None,
        Size(1, 1 << 63, auto=True, zero=True),
        "what all sessions together may hold; auto: half of the capacity",
        "UMBP_SESSION_QUOTA_BYTES",
    )
    deadline_s: float = setting(
        1.0,
        Real(0, 3600, "seconds"),
        "after this a call gives up waiting for room, a reader slot, or another put of its key",
        "UMBP_DEADLINE_S",
    )
    strict_registration: bool = setting(
        True, Bool(), "refuse batches that name memory nobody registered", "UMBP_STRICT_REGISTRATION"
    )
    exists_refreshes: bool = setting(
        False, Bool(), "whether exists counts as a use in the eviction order", "UMBP_EXISTS_REFRESHES"
    )
    eviction_policy: str = setting(
        "lru",
        Choice(("lru", "depth_lru")),
        "eviction order; depth_lru: of pages used together the deepest of a prefix goes first",
        "UMBP_EVICTION_POLICY",
        aliases=("policy",),
    )
    high_watermark: float = setting(
        0.0,
        Real(0, 1, "of capacity"),
        "fraction of the capacity above which a put evicts down to low_watermark; 0: off",
        "UMBP_DRAM_HIGH_WM",
    )
    low_watermark: float = setting(
        0.0,
        Real(0, 1, "of capacity"),
        "see high_watermark, without which it is refused; above 0 and at most high_watermark",
        "UMBP_DRAM_LOW_WM",
    )
    device: str = setting(
        "auto",
        Choice(("auto", "none", "cuda", "hip")),
        "runtime of the devices whose memory batches may name; auto: the one that this process has loaded when memory "
        "is registered (or when the pool opens), if any; none: every address is host memory",
        "UMBP_DEVICE",
    )
    pin_arena: bool = setting(
        True,
        Bool(),
        "pin the arena once device memory is registered, in the background, so that devices copy from and to it "
        "themselves; off, or until then, every copy goes through pinned memory of staging_bytes",
        "UMBP_DEVICE_PIN_ARENA",
    )
    staging_bytes: int = setting(
        16 << 20,
        Size(64 << 10, 1 << 30),
        "pinned memory of one call that copies between a device and what of the arena is not pinned",
        "UMBP_DEVICE_STAGING_BYTES",
    )
    device_grid_cap: int | None = setting(
        None,
        AutoWhole(1, 1024, "blocks"),
        "thread blocks of 512 threads that a copy kernel takes at most; auto: as many as measured best. "
        "Fewer leave more of the device to the model, and copy more slowly",
        "UMBP_DEVICE_GRID_CAP",
    )
    device_dma_min_bytes: int | None = setting(
        None,
        Size(1, 1 << 62, auto=True),
        "mean bytes of a run from which the device's copy engines are used instead of a kernel; auto: as measured once "
        "for each kind of device",
        "UMBP_DEVICE_DMA_MIN_BYTES",
    )
    latency_histograms: bool = setting(
        False,
        Bool(),
        "count each call by how long it took; off, no clock is read",
        "UMBP_LATENCY_HISTOGRAMS",
    )
    ranged_call_debug: bool = setting(
        False,
        Bool(),
        "measure the phases of each call; a summary is printed when the pool closes",
        "UMBP_RANGED_CALL_DEBUG",
    )

    def __init__(self, **arguments: Any) -> None:
        """Defaults and these arguments; the environment is not read. Raises SettingsError."""
        self._fill(_from_names(arguments))

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> PoolSettings:
        """Defaults < UMBP_* variables (of the process unless given) < config < arguments.

        Values of config (a parsed JSON object) and arguments are written as in the environment, or have the type
        of the field. A variable that is overridden is not looked at. Raises SettingsError naming the variable or
        argument, its value and what is allowed.
        """
        given = {**_from_names(config or {}), **_from_names(arguments)}
        settings = cls.__new__(cls)
        settings._fill({**_from_environment(os.environ if environ is None else environ, skip=set(given)), **given})
        return settings

    def with_values(self, **arguments: Any) -> PoolSettings:
        """These settings with other values for some, which count as arguments. Raises SettingsError."""
        sources: dict[str, Source] = self.__dict__["_sources"]
        kept = {name: Given(getattr(self, name), source) for name, source in sources.items()}
        settings = type(self).__new__(type(self))
        settings._fill({**kept, **_from_names(arguments)})
        return settings

    def _fill(self, given: Mapping[str, Given]) -> None:
        sources = {name: value.source for name, value in given.items()}
        object.__setattr__(self, "_sources", sources)
        for item in fields(self):
            value = given[item.name].parsed(_about(item)) if item.name in given else item.default
            object.__setattr__(self, item.name, value)
        for name, allowed, holds in _RULES:
            if not holds(self):
                raise SettingsError(f"{self.named(name)}={getattr(self, name)!r}; allowed: {allowed}")

    def named(self, name: str) -> str:
        """The variable or argument that gave this setting its value, else its own name: for messages."""
        return self.source(name).name or name

    def source(self, name: str) -> Source:
        """Where the value of this setting came from."""
        sources: dict[str, Source] = self.__dict__["_sources"]
        return sources.get(name, DEFAULT)

    @property
    def capacity_bytes(self) -> int | None:
        """dram_capacity_bytes under its short name."""
        return self.dram_capacity_bytes

    @classmethod
    def about(cls, name: str) -> Setting:
        """Kind, meaning, variables and aliases of a setting."""
        return _about(_FIELDS[name])


_FIELDS: dict[str, Field[Any]] = {item.name: item for item in fields(PoolSettings)}


def _about(item: Field[Any]) -> Setting:
    about: Setting = item.metadata["setting"]
    return about


_NAMES = {alias: name for name, item in _FIELDS.items() for alias in (name, *_about(item).aliases)}


def _from_names(values: Mapping[str, Any]) -> dict[str, Given]:
    """Values by field. Raises SettingsError: an unknown name, or two names of one setting."""
    given: dict[str, Given] = {}
    for name, value in values.items():
        if name not in _NAMES:
            raise SettingsError(f"unknown setting {name!r}; allowed: {', '.join(sorted(_NAMES))}")
        _add(given, _NAMES[name], Given(value, Source("argument", name)))
    return given


def _from_environment(environ: Mapping[str, str], skip: set[str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for name, item in _FIELDS.items():
        for variable in _about(item).variables:
            if variable in environ and name not in skip:
                _add(given, name, Given(environ[variable], Source("environment", variable)))
    return given


def _add(given: dict[str, Given], name: str, new: Given) -> None:
    if name in given:
        raise SettingsError(
            f"{given[name].source.name} and {new.source.name} are the same setting; allowed: one of them"
        )
    given[name] = new


_RULES: tuple[tuple[str, str, Callable[[PoolSettings], bool]], ...] = (
    (
        "mode",
        "auto or node, together with standalone_address",
        lambda s: s.mode != "embedded" or not s.standalone_address,
    ),
    (
        "low_watermark",
        "only with a high_watermark, then above 0 and at most high_watermark",
        lambda s: 0 < s.low_watermark <= s.high_watermark if s.high_watermark else s.low_watermark == 0,
    ),
    (
        "prefault_in_background",
        "only with prefault=true",
        lambda s: s.prefault or not s.prefault_in_background,
    ),
    (
        "nt_copy_min_bytes",
        "not together with copy_isa='plain', which has no non-temporal stores",
        lambda s: s.copy_isa != "plain" or s.nt_copy_min_bytes == _FIELDS["nt_copy_min_bytes"].default,
    ),
)
