"""What is known of SGLang's host pool classes: where each keeps its bytes, and how to ask for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedHostPoolError

BY_POINTERS = "pointers"
"""The pool's own list of pointers and sizes, made for storage backends without a copy."""
BY_VIEW = "view"
"""The pool's view of one page; where it gives no pointers."""
BY_ROW = "row"
"""Row r of each buffer is a fragment of page r; where the pool gives neither, or not all of its bytes."""
BY_ENVELOPE = "envelope"
"""Row r of an arena in which pages move: rows are translated at each call."""


@dataclass(frozen=True)
class HostPoolKind:
    """A class of host pool. buffer: the attribute that holds its pages (a tensor, or several). doors: by layout."""

    name: str
    buffer: str
    doors: dict[str, str]
    replicable: bool = False
    """Whether every tensor-parallel rank holds the same bytes, if the model's pools are replicated."""
    geometry: tuple[str, ...] = ()
    """Attributes that change what the bytes of a page mean, or their order, and not the sizes of its fragments."""


def _doors(by_view: str = "", by_row: str = "", by_pointers: str = "page_first page_first_direct") -> dict[str, str]:
    doors = dict.fromkeys(by_pointers.split(), BY_POINTERS)
    return doors | dict.fromkeys(by_view.split(), BY_VIEW) | dict.fromkeys(by_row.split(), BY_ROW)


_POOL_HOST = "sglang.srt.mem_cache.pool_host."
_POOLS = "sglang.srt.mem_cache.memory_pool_host."
_THREE = "layer_first page_first page_first_direct"
_MHA = _doors(by_pointers=_THREE + " page_head", by_row="page_unified")
_HEADS = ("head_dim", "v_head_dim", "head_group_num")
_PAGED = _doors(by_pointers=_THREE)

LOGICAL_ANCHOR = _POOLS + "LogicalHostPool"
"""Hands out indices that other pools use; holds no bytes."""

KINDS = {
    _POOL_HOST + "mha.MHATokenToKVPoolHost": HostPoolKind("mha", "kv_buffer", _MHA, geometry=_HEADS),
    _POOL_HOST + "mha.AsymmetricMHATokenToKVPoolHost": HostPoolKind(
        "mha_asymmetric", "kv_buffer", _doors(), geometry=_HEADS
    ),
    _POOL_HOST + "mha.MHATokenToKOnlyPoolHost": HostPoolKind(
        "mha_keys", "k_buffer", _doors("layer_first"), geometry=("head_dim",)
    ),
    _POOL_HOST + "mla.MLATokenToKVPoolHost": HostPoolKind(
        "mla",
        "kv_buffer",
        _doors(by_pointers=_THREE, by_row="page_unified"),
        replicable=True,
        geometry=("kv_lora_rank", "qk_rope_head_dim", "dsa_kv_cache_store_fp8"),
    ),
    _POOL_HOST + "dsa.DSAIndexerPoolHost": HostPoolKind(
        "dsa_indexer", "index_k_with_scale_buffer", _doors("layer_first"), replicable=True
    ),
    _POOLS + "DeepSeekV4PagedHostPool": HostPoolKind("deepseek_v4", "kv_buffer", _PAGED, replicable=True),
    _POOLS + "DeepSeekV4StateHostPool": HostPoolKind("deepseek_v4_state", "kv_buffer", _PAGED, replicable=True),
    _POOL_HOST + "qsa.QSAIndexerPoolHost": HostPoolKind("qsa_indexer", "kv_buffer", _PAGED),
    # Its pointers leave registered side states out; its list of buffers has them.
    _POOL_HOST + "mamba.MambaPoolHost": HostPoolKind(
        "mamba", "kv_buffer", _doors(by_pointers="", by_row="page_first page_first_direct")
    ),
    _POOL_HOST + "minimax_m3_nvfp4.MiniMaxM3Nvfp4IndexKPoolHost": HostPoolKind(
        "nvfp4_keys", "kv_buffer", _doors("layer_first")
    ),
    _POOL_HOST + "minimax_m3_nvfp4.MiniMaxM3Nvfp4MainKVPoolHost": HostPoolKind(
        "nvfp4", "kv_buffer", _doors("layer_first")
    ),
    _POOL_HOST + "unified.UnifiedPageEnvelopeHostPool": HostPoolKind(
        "page_envelope", "", dict.fromkeys(_THREE.split(), BY_ENVELOPE)
    ),
}
"""By the full name of the class. A subclass may keep its bytes elsewhere: it is another kind."""


def class_name(host_pool: Any) -> str:
    """The full name of the object's own class."""
    kind = type(host_pool)
    return f"{kind.__module__}.{kind.__qualname__}"


def kind_of(host_pool: Any, name: str) -> HostPoolKind:
    """What is known of this pool. Raises UnsupportedHostPoolError: class or layout unknown."""
    kind = KINDS.get(class_name(host_pool))
    if kind is None:
        raise UnsupportedHostPoolError(
            f"host pool {name!r}: class {class_name(host_pool)} (--hicache-mem-layout "
            f"{getattr(host_pool, 'layout', 'unknown')}) is not known to this version; "
            f"known: {', '.join(sorted(known.rpartition('.')[2] for known in KINDS))}"
        )
    if host_pool.layout not in kind.doors:
        raise refusal(host_pool, name, f"its layout is not supported; supported: {', '.join(kind.doors)}")
    return kind


def refusal(host_pool: Any, name: str, why: str) -> UnsupportedHostPoolError:
    """The error for a pool that is known and still cannot be stored."""
    return UnsupportedHostPoolError(
        f"host pool {name!r} ({type(host_pool).__qualname__}, --hicache-mem-layout {host_pool.layout}): {why}"
    )
