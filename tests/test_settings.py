"""Settings: each bad value is refused by name, and the environment is read in one place."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import pytest

from sglang_umbp import Pool, PoolSettings, SettingsError, _native
from sglang_umbp.setting_values import DEFAULT

BAD_VALUES = [
    ("dram_capacity_bytes", 63),
    ("dram_capacity_bytes", 0),
    ("dram_capacity_bytes", -1),
    ("dram_capacity_bytes", 2**46 + 1),
    ("dram_capacity_bytes", 1e9),
    ("dram_capacity_bytes", "1 parsec"),
    ("dram_capacity_bytes", "65TiB"),
    ("dram_capacity_bytes", True),
    ("mode", "cluster"),
    ("mode", None),
    ("standalone_address", "/run/umbp.sock"),
    ("standalone_address", "unix:"),
    ("standalone_address", None),
    ("standalone_auto_start", "perhaps"),
    ("standalone_auto_start", 2),
    ("copy_threads", 0),
    ("copy_threads", 65),
    ("copy_threads", 1.5),
    ("copy_threads", "2 threads"),
    ("copy_threads", None),
    ("nt_copy_min_bytes", -1),
    ("nt_copy_min_bytes", 2**63 + 1),
    ("nt_copy_min_bytes", "auto"),
    ("copy_isa", "sse2"),
    ("copy_isa", None),
    ("memory", "hugetlb"),
    ("memory", None),
    ("hugepages", 2),
    ("hugepages", "maybe"),
    ("hugepages", 1.0),
    ("prefault", None),
    ("prefault_in_background", ""),
    ("prefault_in_background", True),  # without prefault
    ("numa_node", -2),
    ("numa_node", 1024),
    ("index_entries", 0.0),
    ("index_entries", -1),
    ("index_entries", 2**31 + 1),
    ("session_quota_bytes", False),
    ("session_quota_bytes", -1),
    ("session_quota_bytes", 2**64),
    ("device", "rocm"),
    ("device", None),
    ("pin_arena", "auto"),
    ("staging_bytes", 65535),
    ("staging_bytes", 2**30 + 1),
    ("device_grid_cap", -1),
    ("device_grid_cap", 1025),
    ("device_dma_min_bytes", -1),
    ("device_dma_min_bytes", 2**62 + 1),
    ("deadline_s", -0.1),
    ("deadline_s", 3601),
    ("deadline_s", math.nan),
    ("deadline_s", math.inf),
    ("deadline_s", "soon"),
    ("deadline_s", False),
    ("strict_registration", "strict"),
    ("exists_refreshes", None),
    ("eviction_policy", "fifo"),
    ("high_watermark", 1.1),
    ("high_watermark", -0.1),
    ("high_watermark", math.nan),
    ("low_watermark", 0.5),  # without a high watermark
    ("low_watermark", -0.5),
    ("latency_histograms", "log2"),
    ("ranged_call_debug", "verbose"),
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
        {"dram_capacity_bytes": 64},
        {"copy_threads": 64},
        {"copy_isa": "plain"},
        {"numa_node": 0},
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
        {"prefault": True, "prefault_in_background": True},
        {"prefault": True, "prefault_in_background": True, "memory": "memfd"},
        {"latency_histograms": True},
    ],
    ids=str,
)
def test_a_pool_opens_with_the_outermost_values(values: dict[str, object]) -> None:
    with Pool(PoolSettings(**{"dram_capacity_bytes": 1 << 20, **values})) as pool:
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
        ("UMBP_DRAM_CAPACITY", "1 pound"),
        ("UMBP_DRAM_CAPACITY_BYTES", "1GG"),
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
    for refused in (lambda: PoolSettings.from_env({}, capacity=5), lambda: Pool(capacity=5)):
        with pytest.raises(SettingsError, match=r"'capacity'.*capacity_bytes.*dram_capacity_bytes"):
            refused()
    with pytest.raises(SettingsError, match="unknown setting 'ssd'"):
        PoolSettings.from_env({}, config={"ssd": True})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"low_watermark": 0.5}, "low_watermark=0.5"),
        ({"high_watermark": 0.9}, "low_watermark=0.0"),  # would evict everything
        ({"high_watermark": 0.9, "low_watermark": 0.95}, "low_watermark=0.95"),
        ({"prefault_in_background": True}, "prefault_in_background=True"),
        ({"copy_isa": "plain", "nt_copy_min_bytes": 4096}, "nt_copy_min_bytes=4096"),
        ({"mode": "embedded", "standalone_address": "unix:/run/x"}, "mode='embedded'"),
    ],
    ids=str,
)
def test_a_value_without_effect_beside_the_others_is_refused(values: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        PoolSettings(**values)
    assert str(caught.value).startswith(f"{named}; allowed: ")


def test_the_refusal_of_a_rule_names_the_variable() -> None:
    with pytest.raises(SettingsError, match=r"^UMBP_DRAM_LOW_WM=0.5; allowed: only with a high_watermark"):
        PoolSettings.from_env({"UMBP_DRAM_LOW_WM": "0.5"})


def test_config_wins_over_the_environment_and_arguments_over_both() -> None:
    environ = {"UMBP_DRAM_COPY_THREADS": "3", "UMBP_DEADLINE_S": "3", "UMBP_DRAM_NUMA_NODE": "3"}
    settings = PoolSettings.from_env(environ, {"deadline_s": 2, "copy_threads": 2}, copy_threads=1)
    assert (settings.numa_node, settings.deadline_s, settings.copy_threads) == (3, 2, 1)


def test_each_value_knows_where_it_came_from() -> None:
    settings = PoolSettings.from_env({"UMBP_DRAM_CAPACITY": "1GiB"}, {"policy": "lru"}, copy_threads=1)
    assert settings.source("dram_capacity_bytes") == ("environment", "UMBP_DRAM_CAPACITY")
    assert settings.source("eviction_policy") == ("argument", "policy")
    assert str(settings.source("copy_threads")) == "argument copy_threads"
    assert settings.source("hugepages") == DEFAULT
    assert str(settings.source("hugepages")) == "default"


def test_where_a_value_came_from_does_not_make_records_differ() -> None:
    assert PoolSettings.from_env({"UMBP_DRAM_COPY_THREADS": "1"}) == PoolSettings(copy_threads=1)
    assert hash(PoolSettings(copy_threads="1")) == hash(PoolSettings(copy_threads=1))


def test_a_record_can_be_changed_copied_and_pickled() -> None:
    settings = PoolSettings.from_env({"UMBP_DRAM_CAPACITY": "1GiB"})
    assert dataclasses.replace(settings, copy_isa="plain").dram_capacity_bytes == 1 << 30
    for twin in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert twin == settings
        assert twin.source("dram_capacity_bytes") == settings.source("dram_capacity_bytes")


def test_other_names_of_a_setting_are_accepted_one_at_a_time() -> None:
    assert PoolSettings(capacity_bytes="64MiB") == PoolSettings(dram_capacity_bytes=64 << 20)
    assert PoolSettings(use_hugepages=0) == PoolSettings(hugepages=False)
    with pytest.raises(SettingsError, match="capacity_bytes and dram_capacity_bytes are the same setting"):
        PoolSettings(capacity_bytes=64, dram_capacity_bytes=64)
    with pytest.raises(SettingsError, match="UMBP_DRAM_CAPACITY and UMBP_DRAM_CAPACITY_BYTES are the same setting"):
        PoolSettings.from_env({"UMBP_DRAM_CAPACITY": "64", "UMBP_DRAM_CAPACITY_BYTES": "64"})


def test_no_name_or_variable_stands_for_two_settings() -> None:
    abouts = [PoolSettings.about(item.name) for item in dataclasses.fields(PoolSettings)]
    names = [item.name for item in dataclasses.fields(PoolSettings)] + [a for about in abouts for a in about.aliases]
    variables = [variable for about in abouts for variable in about.variables]
    assert len(set(names)) == len(names)
    assert len(set(variables)) == len(variables)
    assert all(variable.startswith("UMBP_") for variable in variables)


def test_every_setting_has_a_meaning_a_range_and_a_default_that_its_kind_takes() -> None:
    for item in dataclasses.fields(PoolSettings):
        about = PoolSettings.about(item.name)
        assert about.meaning
        assert about.kind.allowed
        assert about.kind.parse(item.default) == item.default


def test_a_machine_without_the_instructions_refuses_them_by_name() -> None:
    lacking = next(isa for isa in ("neon", "avx512") if isa not in _native.copy_isas())
    with pytest.raises(SettingsError, match=f"copy_isa='{lacking}'; allowed on this CPU: auto, "):
        Pool(copy_isa=lacking).open()


def test_a_machine_without_the_node_refuses_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBP_DRAM_NUMA_NODE", "1023")
    with pytest.raises(SettingsError, match="UMBP_DRAM_NUMA_NODE=1023; allowed: -1, or a node of this machine: "):
        Pool().open()
