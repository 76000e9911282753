"""The text of --pools, layer groups, and where fragments lie."""

import numpy as np
import pytest

from sglang_umbp.geometry import (
    DEEPSEEK_V4_PRO,
    GeometryError,
    layer_first,
    page_first,
    page_nbytes,
    parse_logical_layers,
    parse_pools,
    restore_steps,
    total_layers,
)


def test_deepseek_v4_pro_has_three_pools_over_61_layers() -> None:
    c4, indexer, c128 = parse_pools(DEEPSEEK_V4_PRO)
    assert (c4.name, c4.layers, c4.fragment_nbytes) == ("c4", 30, 37440)
    assert c4.logical_layers == indexer.logical_layers == tuple(range(2, 61, 2))
    assert c128.logical_layers == (0, *range(1, 60, 2))
    assert total_layers((c4, indexer, c128)) == 61
    assert 32 * page_nbytes((c4, indexer, c128)) == 45_766_656


def test_a_restore_of_deepseek_v4_pro_is_24_calls_of_2912_fragments() -> None:
    steps = restore_steps(parse_pools(DEEPSEEK_V4_PRO), 8)
    assert len(steps) == 24
    assert 32 * sum(step.end - step.begin for step in steps) == 2912
    assert [step.pool for step in steps[:3]] == [0, 1, 2]
    assert [step.end - step.begin for step in steps[:6]] == [3, 3, 5, 4, 4, 4]


@pytest.mark.parametrize("group_layers", [1, 2, 3, 8, 61, 100])
def test_layer_groups_cover_every_fragment_once_in_order(group_layers: int) -> None:
    pools = parse_pools(DEEPSEEK_V4_PRO)
    for index, pool in enumerate(pools):
        ranges = [step.layers for step in restore_steps(pools, group_layers) if step.pool == index]
        fragments = [fragment for begin, end in ranges for fragment in range(begin, end)]
        assert fragments == list(range(pool.layers))


def test_groups_without_fragments_of_a_pool_have_no_call() -> None:
    steps = restore_steps(parse_pools("a:2:64:0/1;b:1:64:5"), 2)
    assert [(step.group, step.pool) for step in steps] == [(0, 0), (2, 1)]


@pytest.mark.parametrize(
    ("text", "count", "layers"),
    [
        ("2/2", 3, (2, 4, 6)),
        ("0/1", 1, (0,)),
        ("7", 1, (7,)),
        ("0, 1, 5", 3, (0, 1, 5)),
        ("3,3,4", 3, (3, 3, 4)),
        ("0,1,3,...,9", 6, (0, 1, 3, 5, 7, 9)),
        ("0,1,...,3,10,20,...,40", 8, (0, 1, 2, 3, 10, 20, 30, 40)),
        ("1,3,...,5", 3, (1, 3, 5)),
    ],
)
def test_logical_layers_are_start_and_step_or_a_list_with_dots(text: str, count: int, layers: tuple[int, ...]) -> None:
    assert parse_logical_layers(text, count) == layers


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "''"),
        ("a:1:64", "'a:1:64'"),
        ("a:1:64:0:9", "'a:1:64:0:9'"),
        (":1:64:0", "''"),
        ("a b:1:64:0", "'a b'"),
        ("a:0:64:0", "'0'"),
        ("a:x:64:0", "'x'"),
        ("a:1:-64:0", "'-64'"),
        ("a:2:64:0", "2 were announced"),
        ("a:2:64:0/", "'0/'"),
        ("a:2:64:-1/1", "'-1/1'"),
        ("a:2:64:0,x", "'x'"),
        ("a:2:64:1,0", "decrease"),
        ("a:2:64:0,...", "'...'"),
        ("a:3:64:0,...,4", "two rising numbers"),
        ("a:3:64:...,4", "two rising numbers"),
        ("a:3:64:2,2,...,4", "two rising numbers"),
        ("a:3:64:0,2,...,5", "steps of 2"),
        ("a:3:64:0,2,...,2", "steps of 2"),
        ("a:9:64:0,1,...,...,8", "'...'"),
        ("a:9:64:0,1,...,99999999", "steps of 1"),
        ("a:1:64:0;a:1:64:0", "twice"),
    ],
)
def test_a_pool_text_that_cannot_be_used_is_refused_by_value(text: str, quoted: str) -> None:
    with pytest.raises(GeometryError) as refusal:
        parse_pools(text)
    assert quoted in str(refusal.value)


def test_addresses_go_page_by_page_with_the_layers_ascending() -> None:
    (pool,) = parse_pools("a:3:64:0/1")
    rows = np.array([2, 0], dtype=np.int64)
    by_layer = layer_first(pool, 4, np.array([1000, 2000, 3000], dtype=np.uint64))
    assert by_layer.addresses(rows, (1, 3)).tolist() == [2128, 3128, 2000, 3000]
    by_page = page_first(pool, 4, 1000)
    assert by_page.addresses(rows, (0, 3)).tolist() == [1384, 1448, 1512, 1000, 1064, 1128]


def test_fragments_tile_the_object() -> None:
    (pool,) = parse_pools("a:3:100:0/1")
    place = page_first(pool, 2, 0)
    ends = place.object_offsets + place.sizes
    assert place.object_offsets.tolist() == [0, 100, 200]
    assert ends.tolist() == [100, 200, pool.object_nbytes]
