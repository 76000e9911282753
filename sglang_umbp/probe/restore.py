"""The restore-equivalence probe: the same prompt computed, from the device's cache, and from the storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .answers import Answer
from .options import ProbeOptions
from .prompts import Prompts
from .server import ServerInfo, SglangServer
from .trial import Trial, problems

Prompt = list[int]


@dataclass(frozen=True)
class ProbeResult:
    """All trials, and a line for everything that was wrong with one."""

    options: ProbeOptions
    server: ServerInfo
    trials: tuple[Trial, ...]
    problems: tuple[str, ...]


def run_probe(
    server: SglangServer,
    options: ProbeOptions,
    notify: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> ProbeResult:
    """Runs every length and round. Raises ServerUnusableError before, ServerAnswerError on the way."""
    info = server.info()
    options.check_against(info)
    flushed = options.concurrency == 1
    one = FlushTrials(server, info, options, sleep) if flushed else EvictionTrials(server, info, options, sleep)
    trials: list[Trial] = []
    found: list[str] = []
    for tokens in options.tokens:
        for number in range(options.rounds):
            notify(f"{tokens} tokens, round {number + 1} of {options.rounds}")
            for trial in one.run(tokens, number):
                trials.append(trial)
                found += [
                    f"{tokens} tokens, round {number + 1}: {problem}"
                    for problem in problems(trial, options.tolerance, flushed)
                ]
    return ProbeResult(options, info, tuple(trials), tuple(found))


class _Trials:
    """What both kinds of trials need."""

    def __init__(
        self, server: SglangServer, info: ServerInfo, options: ProbeOptions, sleep: Callable[[float], None]
    ) -> None:
        self._server = server
        self._info = info
        self._options = options
        self._sleep = sleep
        self._prompts = Prompts(options.seed, options.vocab_size)


class FlushTrials(_Trials):
    """One prompt at a time; `/flush_cache` empties device and host between the device hit and the storage hit."""

    def run(self, tokens: int, number: int) -> Iterator[Trial]:
        """One trial."""
        length = self._info.prompt_length(tokens)
        prompt, new = self._prompts.fresh(length), self._options.new_tokens
        cold = self._server.generate(prompt, new)
        device = self._server.generate(prompt, new)
        self._sleep(self._options.settle_s)  # a flush drops pages that are still on their way to the storage
        self._server.flush_cache(self._options.flush_deadline_s)
        storage = self._server.generate(prompt, new)
        yield Trial(tokens, number, self._info.longest_hit(length), cold, device, storage)


class EvictionTrials(_Trials):
    """So many prompts at once; other prompts displace them from device and host before they are asked for again.

    Cold runs and device hits go in waves that half of the device's cache holds, so that a wave cannot evict itself;
    storage hits in waves that also a quarter of the host's holds: SGLang skips prefetches beyond half of it.
    """

    def run(self, tokens: int, number: int) -> Iterator[Trial]:
        """One trial a prompt."""
        length = self._info.prompt_length(tokens)
        prompts = [self._prompts.fresh(length) for _ in range(self._options.concurrency)]
        with ThreadPoolExecutor(self._options.concurrency) as workers:
            device_room, host_room = self._info.device_tokens // 2, self._info.host_tokens // 4
            waves = self._waves(prompts, device_room)
            warm = [pair for wave in waves for pair in self._cold_and_device(workers, wave)]
            self._sleep(self._options.settle_s)
            self._evict(workers, tokens)
            waves = self._waves(prompts, min(device_room, host_room or device_room))
            storage = [answer for wave in waves for answer in self._ask(workers, wave)]
        for (cold, device), last in zip(warm, storage, strict=True):
            yield Trial(tokens, number, self._info.longest_hit(length), cold, device, last)

    def _waves(self, prompts: Sequence[Prompt], room_tokens: int) -> Iterator[Sequence[Prompt]]:
        each = len(prompts[0]) + self._options.new_tokens + self._info.page_size
        size = max(1, room_tokens // each)
        return (prompts[first : first + size] for first in range(0, len(prompts), size))

    def _cold_and_device(self, workers: ThreadPoolExecutor, wave: Sequence[Prompt]) -> list[tuple[Answer, Answer]]:
        cold = self._ask(workers, wave)
        return list(zip(cold, self._ask(workers, wave), strict=True))

    def _evict(self, workers: ThreadPoolExecutor, tokens: int) -> None:
        count = -(-self._options.filler_tokens(self._info) // tokens)
        for first in range(0, count, self._options.concurrency):
            now = min(self._options.concurrency, count - first)
            self._ask(workers, [self._prompts.fresh(tokens) for _ in range(now)], new_tokens=1)

    def _ask(
        self, workers: ThreadPoolExecutor, prompts: Sequence[Prompt], new_tokens: int | None = None
    ) -> list[Answer]:
        new = self._options.new_tokens if new_tokens is None else new_tokens
        return list(workers.map(lambda prompt: self._server.generate(prompt, new), prompts))
