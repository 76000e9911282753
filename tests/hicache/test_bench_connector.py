"""`bench connector` over SGLang's real host pools, a few pages each, through the real command."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_umbp.bench import connector, connector_pools
from sglang_umbp.cli import main

TINY = ["--pages", "3", "--samples", "2", "--cache-bytes", "60000"]
MODELS = ("mha", "mla", "deepseek_v4")


def bench(*flags: str) -> int:
    return main(["bench", "connector", *TINY, *flags])


@pytest.mark.parametrize("layout", connector_pools.LAYOUTS)
def test_every_model_is_measured_and_every_byte_is_right(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert bench("--layout", layout, "--json", str(out)) == 0
    report = json.loads(out.read_text())
    assert set(report) == {"models", "failed_puts", "failed_gets", "verify", "settings"}
    assert [model["model"] for model in report["models"]] == list(MODELS)
    assert [model["page_bytes"] for model in report["models"]] == [1 << 20, 61 * 16 * 1152, 1430208]
    for model in report["models"]:
        assert set(model) == {"model", "page_bytes", "put", "get", "look_up_us"}
        for call in (model["put"], model["get"]):
            assert set(call) == {
                *("store_us", "native_us", "file_us", "store_cpu_us", "native_cpu_us", "file_cpu_us", "over_native"),
                *("over_native_of_minima", "over_native_of_cpu", "file_over_ours", "gbps"),
            }
            assert all(0 < call[f"{way}_us"]["min"] <= call[f"{way}_us"]["max"] for way in connector.WAYS)
    assert report["verify"] == {"pages": 3 * 3 * len(MODELS), "mismatches": 0}
    assert set(report["settings"]) == {
        *("pages", "layout", "samples", "copy_threads", "torch_threads", "seed", "cache_bytes"),
    }
    printed = capsys.readouterr().out
    assert all(f"{model} put" in printed and f"{model} get" in printed for model in MODELS)
    assert printed.splitlines()[-1] == "27 pages compared, 0 mismatches; 0 failed puts, 0 failed gets"


def spoiled(monkeypatch: pytest.MonkeyPatch, call: str, change: Any) -> None:
    from sglang_umbp.hicache.store import UmbpStore

    original = getattr(UmbpStore, call)
    monkeypatch.setattr(UmbpStore, call, lambda self, *args, **kwargs: change(original(self, *args, **kwargs)))


@pytest.mark.parametrize(
    ("call", "words"),
    [("batch_set_v1", "failed puts, 0 failed gets"), ("batch_get_v1", "0 failed puts, "), ("batch_exists", "puts, ")],
)
def test_a_failed_call_makes_the_command_fail(
    call: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(monkeypatch, call, lambda answers: answers - 1 if isinstance(answers, int) else [False, *answers[1:]])
    assert bench("--models", "mha") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert words in last
    assert not last.endswith("0 failed puts, 0 failed gets")


def test_a_get_that_copies_nothing_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sglang_umbp.hicache.store import UmbpStore

    monkeypatch.setattr(UmbpStore, "batch_get_v1", lambda self, keys, indices, extra=None: [True] * len(keys))
    assert bench("--models", "mla") == 1
    assert "9 pages compared, 3 mismatches" in capsys.readouterr().out


def test_files_of_others_are_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "page.bin"
    precious.write_bytes(b"1")
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path))
    assert bench("--models", "mha") == 1
    assert f"the file backend goes to {tmp_path}" in capsys.readouterr().err
    assert precious.exists()


def test_files_are_removed_from_the_folder_that_was_asked_for(tmp_path: Path) -> None:
    assert bench("--models", "mha", "--file-dir", str(tmp_path)) == 0
    assert list(tmp_path.iterdir()) == []
