"""Descriptions of pages in no host pool, and a configuration of no server: for identities, without importing SGLang."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from sglang_umbp.hicache.host_pages import HostPages, PagePart
from sglang_umbp.hicache.pool_identity import pool_namespace_name

FACTS = {"model_revision": "r1", "tag": "", "kv_format": "auto"}
ONE_RANK = {
    "model_name": "tiny/model",
    "is_mla_model": False,
    "tp_rank": 0,
    "tp_size": 1,
    "pp_rank": 0,
    "pp_size": 1,
    "attn_cp_rank": 0,
    "attn_cp_size": 1,
    "dcp_rank": 0,
    "dcp_size": 1,
    "dp_rank": 0,
}


def config(**fields: Any) -> Any:
    """What an identity reads of HiCacheStorageConfig; fields replace those of one rank."""
    return SimpleNamespace(**(ONE_RANK | fields))


def part(sizes: tuple[int, ...] = (64, 64)) -> PagePart:
    """A whole page of two fragments."""
    return PagePart(
        name="page",
        bases=np.array([0, 8192]),
        strides=np.array([64, 64]),
        sizes=np.array(sizes),
        object_offsets=np.array([0, sizes[0]]),
        layers=(0, 0),
    )


def pages(**changes: Any) -> HostPages:
    """Pages of an MHA pool; changes replace the facts."""
    facts: dict[str, Any] = {
        "name": "kv",
        "kind": "mha",
        "layout": "page_first",
        "dtype": "bfloat16",
        "geometry": "head_dim=32",
        "format_tag": None,
        "page_size": 16,
        "rows": 8,
        "first_layer": 0,
        "layer_count": 3,
        "replicable": False,
        "parts": (part(),),
        "regions": ((0, 16384),),
        "host_pool": None,
    }
    return HostPages(**(facts | changes))


def name_of(described: HostPages | None = None, ranks: dict[str, Any] | None = None, **facts: str) -> bytes:
    """The namespace of these pages under these ranks."""
    return pool_namespace_name(described or pages(), config(**(ranks or {})), **(FACTS | facts))


MLA_RANKS = {"is_mla_model": True, "tp_size": 4}
REPLICATED = pages(replicable=True, kind="mla")


if __name__ == "__main__":
    print(name_of(ranks={"tp_size": 2}, tag="x").hex())
    print(name_of(REPLICATED, MLA_RANKS).hex())
