"""How many SGLang ranks share this machine. Imports sglang."""

from __future__ import annotations


def ranks_of_this_node() -> int:
    """Scheduler processes of this server on this machine, from the configuration that SGLang published."""
    from sglang.srt.layers.dp_attention import is_dp_attention_enabled
    from sglang.srt.runtime_context import get_parallel

    told = get_parallel()
    replicas = 1 if is_dp_attention_enabled() else told.dp_size  # attention data parallelism is among the tp ranks
    return max(1, -(-int(told.tp_size * told.pp_size * replicas) // int(told.nnodes)))
