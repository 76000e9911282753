"""The probe's report: JSON and table."""

from __future__ import annotations

from ..bench.stats import summarize
from ..bench.tables import aligned
from ..reports import Json
from .restore import ProbeResult
from .trial import WAYS, Trial

SHOWN_PROBLEMS = 20


def as_json(result: ProbeResult) -> Json:
    """The object that --json writes."""
    options, server = result.options, result.server
    return {
        "lengths": [_length_json(result, tokens) for tokens in options.tokens],
        "trials": [_trial_json(trial) for trial in result.trials],
        "problems": list(result.problems),
        "server": {
            "version": server.version,
            "model": server.model,
            "page_size": server.page_size,
            "storage_backend": server.storage_backend,
            "device_tokens": server.device_tokens,
            "host_tokens": server.host_tokens,
        },
        "settings": {
            "rounds": options.rounds,
            "concurrency": options.concurrency,
            "new_tokens": options.new_tokens,
            "tolerance": options.tolerance,
            "settle_s": options.settle_s,
            "seed": options.seed,
        },
    }


def _length_json(result: ProbeResult, tokens: int) -> Json:
    trials = [trial for trial in result.trials if trial.tokens == tokens]
    figures = {way: summarize([trial.answer(way).ttft_s * 1000 for trial in trials]) for way in WAYS}
    return {
        "tokens": tokens,
        "trials": len(trials),
        "ttft_ms": {way: figures[way].as_dict() for way in WAYS},
        "storage_tokens": min(trial.storage.cached.storage for trial in trials),
        "cold_over_storage": round(figures["cold"].median / figures["storage"].median, 3),
    }


def _trial_json(trial: Trial) -> Json:
    return {
        "tokens": trial.tokens,
        "round": trial.round,
        "ttft_ms": {way: round(trial.answer(way).ttft_s * 1000, 3) for way in WAYS},
        "total_ms": {way: round(trial.answer(way).total_s * 1000, 3) for way in WAYS},
        "cached_tokens": {way: trial.answer(way).cached.as_dict() for way in WAYS},
    }


def render(report: Json) -> str:
    """The table of all lengths, then what was wrong."""
    server, settings = report["server"], report["settings"]
    header = ("prompt tokens", "trials", *(f"{way} TTFT ms" for way in WAYS), "cold/storage", "storage tokens")
    between = "natural eviction" if settings["concurrency"] > 1 else "/flush_cache"
    return "\n".join(
        [
            f"probe restore: {server['model']}, SGLang {server['version']}, storage {server['storage_backend']},"
            f" pages of {server['page_size']} tokens; {settings['concurrency']} at once, {between} before"
            " the storage hit; medians",
            "",
            *aligned([header, *(_row(each) for each in report["lengths"])]),
            "",
            *_problem_lines(report["problems"]),
            _verdict(report),
        ]
    )


def _row(each: Json) -> tuple[str, ...]:
    ttft = (f"{each['ttft_ms'][way]['median']:.1f}" for way in WAYS)
    return (
        str(each["tokens"]),
        str(each["trials"]),
        *ttft,
        f"{each['cold_over_storage']:.2f}",
        str(each["storage_tokens"]),
    )


def _problem_lines(problems: list[str]) -> list[str]:
    more = len(problems) - SHOWN_PROBLEMS
    return problems[:SHOWN_PROBLEMS] + ([f"... and {more} more"] if more > 0 else [])


def _verdict(report: Json) -> str:
    wrong, trials = len(report["problems"]), len(report["trials"])
    if wrong:
        return f"{wrong} problems in {trials} trials"
    return f"{trials} trials: ids and logprobs of every storage hit equal the device hit's"
