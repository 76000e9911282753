"""Every form in which a value may be written, and the nearest ones in which it may not."""

import pytest

from sglang_umbp.setting_kinds import (
    AutoBool,
    AutoWhole,
    Bool,
    Choice,
    Real,
    Size,
    UnixAddress,
    Whole,
    parse_size,
    power,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("512MiB", 512 << 20),
        ("10GB", 10 * 10**9),
        ("64GiB", 64 << 30),
        (" 64 gib ", 64 << 30),
        ("2TB", 2 * 10**12),
        ("2TiB", 2 << 40),
        ("1.5GiB", 3 << 29),
        ("0.5KiB", 512),
        ("0", 0),
    ],
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "value",
    ["", "GiB", "1G", "1g", "-1", "-1GiB", "1e9", "1,5GiB", "1.GiB", ".5GiB", "0.3B", "1 GiB x", "٣", True, 1.0, None],
)
def test_what_is_not_a_size(value):
    with pytest.raises(ValueError):  # noqa: PT011 - the caller adds the name
        parse_size(value)


@pytest.mark.parametrize("value", [True, 1, "1", "true", "TRUE", "yes", " On "])
def test_true(value):
    assert Bool().parse(value) is True


@pytest.mark.parametrize("value", [False, 0, "0", "false", "No", "off"])
def test_false(value):
    assert Bool().parse(value) is False


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Bool(), "t"),
        (Bool(), 2),
        (Bool(), 1.0),
        (Bool(), None),
        (Whole(1, 5), "1.0"),
        (Whole(1, 5), 6),
        (Whole(1, 5), True),
        (Whole(1, 5), None),
        (AutoWhole(1, 5), False),
        (Size(1, 5), None),
        (Size(1, 5, auto=True), "automatic"),
        (Size(1, 5), "1KiB"),
        (Real(0, 1), "nan"),
        (Real(0, 1), 1.01),
        (Real(0, 1), "half"),
        (Real(0, 1), True),
        (Choice(("a", "b")), "c"),
        (Choice(("a", "b")), 1),
        (AutoBool(), "maybe"),
        (AutoBool(), 0.0),
        (UnixAddress(), "/run/x"),
        (UnixAddress(), None),
    ],
    ids=str,
)
def test_what_a_kind_does_not_take(kind, value):
    with pytest.raises(ValueError):  # noqa: PT011 - the caller adds the name
        kind.parse(value)


def test_auto_is_none_where_it_is_taken():
    for value in (None, "auto", " AUTO "):
        assert Size(1, 5, auto=True).parse(value) is None
        assert AutoWhole(1, 5).parse(value) is None


def test_zero_is_auto_where_it_was_before_there_was_a_word_for_it():
    for value in (0, "0"):
        assert AutoWhole(1, 5).parse(value) is None
        assert Size(1, 5, auto=True, zero=True).parse(value) is None
        with pytest.raises(ValueError):  # noqa: PT011 - the caller adds the name
            Size(1, 5, auto=True).parse(value)


def test_an_address_has_an_absolute_path_or_is_none():
    assert UnixAddress().parse(" unix:/run/../run/x ") == "unix:/run/x"
    assert UnixAddress().parse(" ") == ""


def test_numbers_and_words_from_text():
    assert Whole(-1, 5).parse(" -1 ") == -1
    assert AutoWhole(1, 5).parse("5") == 5
    assert [AutoBool().parse(word) for word in ("auto", "on", 0)] == [None, True, False]
    assert Real(0, 1).parse("0.25") == 0.25
    assert Choice(("a", "b")).parse(" B ") == "b"


def test_figures_for_people():
    assert [power(n) for n in (-1, 64, 1000, 1 << 20, 1 << 46)] == ["-1", "64", "1000", "2**20", "2**46"]
    assert [size_text(n) for n in (12, 1024, 3 << 29, 5 << 40)] == ["12 bytes", "1.0 KiB", "1.5 GiB", "5.0 TiB"]
