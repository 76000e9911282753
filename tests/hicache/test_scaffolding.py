"""The real pools of SGLang work on this CPU: their pages can be copied to the host and back by the stand-ins."""

import cpu_pools
import pytest
import torch
from context import published

BUILDERS = {
    "mha": (cpu_pools.mha_device_pool, cpu_pools.mha_host_pool),
    "mla": (cpu_pools.mla_device_pool, cpu_pools.mla_host_pool),
}
KINDS = ("mha", "mla")


@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
@pytest.mark.parametrize("kind", KINDS)
def test_pages_survive_the_way_to_the_host_and_back(kind, layout):
    make_device_pool, make_host_pool = BUILDERS[kind]
    with published(hicache_mem_layout=layout, hicache_io_backend="direct"):
        device = make_device_pool()
        host = make_host_pool(device, layout)
        buffers = device.k_buffer + device.v_buffer if kind == "mha" else device.kv_buffer
        cpu_pools.fill_randomly(buffers)
        there, back = torch.arange(16, 48), torch.arange(96, 128)
        wanted = [buffer[there].clone() for buffer in buffers]
        slots = host.alloc(len(there))
        host.backup_from_device_all_layer(device, slots, there, "direct")
        for layer in range(device.layer_num):
            host.load_to_device_per_layer(device, slots, back, layer, "direct")
        got = [buffer[back] for buffer in buffers]
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
def test_deepseek_v4_group_has_the_pools_of_the_model(layout):
    with published(hicache_mem_layout=layout, hicache_io_backend="direct"):
        stack = cpu_pools.deepseek_v4_stack(cpu_pools.deepseek_v4_device_pool())
        names = {entry.name.value for entry in stack.group.entries}
    assert len(names) >= 5
    assert any("c128" in name.lower() for name in names), names


@pytest.mark.parametrize("layout", cpu_pools.MHA_LAYOUTS)
def test_mha_host_pool_stands_in_every_layout(layout):
    with published(hicache_mem_layout=layout):
        host = cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), layout)
        assert cpu_pools.tensors_of(host)


def test_dsa_group_and_mamba_pool_stand():
    with published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct"):
        group = cpu_pools.dsa_host_pool_group(cpu_pools.dsa_device_pool())
        assert len(group.entries) == 2
        assert cpu_pools.tensors_of(cpu_pools.mamba_host_pool("page_first_direct"))
