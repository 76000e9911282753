"""A seeded trace of multi-turn conversations, for replays without a file."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

from .trace import TraceRequest

BLOCK_TOKENS = 512  # as in the published traces
SYSTEM_PROMPTS = 3
MEAN_ARRIVAL_MS = 400.0
MEAN_THINKING_MS = 15_000.0
CONTINUE_PROBABILITY = 0.7
MAX_INPUT_TOKENS = 120_000


@dataclass
class Conversation:
    """A prompt that grows turn by turn; `block_ids` are the ids of its full blocks."""

    tokens: int
    block_ids: list[int] = field(default_factory=list)


class TraceGenerator:
    """Requests in order of arrival. The same seed gives the same trace.

    New conversations arrive at random and begin with one of a few system prompts; a turn's prompt
    holds the whole conversation so far, its answers included. A last block that is not full has an
    id of its own: it will never be seen again, since the next turn makes other tokens follow.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._next_id = 0
        self._system_prompts = [self._new_ids(self._random.randint(2, 8)) for _ in range(SYSTEM_PROMPTS)]
        self._waiting: list[tuple[float, int, Conversation]] = []
        self._next_arrival_ms = 0.0
        self._turns = 0  # breaks ties of two turns at the same time

    def take(self, count: int) -> list[TraceRequest]:
        """The next `count` requests."""
        return [self._next_request() for _ in range(count)]

    def _next_request(self) -> TraceRequest:
        if not self._waiting or self._next_arrival_ms <= self._waiting[0][0]:
            now_ms, conversation = self._next_arrival_ms, self._open_conversation()
            self._next_arrival_ms += self._random.expovariate(1 / MEAN_ARRIVAL_MS)
        else:
            now_ms, _, conversation = heapq.heappop(self._waiting)
        return self._turn(now_ms, conversation)

    def _open_conversation(self) -> Conversation:
        system = self._random.choice(self._system_prompts)
        return Conversation(tokens=len(system) * BLOCK_TOKENS, block_ids=list(system))

    def _turn(self, now_ms: float, conversation: Conversation) -> TraceRequest:
        conversation.tokens += 1 + int(self._random.lognormvariate(7.0, 1.2))
        conversation.tokens = min(conversation.tokens, MAX_INPUT_TOKENS)
        input_tokens, output_tokens = conversation.tokens, self._random.randint(1, 1000)
        ids = self._prompt_ids(conversation)
        self._turns += 1
        conversation.tokens += output_tokens
        if conversation.tokens < MAX_INPUT_TOKENS and self._random.random() < CONTINUE_PROBABILITY:
            later_ms = now_ms + self._random.expovariate(1 / MEAN_THINKING_MS)
            heapq.heappush(self._waiting, (later_ms, self._turns, conversation))
        return TraceRequest(float(int(now_ms)), input_tokens, output_tokens, ids)

    def _prompt_ids(self, conversation: Conversation) -> tuple[int, ...]:
        full, rest = divmod(conversation.tokens, BLOCK_TOKENS)
        conversation.block_ids += self._new_ids(full - len(conversation.block_ids))
        return tuple(conversation.block_ids + self._new_ids(1 if rest else 0))

    def _new_ids(self, count: int) -> list[int]:
        first = self._next_id
        self._next_id += count
        return list(range(first, first + count))
