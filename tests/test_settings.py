"""Settings: each bad value is refused by name, and the environment is read in one place."""

from __future__ import annotations

import dataclasses
import math

import pytest

from sglang_umbp import Pool, PoolSettings, SettingsError

BAD_VALUES = [
    ("capacity_bytes", 63),
    ("capacity_bytes", 0),
    ("capacity_bytes", -1),
    ("capacity_bytes", 2**46 + 1),
    ("capacity_bytes", 1e9),
    ("capacity_bytes", "1GB"),
    ("capacity_bytes", True),
    ("capacity_bytes", None),
    ("copy_threads", 0),
    ("copy_threads", 65),
    ("copy_threads", 1.5),
    ("nt_copy_min_bytes", -1),
    ("nt_copy_min_bytes", 2**63 + 1),
    ("memory", "hugetlb"),
    ("memory", None),
    ("hugepages", 1),
    ("hugepages", "true"),
    ("prefault", 0),
    ("index_entries", -1),
    ("index_entries", 2**31 + 1),
    ("session_quota_bytes", -1),
    ("session_quota_bytes", 2**64),
    ("deadline_s", -0.1),
    ("deadline_s", 3601),
    ("deadline_s", math.nan),
    ("deadline_s", math.inf),
    ("deadline_s", "1"),
    ("deadline_s", False),
    ("strict_registration", 1),
    ("exists_refreshes", None),
    ("policy", "fifo"),
    ("high_watermark", 1.1),
    ("high_watermark", -0.1),
    ("high_watermark", math.nan),
    ("low_watermark", 0.5),  # above a high watermark that is off
    ("low_watermark", -0.5),
    ("ranged_call_debug", "yes"),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        PoolSettings(**{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert "allowed: " in str(caught.value)


def test_every_setting_has_a_bad_value_above() -> None:
    assert {name for name, _ in BAD_VALUES} == {f.name for f in dataclasses.fields(PoolSettings)}


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PoolSettings().copy_threads = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "values",
    [
        {"capacity_bytes": 64},
        {"copy_threads": 64},
        {"nt_copy_min_bytes": 0},
        {"nt_copy_min_bytes": 2**63},
        {"index_entries": 1},
        {"session_quota_bytes": 2**63},
        {"deadline_s": 0},
        {"deadline_s": 3600},
        {"high_watermark": 1, "low_watermark": 1},
        {"memory": "memfd"},
        {"hugepages": False},
        {"prefault": True},
    ],
    ids=str,
)
def test_a_pool_opens_with_the_outermost_values(values: dict[str, object]) -> None:
    with Pool(PoolSettings(**{"capacity_bytes": 1 << 20, **values})) as pool:
        assert pool.exists(["a"]) == [False]


def test_the_environment_is_read_and_arguments_win() -> None:
    environ = {
        "UMBP_DRAM_CAPACITY_BYTES": "1048576",
        "UMBP_DRAM_COPY_THREADS": "1",
        "UMBP_DRAM_NT_COPY_MIN_BYTES": "4096",
        "UMBP_DRAM_HUGEPAGES": "No",
        "UMBP_DRAM_PREFAULT": "on",
        "UMBP_RANGED_CALL_DEBUG": "1",
        "UMBP_UNRELATED": "x",
    }
    settings = PoolSettings.from_env(environ, copy_threads=3, deadline_s=2)
    assert settings == PoolSettings(
        capacity_bytes=1 << 20,
        copy_threads=3,
        nt_copy_min_bytes=4096,
        hugepages=False,
        prefault=True,
        ranged_call_debug=True,
        deadline_s=2,
    )
    assert PoolSettings.from_env({}) == PoolSettings()


def test_a_pool_reads_the_environment_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBP_DRAM_COPY_THREADS", "7")
    assert Pool().settings.copy_threads == 7
    assert Pool(copy_threads=1).settings.copy_threads == 1
    assert Pool(PoolSettings()).settings.copy_threads == PoolSettings().copy_threads


@pytest.mark.parametrize("text", ["1", "true", "YES", " on "])
def test_every_word_for_true_is_true(text: str) -> None:
    assert PoolSettings.from_env({"UMBP_DRAM_PREFAULT": text}).prefault is True


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_every_word_for_false_is_false(text: str) -> None:
    assert PoolSettings.from_env({"UMBP_DRAM_HUGEPAGES": text}).hugepages is False


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("UMBP_DRAM_CAPACITY_BYTES", "1GB"),
        ("UMBP_DRAM_CAPACITY_BYTES", ""),
        ("UMBP_DRAM_CAPACITY_BYTES", "1"),
        ("UMBP_DRAM_COPY_THREADS", "two"),
        ("UMBP_DRAM_COPY_THREADS", "0"),
        ("UMBP_DRAM_NT_COPY_MIN_BYTES", "-1"),
        ("UMBP_DRAM_HUGEPAGES", "maybe"),
        ("UMBP_DRAM_PREFAULT", ""),
        ("UMBP_RANGED_CALL_DEBUG", "2"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(variable: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        PoolSettings.from_env({variable: text})
    assert variable in str(caught.value)
    assert repr(text) in str(caught.value)
    assert "allowed: " in str(caught.value)


def test_an_argument_that_hides_a_bad_variable_is_enough() -> None:
    environ = {"UMBP_DRAM_COPY_THREADS": "two"}
    assert PoolSettings.from_env(environ, copy_threads=2).copy_threads == 2


def test_an_unknown_setting_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'capacity'.*capacity_bytes"):
        PoolSettings.from_env({}, capacity=5)
    with pytest.raises(SettingsError, match="'capacity'"):
        Pool(capacity=5)
