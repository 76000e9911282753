"""SGLang's process-wide state without a model: the published configuration and a process group of one rank."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RANK_FIELDS = ("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank", "attn_dcp_rank")


@contextmanager
def published(**server_args: object) -> Iterator[None]:
    """Publishes a configuration of rank 0 with these fields of ServerArgs; the earlier one is back at the end.

    Example: published(hicache_mem_layout="page_first", hicache_io_backend="direct").
    """
    from sglang.srt.runtime_context import get_context, get_parallel

    override = get_context().override_server_args(**server_args)
    override.install()
    try:
        get_parallel().override_permanently(**dict.fromkeys(RANK_FIELDS, 0))
        yield
    finally:
        override.restore()


@contextmanager
def one_rank_group() -> Iterator[object]:
    """torch.distributed's world of one rank over gloo."""
    import torch

    if torch.distributed.is_initialized():
        yield torch.distributed.group.WORLD
        return
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Path(folder, "rendezvous").as_uri()
        torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
        try:
            yield torch.distributed.group.WORLD
        finally:
            torch.distributed.destroy_process_group()


def storage_config(**fields: object):
    """A HiCacheStorageConfig of one rank of an MHA model; fields replace the defaults."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    defaults: dict[str, object] = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "tiny/model",
        "extra_config": {},
    }
    return HiCacheStorageConfig(**(defaults | fields))
