"""`sglang-umbp probe restore` against a stand-in of the server: what it accepts, and every fault it must report."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_sglang_server import PAGE_SIZE, FakeSglangServer

from sglang_umbp.cli import build_parser, main
from sglang_umbp.probe.answers import Answer, CachedTokens, first_difference
from sglang_umbp.probe.command import options_from
from sglang_umbp.probe.restore import run_probe
from sglang_umbp.probe.server import SglangServer

SPREAD = {"median", "min", "max", "p99"}
WAYS = {"cold", "device", "storage"}


def probe(fake: FakeSglangServer, *flags: str) -> int:
    arguments = ["--tokens", "100,200", "--settle-s", "0", "--new-tokens", "4", *flags]
    with fake.serving() as url:
        return main(["probe", "restore", "--url", url, *arguments])


def last_event(change: Any) -> Any:
    def spoil(events: list[dict]) -> list[dict]:
        change(events[-1])
        return events

    return spoil


@pytest.mark.parametrize("flags", [[], ["--concurrency", "4"]])
def test_every_request_of_a_server_with_replicas_goes_to_the_same_one(flags: list[str]) -> None:
    fake = FakeSglangServer()
    fake.replicas = 2
    assert probe(fake, *flags) == 0
    assert {request["routed_dp_rank"] for request in fake.requests} == {0}


def test_a_server_that_restores_what_it_stored_passes(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSglangServer()
    assert probe(fake, "--rounds", "3") == 0
    assert "6 trials: ids and logprobs of every storage hit equal" in capsys.readouterr().out
    assert [len(request["input_ids"]) for request in fake.requests] == [100] * 9 + [200] * 9
    assert len({tuple(request["input_ids"]) for request in fake.requests}) == 6


def test_requests_are_greedy_and_ask_for_logprobs_of_what_is_generated() -> None:
    fake = FakeSglangServer()
    assert probe(fake) == 0
    for request in fake.requests:
        assert request["sampling_params"] == {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
        assert request["return_logprob"] is True
        assert "routed_dp_rank" not in request  # one replica: nothing that another SGLang may refuse
        assert "logprob_start_len" not in request  # logprobs of the prompt would make SGLang compute all of it


def test_json_has_every_documented_key(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert probe(FakeSglangServer(), "--json", str(out)) == 0
    report = json.loads(out.read_text())
    assert set(report) == {"lengths", "trials", "problems", "server", "settings"}
    for each, tokens, hit in zip(report["lengths"], (100, 200), (96, 192), strict=True):
        assert set(each) == {"tokens", "trials", "ttft_ms", "storage_tokens", "cold_over_storage"}
        assert (each["tokens"], each["trials"], each["storage_tokens"]) == (tokens, 1, hit)
        assert set(each["ttft_ms"]) == WAYS
        assert all(set(spread) == SPREAD for spread in each["ttft_ms"].values())
    for trial in report["trials"]:
        assert set(trial) == {"tokens", "round", "ttft_ms", "total_ms", "cached_tokens"}
        assert set(trial["cached_tokens"]) == WAYS
        assert set(trial["cached_tokens"]["cold"]) == {"total", "device", "host", "storage"}
    assert set(report["server"]) == {
        *("version", "model", "page_size", "storage_backend", "device_tokens", "host_tokens"),
    }
    assert set(report["settings"]) == {"rounds", "concurrency", "new_tokens", "tolerance", "settle_s", "seed"}


def set_id(event: dict) -> None:
    event["meta_info"]["output_token_logprobs"][2][1] += 1


def set_logprob(event: dict) -> None:
    event["meta_info"]["output_token_logprobs"][3][0] += 1e-6


def set_nan(event: dict) -> None:
    event["meta_info"]["output_token_logprobs"][0][0] = math.nan


def drop_token(event: dict) -> None:
    event["meta_info"]["output_token_logprobs"].pop()
    event["meta_info"]["completion_tokens"] -= 1


def half_from_storage(event: dict) -> None:
    event["meta_info"]["cached_tokens_details"].update(storage=48, host=48)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_id, "the storage hit differs from the device hit: token 2 is"),
        (set_logprob, "the storage hit differs from the device hit: the logprob of token 3 is"),
        (set_nan, "the storage hit differs from the device hit: the logprob of token 0 is nan"),
        (drop_token, "the storage hit differs from the device hit: 3 tokens instead of 4"),
        (half_from_storage, "the storage hit was none of 96 tokens (device 0, host 48, storage 48 of 96 cached"),
    ],
)
def test_every_difference_makes_the_command_fail(change: Any, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSglangServer()
    fake.spoil_storage = last_event(change)
    assert probe(fake, "--tokens", "100") == 1
    printed = capsys.readouterr().out
    assert words in printed
    assert printed.splitlines()[-1] == "1 problems in 1 trials"


def test_logprobs_may_differ_by_the_tolerance_and_no_more() -> None:
    for tolerance, code in (("1e-5", 0), ("1e-7", 1)):
        fake = FakeSglangServer()
        fake.spoil_storage = last_event(set_logprob)
        assert probe(fake, "--tolerance", tolerance) == code


def test_a_miss_instead_of_a_storage_hit_makes_the_command_fail(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSglangServer()
    fake.stores = False
    assert probe(fake, "--tokens", "100") == 1
    assert "the storage hit was none of 96 tokens (device 0, host 0, storage 0" in capsys.readouterr().out


def test_the_reference_is_the_device_hit_and_not_the_cold_run() -> None:
    fake = FakeSglangServer()
    fake.spoil_cold = last_event(set_id)
    assert probe(fake) == 0


def test_pages_have_time_to_reach_the_storage_before_the_flush() -> None:
    fake, waits = FakeSglangServer(), []
    fake.stores = False

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        fake.store_what_is_in_memory()

    with fake.serving() as url:
        arguments = ["probe", "restore", "--url", url, "--tokens", "100", "--settle-s", "7"]
        options = options_from(build_parser().parse_args(arguments))
        result = run_probe(SglangServer(url, 10), options, lambda text: None, sleep)
    assert (result.problems, waits) == ((), [7])


def test_a_device_hit_that_was_none_cannot_be_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(FakeSglangServer(device_tokens=130, hicache_ratio=-0.9), "--tokens", "100") == 1
    assert "the device hit was none of 96 tokens" in capsys.readouterr().out


def test_a_cold_run_that_was_not_cold_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSglangServer()
    assert probe(fake, "--tokens", "100", "--seed", "1") == 0
    assert probe(fake, "--tokens", "100", "--seed", "1") == 1
    assert "the cold run was not cold" in capsys.readouterr().out


def test_a_busy_server_is_asked_to_flush_again() -> None:
    fake = FakeSglangServer()
    fake.busy_flushes = 2
    assert probe(fake, "--tokens", "100") == 0
    assert fake.busy_flushes == 0


def test_a_server_that_stays_busy_ends_the_probe(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeSglangServer()
    fake.busy_flushes = 1000
    assert probe(fake, "--tokens", "100", "--timeout-s", "1") == 1
    assert "/flush_cache failed: HTTP 400: busy or flushed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--api-key", "one", "--admin-api-key", "two"], 0),
        (["--api-key", "one"], 1),
        (["--admin-api-key", "two"], 1),
        ([], 1),
    ],
)
def test_each_request_has_the_key_it_needs(flags: list[str], code: int) -> None:
    fake = FakeSglangServer()
    fake.keys = {"/generate": "Bearer one", "/flush_cache": "Bearer two"}
    assert probe(fake, "--tokens", "100", *flags) == code


def test_at_once_prompts_are_evicted_by_others_instead_of_flushed() -> None:
    fake = FakeSglangServer()
    fake.busy_flushes = 1000  # a flush would fail
    fake.meeting = threading.Barrier(2, timeout=20)
    assert probe(fake, "--tokens", "100", "--concurrency", "8", "--rounds", "2") == 0
    filler = [request for request in fake.requests if request["sampling_params"]["max_new_tokens"] == 1]
    assert sum(len(request["input_ids"]) for request in filler) >= 2 * 2 * 3 * fake.device_tokens
    assert len(fake.requests) - len(filler) == 2 * 3 * 8


def test_too_little_eviction_is_not_taken_for_a_storage_hit(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(FakeSglangServer(), "--tokens", "100", "--concurrency", "4", "--evict-tokens", "100") == 1
    assert "the storage hit was none of 96 tokens (device 96" in capsys.readouterr().out


def test_a_wave_fits_into_half_of_the_device() -> None:
    fake = FakeSglangServer(device_tokens=1024, hicache_ratio=0.0)
    assert probe(fake, "--tokens", "200", "--concurrency", "16") == 0


@pytest.mark.parametrize(
    ("prepare", "flags", "code", "words"),
    [
        ({"refusal": "no such token"}, [], 1, "HTTP 400: no such token"),
        ({"storage_backend": None}, [], 2, "no --hicache-storage-backend"),
        ({}, ["--tokens", "16"], 2, "--tokens 16 is not allowed: this server serves prompts of 17"),
        ({}, ["--tokens", "4000"], 2, "to 2048 tokens"),
        ({}, ["--tolerance", "nan"], 2, "'nan' is not allowed"),
        ({}, ["--concurrency", "0"], 2, "'0' is not allowed"),
        ({}, ["--url", "localhost:30000"], 2, "expected http://HOST:PORT"),
        ({"spoil_storage": lambda events: []}, [], 1, "the stream ended early"),
        ({"spoil_storage": lambda events: [{"error": {"message": "abort"}}]}, [], 1, "abort"),
        ({"spoil_storage": lambda events: [{"meta_info": {}}]}, [], 1, "not one of SGLang's /generate"),
        (
            {"spoil_storage": last_event(lambda event: event["meta_info"]["output_token_logprobs"].clear())},
            [],
            1,
            "4 tokens came with 0 logprobs",
        ),
    ],
)
def test_what_cannot_be_probed_is_said(
    prepare: dict, flags: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeSglangServer()
    vars(fake).update(prepare)
    assert probe(fake, *flags) == code
    assert words in capsys.readouterr().err


def test_no_server_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeSglangServer().serving() as url:
        pass
    assert main(["probe", "restore", "--url", url]) == 2
    assert f"{url}/server_info gives no answer of SGLang" in capsys.readouterr().err


def test_equal_answers_have_no_difference_whatever_their_times() -> None:
    one = Answer((1, 2), (-0.5, -1.5), CachedTokens(0, 0, 0, 0), 0.1, 0.2)
    other = Answer((1, 2), (-0.5, -1.5), CachedTokens(16, 0, 0, 16), 0.3, 0.4)
    assert first_difference(one, other, 0.0) is None


def test_no_prompt_is_of_whole_pages_alone() -> None:
    """SGLang would go on with another computation of the last page than the hit's own."""
    fake = FakeSglangServer()
    assert probe(fake, "--tokens", f"{4 * PAGE_SIZE},{4 * PAGE_SIZE + 1}") == 0
    lengths = {len(request["input_ids"]) for request in fake.requests}
    assert lengths == {4 * PAGE_SIZE + PAGE_SIZE // 2, 4 * PAGE_SIZE + 1}
