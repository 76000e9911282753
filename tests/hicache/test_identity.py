"""One page hash under another model, shape or share of it is another page; the same one is found by every process."""

import dataclasses
import subprocess
import sys

import cpu_pools
import cpu_side_pools
import hand_made_pages
import numpy as np
import pytest
import torch
from context import published, storage_config
from hand_made_pages import FACTS, MLA_RANKS, REPLICATED, name_of

from sglang_umbp import Pool, SettingsError
from sglang_umbp.hicache.host_pages import HostPages, describe_host_pool
from sglang_umbp.hicache.pool_identity import (
    PACKING_SWITCHES,
    is_replicated,
    pool_identity,
    published_kv_format,
    published_weights,
)


@pytest.mark.parametrize(
    "fact",
    [
        {"model_revision": "r2"},
        {"tag": "team"},
        {"weights": "fp8"},
        {"ranks": {"model_name": "tiny/other"}},
        {"ranks": {"tp_size": 2, "tp_rank": 1}},
        {"ranks": {"tp_size": 2}},
        {"ranks": {"pp_size": 2, "pp_rank": 1}},
        {"ranks": {"pp_size": 2}},
        {"ranks": {"attn_cp_size": 2}},
        {"ranks": {"dp_rank": 1}},
        {"described": hand_made_pages.pages(name="swa")},
        {"described": hand_made_pages.pages(kind="mha_keys")},
        {"described": hand_made_pages.pages(layout="page_head")},
        {"described": hand_made_pages.pages(dtype="float16")},
        {"described": hand_made_pages.pages(geometry="head_dim=64")},
        {"described": hand_made_pages.pages(page_size=32)},
        {"described": hand_made_pages.pages(first_layer=3)},
        {"described": hand_made_pages.pages(layer_count=6)},
        {"described": hand_made_pages.pages(format_tag="packed")},
        {"described": hand_made_pages.pages(parts=(hand_made_pages.part((32, 96)),))},
        {"described": hand_made_pages.pages(parts=(hand_made_pages.part((64, 65)),))},
    ],
    ids=str,
)
def test_what_differs_is_not_found(fact):
    assert name_of(**fact) != name_of()


def test_where_pages_lie_does_not_count():
    elsewhere = dataclasses.replace(hand_made_pages.part(), bases=np.array([512, 128]))
    assert name_of(hand_made_pages.pages(rows=99, regions=((1, 2),), parts=(elsewhere,))) == name_of()


def test_parts_of_an_identity_do_not_run_together():
    assert name_of(model_revision="ab", tag="c") != name_of(model_revision="a", tag="bc")


@pytest.mark.parametrize("ranks", [{"tp_rank": 3}, {"dp_rank": 2}, {"tp_size": 8}])
def test_replicated_pages_are_the_same_on_every_rank(ranks):
    assert name_of(REPLICATED, MLA_RANKS | ranks) == name_of(REPLICATED, MLA_RANKS)


@pytest.mark.parametrize(
    "ranks",
    [
        {"pp_size": 2, "pp_rank": 1},
        {"attn_cp_size": 2, "attn_cp_rank": 1},
        {"dcp_size": 2, "dcp_rank": 1, "tp_rank": 1, "logical_page_size": 32},
    ],
    ids=str,
)
def test_replicated_pages_differ_where_ranks_hold_other_layers_or_tokens(ranks):
    other_rank = {name: 0 if name.endswith("rank") else value for name, value in ranks.items()}
    assert name_of(REPLICATED, MLA_RANKS | ranks) != name_of(REPLICATED, MLA_RANKS | other_rank)
    assert name_of(REPLICATED, MLA_RANKS | other_rank) != name_of(REPLICATED, MLA_RANKS)


def test_only_pools_that_hold_all_heads_are_replicated():
    config = storage_config(**MLA_RANKS)
    with published(hicache_mem_layout="page_first", hicache_io_backend="direct"):
        stack = cpu_pools.deepseek_v4_stack(cpu_pools.deepseek_v4_device_pool())
        pools = {str(entry.name): entry.host_pool for entry in stack.group.entries}
        pools["latent"] = cpu_side_pools.mla_pool("page_first")
        pools["mamba"] = cpu_side_pools.mamba_pool("page_first")
        pools["draft"] = cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), "page_first")
    described = {name: describe_host_pool(pool, name, config) for name, pool in pools.items()}
    assert described.pop("kv") is None
    sharded = {name for name, pages in described.items() if not is_replicated(pages, config)}
    assert sharded == {"mamba", "draft"}
    assert not is_replicated(described["latent"], storage_config())
    for name in sharded:
        names = {name_of(described[name], MLA_RANKS | {"tp_rank": rank}) for rank in range(4)}
        assert len(names) == 4


def test_8_bit_elements_are_told_apart_by_what_sglang_was_told():
    eight = hand_made_pages.pages(dtype="uint8")
    assert name_of(eight, kv_format="fp8_e4m3") != name_of(eight, kv_format="fp8_e5m2")
    assert name_of(hand_made_pages.pages(dtype="float32+uint8"), kv_format="a") != name_of(
        hand_made_pages.pages(dtype="float32+uint8")
    )
    assert name_of(kv_format="fp8_e4m3") == name_of(kv_format="bfloat16")


def test_the_published_format_follows_the_command_line():
    with published(kv_cache_dtype="fp8_e4m3"):
        first = published_kv_format()
    with published(kv_cache_dtype="fp8_e5m2"):
        second = published_kv_format()
    with published(kv_cache_dtype="fp8_e4m3", speculative_draft_kv_cache_dtype="bfloat16"):
        third = published_kv_format()
    assert len({first, second, third}) == 3
    assert first.startswith("type=fp8_e4m3,")


@pytest.mark.parametrize("switch", PACKING_SWITCHES)
def test_the_published_format_has_the_switches_of_packed_layouts(switch):
    from sglang.srt.environ import envs

    with published():
        plain = published_kv_format()
        value = getattr(envs, switch).get()
        with getattr(envs, switch).override(not value if isinstance(value, bool) else "another"):
            assert published_kv_format() != plain


def test_pages_of_another_device_layout_have_another_identity():
    """SGLang's host pools copy what the device holds: by head under this switch, at the same size."""
    from sglang.srt.environ import envs

    names = set()
    for by_head in (False, True):
        with published(hicache_mem_layout="page_first"), envs.SGLANG_USE_HND_KVCACHE.override(by_head):
            host = cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), "page_first")
        names.add(name_of(describe_host_pool(host, "kv", storage_config())))
    assert len(names) == 2


def test_the_published_format_has_the_scales_of_8_bit_elements(tmp_path):
    def told(content: str) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(content)
        with published(kv_cache_dtype="fp8_e4m3", quantization_param_path=str(path)):
            return published_kv_format()

    assert told("{1}") == told("{1}")
    assert told("{1}") != told("{2}")
    with published(kv_cache_dtype="fp8_e4m3", quantization_param_path=str(tmp_path / "missing")):
        assert str(tmp_path / "missing") in published_kv_format()


@pytest.mark.parametrize(
    "setting",
    [
        {"revision": "abc"},
        {"dtype": "float16"},
        {"quantization": "fp8"},
        {"json_model_override_args": '{"rope_scaling": {"factor": 4}}'},
    ],
    ids=str,
)
def test_the_published_weights_follow_the_command_line(setting):
    with published():
        plain = published_weights()
    with published(**setting):
        assert published_weights() != plain


def test_host_pools_of_8_bit_floats_have_the_same_type():
    """Why the format is a part of the identity: SGLang's host pools do not tell."""
    with published(hicache_mem_layout="page_first"):
        dtypes = {
            describe_host_pool(
                cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(dtype=dtype), "page_first"), "kv", storage_config()
            ).dtype
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
        }
    assert dtypes == {"uint8"}


@pytest.mark.parametrize("layout", cpu_pools.MHA_LAYOUTS)
def test_a_real_pool_has_an_identity_of_its_own(layout):
    def described(layout: str, **shape: object) -> HostPages:
        with published(hicache_mem_layout=layout):
            return describe_host_pool(
                cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(**shape), layout), "kv", storage_config()
            )

    base = described(layout)
    assert name_of(described(layout, tokens=512)) == name_of(base), "the size of the pool does not count"
    others = [
        described(layout, dtype=torch.float16),
        described(layout, layers=4),
        described(layout, heads=2),
        described(layout, heads=2, head_dim=64),
        *(described(other) for other in cpu_pools.MHA_LAYOUTS if other != layout),
    ]
    assert len({name_of(pages) for pages in (base, *others)}) == 1 + len(others)


def test_groups_of_heads_in_a_unified_page_are_a_part_of_the_identity():
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    names = set()
    for groups in (1, 2, 4):
        with published(hicache_mem_layout="page_unified"):
            device = cpu_pools.mha_device_pool()
            host = MHATokenToKVPoolHost(
                device.get_device_pool_infos()[0].buffer_info,
                2.0,
                0,
                16,
                "page_unified",
                pin_memory=False,
                device_capacity_tokens=device.size,
                start_layer=0,
                end_layer=3,
                head_group_num=groups,
            )
        names.add(name_of(describe_host_pool(host, "kv", storage_config())))
    assert len(names) == 3


def test_slices_of_heads_are_found_by_ranks_of_another_number():
    """Two ranks store slices 0-1 and 2-3 of 4; four ranks and one find them, and no rank finds another's."""
    with published(hicache_mem_layout="page_head"):
        hosts = {
            size: cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(heads=8 // size), "page_head") for size in (1, 2, 4)
        }
    with Pool(capacity_bytes=8 << 20, prefault=False) as pool:
        found = {}
        for size in (2, 1, 4):
            for rank in range(size):
                config = {"tp_size": size, "tp_rank": rank, "tp_lcm_size": 4}
                pages = describe_host_pool(hosts[size], "kv", storage_config(**config))
                namespace = pool.namespace(name_of(pages, config), [part.name for part in pages.parts])
                if size == 2:
                    for part in pages.parts:
                        block = np.zeros(part.nbytes, dtype=np.uint8)
                        pool.register_array(block)
                        where = namespace.component(part.name)
                        assert pool.put(["a"], [block.ctypes.data], [block.nbytes], namespace=where) == [True]
                        pool.unregister_memory(block.ctypes.data)
                found[size, rank] = pool.exists(["a", "b"], namespace=namespace)
        assert set(map(tuple, found.values())) == {(True, False)}
        assert len(found) == 7
        whole = describe_host_pool(hosts[2], "kv", storage_config(tp_size=2))
        stored_whole = pool.namespace(name_of(whole, {"tp_size": 2}), ["page"])
        assert pool.exists(["a"], namespace=stored_whole) == [False]


def test_every_process_builds_the_same_name():
    """Four interpreters with other hash seeds, without SGLang."""
    expected = [name_of(ranks={"tp_size": 2}, tag="x").hex(), name_of(REPLICATED, MLA_RANKS).hex()]
    for seed in ("0", "1", "77", "4294967295"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(entry for entry in sys.path if entry)}
        run = subprocess.run(
            [sys.executable, hand_made_pages.__file__],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert run.stdout.split() == expected


def test_an_identity_can_be_read():
    facts = pool_identity(hand_made_pages.pages(), storage_config(tp_size=2, tp_rank=1), **FACTS)
    assert facts["model"] == "tiny/model"
    assert facts["tp"] == "1/2"
    assert facts["sizes"] == "64x2"


def test_a_model_without_a_name_is_refused():
    with pytest.raises(SettingsError, match="--served-model-name"):
        name_of(ranks={"model_name": None})
