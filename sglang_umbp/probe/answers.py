"""What a server answers to one generation request, and how two answers differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ServerAnswerError


@dataclass(frozen=True)
class CachedTokens:
    """Prompt tokens that were not computed, by where they came from."""

    total: int
    device: int
    host: int
    storage: int

    def as_dict(self) -> dict[str, int]:
        """The four counts by name."""
        return {"total": self.total, "device": self.device, "host": self.host, "storage": self.storage}

    def __str__(self) -> str:
        return f"device {self.device}, host {self.host}, storage {self.storage} of {self.total} cached tokens"


@dataclass(frozen=True)
class Answer:
    """Generated token ids with their logprobs, where the prompt's tokens came from, and times in seconds."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: CachedTokens
    ttft_s: float
    total_s: float


def parse_answer(event: Mapping[str, Any], ttft_s: float, total_s: float) -> Answer:
    """The answer in the last event of a stream. Raises ServerAnswerError when ids, logprobs or counts are missing."""
    try:
        meta = event["meta_info"]
        tokens = [(float(entry[0]), int(entry[1])) for entry in meta["output_token_logprobs"]]
        details = meta.get("cached_tokens_details") or {}
        cached = CachedTokens(
            total=int(meta["cached_tokens"]),
            device=int(details.get("device", 0)),
            host=int(details.get("host", 0)),
            storage=int(details.get("storage", 0)),
        )
        completed = int(meta["completion_tokens"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        shown = json.dumps(event)[:300]
        raise ServerAnswerError(f"the answer is not one of SGLang's /generate ({error!r}): {shown}") from error
    if completed < 1 or len(tokens) != completed:
        raise ServerAnswerError(f"{completed} tokens came with {len(tokens)} logprobs: there is nothing to compare")
    return Answer(tuple(id_ for _, id_ in tokens), tuple(value for value, _ in tokens), cached, ttft_s, total_s)


def first_difference(reference: Answer, other: Answer, tolerance: float) -> str | None:
    """Where `other` first differs from `reference`, in words; None where nothing does.

    Ids must be equal, logprobs at most `tolerance` apart (0: equal); NaN is a difference.
    """
    if len(reference.ids) != len(other.ids):
        return f"{len(other.ids)} tokens instead of {len(reference.ids)}"
    for index, (wanted, got) in enumerate(zip(reference.ids, other.ids, strict=True)):
        if wanted != got:
            return f"token {index} is {got} instead of {wanted}"
        before, after = reference.logprobs[index], other.logprobs[index]
        if not abs(before - after) <= tolerance:
            return f"the logprob of token {index} is {after!r} instead of {before!r}"
    return None
