"""Fragments are found from a pool's answers for some pages, or the pool is found out."""

import numpy as np
import pytest
import torch

from sglang_umbp.hicache.fragments import (
    AffineFragments,
    PagePlacementError,
    check_covers,
    extents_of_tensors,
    extents_of_view,
    fit,
    rows_to_ask,
)

BUFFER = torch.arange(4 * 6 * 5 * 3, dtype=torch.int16).reshape(4, 6, 5, 3)


@pytest.mark.parametrize("rows", [1, 2, 3, 33, 34, 35, 1000, 1_000_003])
def test_both_ends_of_a_pool_are_asked_for_and_no_more_than_a_few_rows(rows):
    asked = rows_to_ask(rows)
    assert asked == sorted(set(asked))
    assert {0, rows - 1} <= set(asked)
    assert len(asked) == rows if rows <= 33 else 25 <= len(asked) <= 33
    assert rows < 2 or 1 in asked


@pytest.mark.parametrize(
    "view",
    [
        BUFFER,
        BUFFER[2],
        BUFFER[:, 3],
        BUFFER[:, 3:4],
        BUFFER[1:3, 2:5],
        BUFFER[:, :, 1:3],
        BUFFER[..., 1:2],
        BUFFER[..., 0],
        BUFFER.transpose(0, 1)[2],
        BUFFER.transpose(1, 2),
        BUFFER[2, 3, 4, 1],
        BUFFER[:0],
    ],
)
def test_pieces_of_a_view_hold_its_elements_in_its_own_order(view):
    memory = BUFFER.numpy().reshape(-1)
    gathered: list[int] = []
    for address, nbytes in extents_of_view(view):
        first, rest = divmod(address - BUFFER.data_ptr(), 2)
        assert rest == 0
        gathered += memory[first : first + nbytes // 2].tolist()
    assert gathered == view.flatten().tolist()


@pytest.mark.parametrize(("view", "pieces"), [(BUFFER, 1), (BUFFER[:, 3], 4), (BUFFER[1:3, 2:5], 2), (BUFFER[2], 1)])
def test_pieces_of_a_view_are_as_few_as_there_can_be(view, pieces):
    assert len(extents_of_view(view)) == pieces


def two_buffers(row: int) -> list[tuple[int, int]]:
    return [(1000 + row * 64, 64), (90_000 - row * 32, 16)]


@pytest.mark.parametrize("rows", [1, 2, 33, 500])
def test_fragments_lie_where_the_rows_said(rows):
    found = fit(rows, two_buffers)
    for row in range(rows):
        assert list(zip(found.bases + row * found.strides, found.sizes, strict=True)) == two_buffers(row)


@pytest.mark.parametrize("odd", [0, 1, 2, *rows_to_ask(500)[10:12], 498, 499])
def test_a_row_that_lies_elsewhere_is_found_where_it_is_asked_for(odd):
    def moved(row: int) -> list[tuple[int, int]]:
        return [(address + (row == odd), nbytes) for address, nbytes in two_buffers(row)]

    with pytest.raises(PagePlacementError, match="does not lie where"):
        fit(500, moved)


def fragments(*triples: tuple[int, int, int]) -> AffineFragments:
    return AffineFragments(*(np.array(column) for column in zip(*triples, strict=True)))


def test_regions_that_rows_fill_are_accepted_and_one_spare_row():
    page = fragments((1000, 64, 64), (9000, 32, 16), (9016, 32, 16))
    check_covers(page, 4, [(1000, 256), (9000, 128)])
    check_covers(page, 4, [(1000, 320), (9000, 128)])


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ([(1000, 256)], "outside"),
        ([(1000, 255), (9000, 128)], "outside"),
        ([(1001, 256), (9000, 128)], "outside"),
        ([(1000, 257), (9000, 128)], "257 bytes is not 4 pages of the 64"),
        ([(1000, 384), (9000, 128)], "384 bytes is not 4 pages of the 64"),
        ([(1000, 256), (9000, 128), (20_000, 64)], "64 bytes is not 4 pages of the 0"),
    ],
)
def test_regions_that_rows_do_not_fill_are_refused(regions, message):
    page = fragments((1000, 64, 64), (9000, 32, 16), (9016, 32, 16))
    with pytest.raises(PagePlacementError, match=message):
        check_covers(page, 4, regions)


def test_fragments_are_cut_into_equal_pieces_in_order():
    first, second = fragments((0, 8, 1), (1, 8, 2), (3, 8, 3), (6, 8, 4)).cut(2)
    assert (first.sizes.tolist(), second.bases.tolist()) == ([1, 2], [3, 6])
    with pytest.raises(PagePlacementError, match="3 fragments a page are not 2"):
        fragments((0, 8, 1), (1, 8, 2), (3, 8, 3)).cut(2)


def test_empty_buffers_are_left_out_and_one_buffer_counts_once():
    extents = extents_of_tensors([BUFFER, torch.empty(0), BUFFER.view(-1)])
    assert extents == [(BUFFER.data_ptr(), BUFFER.numel() * 2)]
    with pytest.raises(PagePlacementError, match="not contiguous"):
        extents_of_tensors([BUFFER.transpose(0, 1)])
