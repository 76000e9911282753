"""`sglang-umbp probe restore` at the real server: it passes, and it sees that other bytes come back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_server import ADMIN_KEY

from sglang_umbp.cli import main

pytestmark = pytest.mark.timeout(600)


def probe(server: Any, *flags: str) -> int:
    arguments = ["--tokens", "100,1000", "--vocab-size", "500", "--admin-api-key", ADMIN_KEY, *flags]
    return main(["probe", "restore", "--url", server.url, *arguments])


def test_restored_prompts_answer_like_the_device_hit(umbp_server: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert probe(umbp_server, "--rounds", "2", "--json", str(out)) == 0
    report = json.loads(out.read_text())
    assert [(each["tokens"], each["storage_tokens"]) for each in report["lengths"]] == [(100, 96), (1000, 992)]
    assert report["server"]["storage_backend"] == "umbp"


def test_prompts_that_others_evicted_come_from_storage(umbp_server: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code = probe(umbp_server, "--tokens", "500", "--concurrency", "4", "--tolerance", "0.1", "--json", str(out))
    report = json.loads(out.read_text())
    assert code == 0, report["problems"]
    assert len(report["trials"]) == 4


@pytest.fixture
def altered_puts(umbp_server: Any) -> Iterator[None]:
    """What the server stores during the test has other bytes."""
    switch = umbp_server.log_path.with_name("switch")
    switch.touch()
    yield
    switch.unlink()
    umbp_server.clear_storage()


def test_other_bytes_than_were_stored_make_the_command_fail(
    umbp_server: Any, altered_puts: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(umbp_server, "--tokens", "100") == 1
    assert "the storage hit differs from the device hit" in capsys.readouterr().out
