"""Options of the restore probe."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ServerUnusableError
from .server import ServerInfo


@dataclass(frozen=True)
class ProbeOptions:
    """What to ask for. `tokens`: prompt lengths; `evict_tokens`: filler that displaces what the caches hold, None:
    worked out from the server's capacities.
    """

    tokens: tuple[int, ...]
    rounds: int
    concurrency: int
    new_tokens: int
    settle_s: float
    tolerance: float
    flush_deadline_s: float
    evict_tokens: int | None
    vocab_size: int
    seed: int

    def check_against(self, info: ServerInfo) -> None:
        """Raises ServerUnusableError: no storage backend, or a prompt length that this server cannot serve from it."""
        if info.storage_backend is None:
            raise ServerUnusableError("the server has no --hicache-storage-backend: there is no storage to probe")
        limit = min(filter(None, (info.max_prompt_tokens, info.device_tokens - self.new_tokens)))
        for tokens in self.tokens:
            if not (info.page_size < tokens and info.prompt_length(tokens) <= limit):
                raise ServerUnusableError(
                    f"--tokens {tokens} is not allowed: this server serves prompts of {info.page_size + 1} (more than "
                    f"a page) to {limit} tokens"
                )

    def filler_tokens(self, info: ServerInfo) -> int:
        """Tokens to send so that device and host caches have nothing left of what they held."""
        if self.evict_tokens is not None:
            return self.evict_tokens
        return FILL_FACTOR * (info.device_tokens + info.host_tokens)


FILL_FACTOR = 2
"""Twice the caches' size: what LRU keeps longest goes too, and a capacity that is stated too low does no harm."""
