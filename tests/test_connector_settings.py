"""Settings of the HiCache store: one object for pool, connector and SGLang; nothing unknown, nothing without effect."""

import pytest

from sglang_umbp import SettingsError
from sglang_umbp.hicache import extra_config
from sglang_umbp.hicache.extra_config import SGLANG_KEYS, read_settings


def test_without_a_word_everything_has_its_default():
    settings = read_settings(None, {})
    assert settings.connector.hold_lookups == 512
    assert settings.connector.extra_backend_tag == ""
    assert settings.pool.dram_capacity_bytes is None
    assert not settings.by_tensors


def test_keys_of_pool_and_connector_are_told_apart():
    settings = read_settings({"dram_capacity_bytes": "1GiB", "extra_backend_tag": "blue", "hold_s": 2}, {})
    assert settings.pool.dram_capacity_bytes == 1 << 30
    assert settings.connector.extra_backend_tag == "blue"
    assert settings.connector.hold_s == 2.0


def test_the_extra_config_wins_over_the_environment():
    environ = {"UMBP_EXTRA_BACKEND_TAG": "green", "UMBP_DRAM_CAPACITY": "1GiB"}
    assert read_settings({}, environ).connector.extra_backend_tag == "green"
    settings = read_settings({"extra_backend_tag": "blue", "dram_capacity_bytes": "2GiB"}, environ)
    assert settings.connector.extra_backend_tag == "blue"
    assert settings.pool.dram_capacity_bytes == 2 << 30


def test_keys_of_sglang_pass():
    assert read_settings(dict.fromkeys(SGLANG_KEYS, 1), {}).connector.hold_lookups == 512


def test_the_host_allocator_is_sglangs_own_where_sglang_looks_at_it():
    dynamic = {"backend_name": "umbp", "module_path": "sglang_umbp.hicache.store", "class_name": "UmbpStore"}
    assert not read_settings({**dynamic, "interface_v1": 1, "allocator": "shm"}, {}).by_tensors
    with pytest.raises(SettingsError, match=r"allocator='shm' has no effect with .* umbp.*dynamic only"):
        read_settings({"allocator": "shm"}, {})


@pytest.mark.parametrize("config", [[], ["dram_capacity_bytes"], "dram_capacity_bytes=1GiB", 7, False])
def test_an_extra_config_that_is_no_object_is_refused(config):
    with pytest.raises(SettingsError, match=f"extra config is a {type(config).__name__} .*allowed: a JSON object"):
        read_settings(config, {})


def test_what_sglang_adds_for_file_storage_path_passes():
    assert read_settings({"file_storage_path": "/somewhere"}, {}).connector.hold_lookups == 512


def test_an_unknown_key_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError) as refusal:
        read_settings({"dram_capacity": 1, "tags": 2}, {})
    for word in ("'dram_capacity', 'tags'", "dram_capacity_bytes", "extra_backend_tag", "prefetch_threshold"):
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("config", "environ", "words"),
    [
        ({"hold_lookups": -1}, {}, ("hold_lookups=-1", "0 to 65536")),
        ({"extra_backend_tag": 5}, {}, ("extra_backend_tag=5", "printable text")),
        ({"extra_backend_tag": "a\nb"}, {}, ("extra_backend_tag", "printable text")),
        ({}, {"UMBP_HOLD_S": "long"}, ("UMBP_HOLD_S='long'", "0.001 to 3600")),
        ({"copy_threads": "many"}, {}, ("copy_threads='many'", "1 to 64")),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(config, environ, words):
    with pytest.raises(SettingsError) as refusal:
        read_settings(config, environ)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("config", "environ", "word"),
    [
        ({"hold_s": 5}, {}, "hold_s"),
        ({"session_quota_bytes": "1GiB"}, {}, "session_quota_bytes"),
        ({}, {"UMBP_SESSION_QUOTA_BYTES": "1GiB"}, "UMBP_SESSION_QUOTA_BYTES"),
    ],
)
def test_a_setting_without_effect_is_refused(config, environ, word):
    with pytest.raises(SettingsError, match=f"^{word} has no effect with hold_lookups=0"):
        read_settings({"hold_lookups": 0} | config, environ)
    assert read_settings({"hold_lookups": 0}, {}).connector.hold_lookups == 0
    assert read_settings(config, environ).connector.hold_lookups == 512


@pytest.mark.parametrize(
    ("config", "environ", "word"),
    [
        ({"ssd_enabled": True}, {}, "ssd_enabled"),
        ({}, {"UMBP_MASTER_ADDRESS": "host:1"}, "UMBP_MASTER_ADDRESS"),
    ],
)
def test_a_mode_that_this_version_lacks_is_refused_by_name(config, environ, word):
    with pytest.raises(SettingsError, match=f"^{word}: this version has pools in the memory of one machine only"):
        read_settings(config, environ)
    assert read_settings({"ssd_enabled": False}, {"UMBP_MASTER_ADDRESS": ""}).connector.hold_lookups == 512


def test_the_pool_is_the_machines_where_an_address_is_given_or_several_ranks_share_the_machine():
    assert read_settings({"standalone_address": "unix:/run/x"}, {}).shared
    assert read_settings({}, {"UMBP_STANDALONE_ADDRESS": "unix:/run/x"}).shared
    assert read_settings({}, {}, ranks=2).shared
    assert not read_settings({}, {}, ranks=1).shared
    assert not read_settings({"mode": "embedded"}, {}, ranks=2).shared


@pytest.mark.parametrize("no", [False, None, 0, "", "0", "False", "no", "OFF"])
def test_a_mode_that_is_off_is_no_mode(no):
    environ = {"UMBP_MASTER_ADDRESS": ""} | ({} if no is None else {"UMBP_SSD_ENABLED": str(no)})
    assert read_settings({"ssd_enabled": no}, environ).connector.hold_lookups == 512


DYNAMIC = {"backend_name": "umbp", "module_path": "sglang_umbp.hicache.store", "class_name": "UmbpStore"}


def test_the_dynamic_backend_passes_tensors_unless_interface_v1_is_on():
    assert read_settings(DYNAMIC, {}).by_tensors
    assert not read_settings(DYNAMIC | {"interface_v1": 1}, {}).by_tensors


def test_ranks_of_one_machine_share_the_automatic_capacity_and_nothing_else(monkeypatch):
    monkeypatch.setattr(extra_config, "available_bytes", lambda: 64 << 30)
    monkeypatch.setattr(extra_config, "cgroup_limit", lambda: None)
    embedded = {"mode": "embedded"}
    for config in ({}, {"dram_capacity_bytes": "auto"}, {"capacity_bytes": None}):
        assert read_settings(embedded | config, {}, ranks=8).pool.dram_capacity_bytes == 2 << 30
        assert read_settings(config, {}, ranks=8).pool.dram_capacity_bytes is None
    auto = {"UMBP_DRAM_CAPACITY": "auto"}
    assert read_settings(embedded, auto, ranks=2).pool.dram_capacity_bytes == 8 << 30
    assert read_settings(embedded | {"dram_capacity_bytes": "3GiB"}, {}, ranks=8).pool.dram_capacity_bytes == 3 << 30
    assert read_settings({}, {}, ranks=1).pool.dram_capacity_bytes is None
