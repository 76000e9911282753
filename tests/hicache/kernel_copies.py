"""Stand-ins for the copies of `--hicache-io-backend kernel` that SGLang has on a GPU only: page_first and page_head.

Device layers are given as addresses there; items are the bytes of one token in one layer.
"""

import ctypes
import importlib

import numpy as np
import torch


def install(monkeypatch) -> None:
    """Puts them in place until the test ends."""
    for name in ("mha", "mla"):
        module = importlib.import_module(f"sglang.srt.mem_cache.pool_host.{name}")
        for copy in COPIES:
            monkeypatch.setattr(module, copy.__name__, copy, raising=False)


def transfer_kv_all_layer_lf_pf(
    src_k_layers, dst_k, src_v_layers, dst_v, src_indices, dst_indices, item_size, dst_layout_dim, num_layers
):
    """MHA: layers to (token, layer, ...)."""
    for layers, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(layers, target, src_indices, dst_indices, item_size, dst_layout_dim, num_layers)


def transfer_kv_all_layer_mla_lf_pf(src_layers, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers):
    """MLA: layers to (token, layer, ...)."""
    assert dst_layout_dim == num_layers * item_size
    for layer in range(num_layers):
        dst[dst_indices, layer] = (
            items_at(src_layers[layer], src_indices, item_size)
            .view(dst.dtype)
            .reshape(len(dst_indices), *dst.shape[2:])
        )


def transfer_kv_per_layer_pf_lf(
    src_k, dst_k, src_v, dst_v, src_indices, dst_indices, layer_id, item_size, src_layout_dim
):
    """MHA: one layer of (token, layer, ...) to its device buffers."""
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        target[dst_indices] = source[src_indices, layer_id]


def transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices, layer_id, item_size, src_layout_dim):
    """MLA: one layer of (token, layer, ...) to its device buffer."""
    dst[dst_indices] = src[src_indices, layer_id].reshape(len(dst_indices), *dst.shape[1:])


def transfer_kv_all_layer_lf_ph(
    src_k_layers,
    dst_k,
    src_v_layers,
    dst_v,
    src_indices,
    dst_indices,
    item_size,
    dst_layout_dim,
    num_layers,
    page_size,
    head_num,
):
    """MHA: layers to (page, head, token of the page, layer, element)."""
    pages, slots = dst_indices // page_size, dst_indices % page_size
    for layers, target in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        for layer in range(num_layers):
            items = items_at(layers[layer], src_indices, item_size).view(target.dtype)
            target[pages, :, slots, layer] = items.reshape(len(dst_indices), head_num, -1)


def transfer_kv_per_layer_ph_lf(
    src_k,
    dst_k,
    src_v,
    dst_v,
    src_indices,
    dst_indices,
    layer_id,
    item_size,
    src_layout_dim,
    page_size,
    head_num,
):
    """MHA: one layer of (page, head, token of the page, layer, element) to its device buffers."""
    pages, slots = src_indices // page_size, src_indices % page_size
    for source, target in ((src_k, dst_k), (src_v, dst_v)):
        target[dst_indices] = source[pages, :, slots, layer_id]


def items_at(address, indices, item_size):
    """The items of these indices in the buffer at an address, as bytes."""
    rows = int(indices.max()) + 1
    memory = (ctypes.c_uint8 * (rows * item_size)).from_address(int(address))
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8).reshape(rows, item_size)[indices.numpy()].copy())


COPIES = (
    transfer_kv_all_layer_lf_pf,
    transfer_kv_all_layer_mla_lf_pf,
    transfer_kv_per_layer_pf_lf,
    transfer_kv_per_layer_mla_pf_lf,
    transfer_kv_all_layer_lf_ph,
    transfer_kv_per_layer_ph_lf,
)
