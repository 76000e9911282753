"""The identity of a host pool's pages: what must agree before one process may read what another stored."""

from __future__ import annotations

import hashlib
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SettingsError
from ..identity import encode_identity

if TYPE_CHECKING:
    import numpy as np
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    from .host_pages import HostPages

FORMAT = "1"
"""Raised with every change of what is stored, so that older pages are not found."""
PACKING_SWITCHES = (
    "SGLANG_DSV4_KV_LAYOUT",
    "SGLANG_DSV4_COMPRESSED_KV_LAYOUT",
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE",
    "SGLANG_OPT_USE_ONLINE_COMPRESS",
    "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP",
    "SGLANG_OPT_SM120_DIRECT_SWA_KV",
    "SGLANG_OPT_SM120_NVFP4_PHASE_LAYOUT",
    "SGLANG_HIP_DSV41_INDEX_K_PAGE8",
    "SGLANG_USE_AITER",
)
"""SGLang's environment variables under which packed pages of one size hold other bytes."""
WEIGHT_SETTINGS = ("revision", "dtype", "quantization", "modelopt_quant", "json_model_override_args")
"""SGLang's flags under which one checkpoint gives other keys and values."""


def pool_namespace_name(
    pages: HostPages,
    config: HiCacheStorageConfig,
    *,
    model_revision: str,
    tag: str,
    kv_format: str,
    weights: str = "",
) -> bytes:
    """The name of the namespace that holds these pages; its components are the names of ``pages.parts``.

    model_revision: the weights' revision or fingerprint, "" if unknown. tag: the operator's. kv_format, weights: see
    ``published_kv_format``, ``published_weights``. Raises SettingsError: SGLang gave no model name.
    """
    facts = pool_identity(pages, config, model_revision=model_revision, tag=tag, kv_format=kv_format, weights=weights)
    return encode_identity(*((fact, value.encode()) for fact, value in facts.items()))


def pool_identity(
    pages: HostPages,
    config: HiCacheStorageConfig,
    *,
    model_revision: str,
    tag: str,
    kv_format: str,
    weights: str = "",
) -> dict[str, str]:
    """What ``pool_namespace_name`` is made of, to be read by people. Raises SettingsError as it does."""
    if not config.model_name:
        raise SettingsError("SGLang gave no model name: start it with --served-model-name or --model-path")
    return {
        "format": FORMAT,
        "model": config.model_name,
        "revision": model_revision,
        "weights": weights,
        "tag": tag,
        "pool": pages.name,
        **page_fingerprint(pages, kv_format),
        **shard_coordinates(pages, config),
    }


def page_fingerprint(pages: HostPages, kv_format: str) -> dict[str, str]:
    """What the bytes of a page mean: kind, layout, element types, geometry, tokens, layers, sizes of fragments."""
    return {
        "kind": pages.kind,
        "layout": pages.layout,
        "dtype": pages.dtype,
        "geometry": pages.geometry,
        # Elements of 8 bits look alike in a host pool, whatever their format.
        "kv": kv_format if "uint8" in pages.dtype.split("+") else "",
        "page": str(pages.page_size),
        "layers": f"{pages.first_layer}+{pages.layer_count}",
        "sizes": "/".join(dict.fromkeys(_sizes(part.sizes) for part in pages.parts)),
        "page_format": pages.format_tag or "",
    }


def shard_coordinates(pages: HostPages, config: HiCacheStorageConfig) -> dict[str, str]:
    """Which part of the model the pages hold: one coordinate for each way in which ranks differ.

    A replicated pool has no tensor- or data-parallel coordinate: one copy serves those ranks. Pipeline stages hold
    other layers and context-parallel ranks other tokens, of replicated pools too. Heads named by their slice
    (``pages.by_head_slice``) have no tensor-parallel rank either: the slice is in the component's name.
    """
    facts = {"pp": f"{config.pp_rank}/{config.pp_size}"}
    if config.attn_cp_size > 1:
        facts["cp"] = f"{config.attn_cp_rank}/{config.attn_cp_size}"
    if config.dcp_size > 1:
        facts["dcp"] = f"{config.dcp_rank}/{config.dcp_size}"
    if not is_replicated(pages, config):
        facts["dp"] = str(config.dp_rank)
        if not pages.by_head_slice:
            facts["tp"] = f"{config.tp_rank}/{config.tp_size}"
    return facts


def is_replicated(pages: HostPages, config: HiCacheStorageConfig) -> bool:
    """Whether every tensor- and data-parallel rank holds the same bytes: SGLang lets one of them write."""
    return pages.replicable and config.is_mla_model


def published_kv_format() -> str:
    """How SGLang packs KV elements of 8 bits and fewer: host pools keep all of them as uint8, in pages of equal size.

    What it was told of the element type and the scales, what 8-bit floats are on this machine, and all that chooses
    between packed layouts: the device and SGLang's switches in the environment.
    """
    from sglang.kernels.ops.quantization.fp8_kernel import fp8_dtype
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_exec, get_model, get_spec

    facts = {
        "type": get_model().kv_cache_dtype,
        "draft": get_spec().speculative_draft_kv_cache_dtype,
        "fp8": str(fp8_dtype).removeprefix("torch."),
        "scales": _digest_of(get_model().quantization_param_path),
        "attention": get_exec().kernel.dsv4_attn_backend,
        "device": _device(),
    }
    facts |= {name: getattr(envs, name).get() for name in PACKING_SWITCHES if hasattr(envs, name)}
    return ",".join(f"{name}={value}" for name, value in facts.items())


def _device() -> str:
    """The runtime and generation of this process's device."""
    import torch

    if not torch.cuda.is_available():
        return "none"
    major, minor = torch.cuda.get_device_capability()
    return f"{'hip' if torch.version.hip else 'cuda'}{major}.{minor}"


def published_weights() -> str:
    """What SGLang was told to make of the model's weights: each of these settings changes the KV cache's values."""
    from sglang.srt.runtime_context import get_model

    told = get_model()
    return ",".join(str(getattr(told, name)) for name in WEIGHT_SETTINGS)


def _digest_of(path: str | None) -> str:
    """The digest of a file's content; "" without a path, the path itself where there is no such file."""
    if path is None:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
    except OSError:
        return path


def _sizes(sizes: np.ndarray) -> str:
    """Fragment sizes in order, repeats counted: 1024x30,512x1."""
    return ",".join(f"{nbytes}x{len(list(run))}" for nbytes, run in groupby(sizes.tolist()))
