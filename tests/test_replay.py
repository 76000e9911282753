"""`replay` through the real command, its trace reader, generator and LRU reference."""

import io
import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sglang_umbp import Pool
from sglang_umbp.cli import main
from sglang_umbp.replay import replay as driver
from sglang_umbp.replay.generator import BLOCK_TOKENS, TraceGenerator
from sglang_umbp.replay.lru_reference import LruReference
from sglang_umbp.replay.pages import PageRows
from sglang_umbp.replay.progress import Progress
from sglang_umbp.replay.trace import TraceError, parse_lines, read_trace

GOOD = '{"timestamp": 27, "input_length": 700, "output_length": 5, "hash_ids": [46, 47]}'
KEYS = {
    "requests",
    "blocks",
    "hit_blocks",
    "hit_ratio",
    "lru_reference_hit_blocks",
    "bytes_restored",
    "bytes_stored",
    "evicted",
    "ttfl_us",
    "lookup_us",
    "verified_pages",
    "mismatches",
    "failed_puts",
    "failed_gets",
    "mode",
    "policy",
    "capacity_pages",
    "page_bytes",
    "seconds",
}


def replay_json(path: Path, *flags: str) -> dict[str, Any]:
    assert main(["replay", "--json", str(path), "--verify", *flags]) == 0
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


def write_trace(path: Path, requests: Sequence[Sequence[int]]) -> Path:
    lines = [
        json.dumps(
            {
                "timestamp": number,
                "input_length": 512 * len(blocks),
                "output_length": 1,
                "hash_ids": list(blocks),
            }
        )
        for number, blocks in enumerate(requests)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_json_file_holds_every_documented_key(tmp_path: Path) -> None:
    report = replay_json(tmp_path / "out.json", "--requests", "60", "--capacity-pages", "200")
    assert set(report) == KEYS
    assert set(report["ttfl_us"]) == {"p50", "p90", "p99"}
    assert report["requests"] == 60
    assert 0 < report["hit_blocks"] == report["verified_pages"]
    assert report["hit_ratio"] == pytest.approx(report["hit_blocks"] / report["blocks"], abs=1e-6)
    assert report["bytes_restored"] == report["hit_blocks"] * report["page_bytes"]
    assert report["evicted"] > 0
    assert report["mismatches"] == report["failed_puts"] == report["failed_gets"] == 0


@pytest.mark.parametrize("capacity", [1, 7, 100, 1000, 100_000])
def test_hits_are_those_of_a_plain_lru(capacity: int, tmp_path: Path) -> None:
    flags = ["--requests", "120", "--capacity-pages", str(capacity)]
    report = replay_json(tmp_path / "out.json", *flags)
    reference = report["lru_reference_hit_blocks"]
    assert abs(report["hit_blocks"] - reference) <= 0.01 * reference


def test_a_trace_file_is_replayed_with_several_pools(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", [[0, 1, 2], [0, 1, 3], [9], [0, 1, 2, 4]])
    flags = ["--pools", "a:3:100:0/1;b:2:64:0,4", "--layer-group", "2", "--capacity-pages", "50"]
    report = replay_json(tmp_path / "out.json", "--trace", str(trace), *flags)
    assert (report["requests"], report["blocks"]) == (4, 11)
    assert report["hit_blocks"] == report["lru_reference_hit_blocks"] == 5
    assert report["page_bytes"] == 428
    assert report["bytes_restored"] == 5 * 428
    assert report["bytes_stored"] == 6 * 428
    assert report["verified_pages"] == 2 * 5


def test_requests_longer_than_the_rows_go_through_in_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "MAX_ROWS", 4)
    trace = write_trace(tmp_path / "trace.jsonl", [list(range(11)), list(range(11)), []])
    report = replay_json(tmp_path / "out.json", "--trace", str(trace))
    assert report["hit_blocks"] == report["lru_reference_hit_blocks"] == 11


def test_only_the_first_requests_of_a_file_are_replayed_when_asked(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.jsonl", [[0], [0], [0]])
    report = replay_json(tmp_path / "out.json", "--trace", str(trace), "--requests", "2")
    assert report["requests"] == 2


class FaultyPool(Pool):
    """A pool whose last put of a call is reported False."""

    def put_pages(self, *arguments: Any, **options: Any) -> Any:
        return [*super().put_pages(*arguments, **options)[:-1], False]


class FaultySession:
    """A session whose reads do nothing and are reported as `result`."""

    def __init__(self, session: Any, result: bool) -> None:
        self._session, self._result = session, result
        self.prefix = session.prefix

    def __enter__(self) -> "FaultySession":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def get_pages(self, layout: Any, rows: Any, layers: Any, *, first: int) -> list[bool]:
        return [self._result] * len(rows)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_a_failed_put_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "Pool", FaultyPool)
    assert main(["replay", "--requests", "20"]) == 1
    assert not last_line(capsys).startswith("0 failed puts")


@pytest.mark.parametrize(("result", "told"), [(False, "failed gets"), (True, "mismatches")])
def test_a_read_that_fails_or_does_nothing_makes_the_command_fail(
    result: bool, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class FaultyReads(Pool):
        def pin(self, *arguments: Any, **options: Any) -> Any:
            return FaultySession(super().pin(*arguments, **options), result)

    monkeypatch.setattr(driver, "Pool", FaultyReads)
    assert main(["replay", "--requests", "20", "--verify"]) == 1
    assert int(last_line(capsys).split(f" {told}")[0].split()[-1]) > 0


def test_a_wrong_byte_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill = PageRows.fill

    def fill_wrongly(self: PageRows, rows: Any, blocks: Sequence[int]) -> None:
        fill(self, rows, blocks)
        self.buffers.pools[0].pages[-1, rows[0], -1] ^= 1

    monkeypatch.setattr(PageRows, "fill", fill_wrongly)
    assert main(["replay", "--requests", "20", "--verify"]) == 1
    assert " 0 mismatches" not in last_line(capsys)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "'nonsense' is not JSON"),
        ("[1]", "[1] is not an object"),
        ('{"timestamp": 0}', "'input_length' is missing"),
        (GOOD.replace("27", '"noon"'), "timestamp is 'noon'"),
        (GOOD.replace("27", "-1"), "timestamp is -1"),
        (GOOD.replace("27", "NaN"), "timestamp is nan"),
        (GOOD.replace("700", "-3"), "input_length is -3"),
        (GOOD.replace(": 5", ": 2.5"), "output_length is 2.5"),
        (GOOD.replace("[46, 47]", "12"), "hash_ids is 12"),
        (GOOD.replace("47", "true"), "hash_ids[1] is True"),
        (GOOD.replace("47", "-47"), "hash_ids[1] is -47"),
        (GOOD.replace("47", str(1 << 63)), "hash_ids[1] is 9223372036854775808"),
    ],
)
def test_a_line_that_is_no_request_is_refused_with_its_number_and_value(line: str, told: str) -> None:
    with pytest.raises(TraceError) as refusal:
        list(parse_lines([GOOD, "", line], "x.jsonl"))
    assert "x.jsonl, line 3" in str(refusal.value)
    assert told in str(refusal.value)


def test_bad_and_missing_traces_end_the_command_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(GOOD + "\n{}\n")
    assert main(["replay", "--trace", str(bad)]) == 2
    assert "line 2" in capsys.readouterr().err
    assert main(["replay", "--trace", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert main(["replay", "--capacity-pages", "0"]) == 2
    assert "'0' is not allowed" in capsys.readouterr().err


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(empty)


def test_the_generator_repeats_itself_for_a_seed_and_grows_conversations() -> None:
    requests = TraceGenerator(5).take(200)
    assert requests == TraceGenerator(5).take(200)
    assert requests != TraceGenerator(6).take(200)
    times_ms = [request.timestamp_ms for request in requests]
    assert times_ms == sorted(times_ms)
    for request in requests:
        assert len(request.block_ids) == -(-request.input_tokens // BLOCK_TOKENS)
        assert len(set(request.block_ids)) == len(request.block_ids)
    unlimited = LruReference(1 << 40, 512)
    assert sum(unlimited.request(request.block_ids) for request in requests) > 0


def test_generated_ids_stand_for_a_block_and_all_before_it() -> None:
    before: dict[int, tuple[int, ...]] = {}
    for request in TraceGenerator(3).take(300):
        for index, block in enumerate(request.block_ids):
            assert before.setdefault(block, request.block_ids[:index]) == request.block_ids[:index]


def twin_lru_hits(requests: Sequence[Sequence[int]], capacity: int) -> int:
    """The rule once more, over a list in order of age: slow and plain."""
    ages: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for blocks in requests:
        leading = next((i for i, b in enumerate(blocks) if b not in ages), len(blocks))
        for block in blocks[:leading]:
            ages.move_to_end(block)
        hits += leading
        rest = blocks[leading:]
        victims = [page for page in ages if page not in rest]
        missing = [block for block in rest if block not in ages]
        for page in victims[: max(0, len(ages) + len(missing) - capacity)]:
            del ages[page]
        for block in missing[: capacity - len(ages)]:
            ages[block] = None
        for block in rest:
            if block in ages:
                ages.move_to_end(block)
    return hits


@pytest.mark.parametrize("capacity", [1, 3, 8, 20])
def test_the_lru_reference_follows_its_rule(capacity: int) -> None:
    random = Random(capacity)
    requests = [random.sample(range(24), random.randint(0, 9)) for _ in range(2000)]
    reference = LruReference(capacity, 512)
    assert sum(map(reference.request, requests)) == twin_lru_hits(requests, capacity)


def test_the_lru_reference_evicts_the_oldest_page_and_never_one_of_the_same_put() -> None:
    lru = LruReference(2, 512)
    assert lru.request([1, 2]) == 0
    assert lru.request([1]) == 1
    assert lru.request([3]) == 0
    assert lru.request([1]) == 1
    assert lru.request([2]) == 0
    assert lru.request([4, 5, 6]) == 0
    assert lru.request([4, 5, 6]) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_drawn_on_terminals_only() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress(10, stream, clock=lambda: 0.0)
        progress.show(5, "half")
        progress.show(6, "too soon")
        progress.finish()
    assert file.getvalue() == ""
    assert "5/10 half" in terminal.getvalue()
    assert "too soon" not in terminal.getvalue()


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sglang-umbp ")
    assert main([]) == 2


@pytest.mark.parametrize(
    ("content", "told"), [(b"\x1f\x8b\x08\xff", "compressed"), (b"[" * 100_000, "nested too deeply")]
)
def test_a_trace_that_is_no_text_or_nested_without_end_is_refused_in_one_line(
    content: bytes, told: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl.gz"
    trace.write_bytes(content)
    with pytest.raises(TraceError, match=told):
        read_trace(trace)
