"""How far a prefix can be restored: every policy against a plain reading of its words."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_umbp.hicache import hits

presence = st.lists(st.booleans(), max_size=40)


@given(presence)
def test_all_pages_serves_every_length_up_to_the_first_missing_page(present):
    wanted = [p for p in range(1, len(present) + 1) if all(present[:p])]
    verdict = hits.all_pages(present)
    assert list(verdict.restorable) == wanted
    assert verdict.pages == len(wanted)


@given(presence, st.integers(1, 6))
def test_trailing_pages_serves_the_lengths_whose_last_window_is_there(present, window):
    wanted = [p for p in range(1, len(present) + 1) if all(present[max(0, p - window) : p])]
    verdict = hits.trailing_pages(present, window)
    assert list(verdict.restorable) == wanted
    assert verdict.pages == max(wanted, default=0)


def test_a_window_that_ends_earlier_gives_that_boundary():
    there = [True, True, True, True, False, True]
    assert hits.trailing_pages(there, 2).pages == 4
    assert list(hits.trailing_pages(there, 1).restorable) == [1, 2, 3, 4, 6]


@given(presence, st.integers(1, 5), st.integers(1, 3))
def test_block_groups_cover_the_blocks_of_the_complete_groups_at_the_start(present, block_pages, group_pages):
    blocks = 0
    while len(present) >= (blocks + 1) * group_pages and all(present[: (blocks + 1) * group_pages]):
        blocks += 1
    assert hits.block_groups(present, block_pages, group_pages) == hits.Verdict(blocks * block_pages, None)


def test_groups_that_nobody_names_are_the_last_pages_of_each_whole_block():
    assert hits.block_group_keys(list("abcdefgh"), 3, 2) == list("bcef")
    assert hits.block_group_keys(list("ab"), 3, 1) == []


@given(st.integers(0, 30), presence, presence, st.integers(1, 4))
def test_together_pools_serve_the_lengths_that_each_of_them_serves(anchor, first, second, window):
    verdicts = [hits.all_pages(first), hits.trailing_pages(second, window), hits.block_groups(first, 2, 1)]
    wanted = [p for p in range(1, anchor + 1) if all(p in v.restorable for v in verdicts if v.restorable is not None)]
    assert hits.restorable_together(anchor, verdicts) == hits.Restorable(max(wanted, default=0), wanted)


def test_without_side_pools_every_length_of_the_anchor_is_served():
    assert hits.restorable_together(3, []) == hits.Restorable(3, [1, 2, 3])
    assert hits.restorable_together(0, []) == hits.Restorable(0, [])
