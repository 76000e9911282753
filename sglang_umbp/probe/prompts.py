"""Prompts that no cache has seen."""

from __future__ import annotations

import random

FIRST_TOKEN_ID = 16  # below are the special tokens of most vocabularies


class Prompts:
    """Random token ids below `vocab_size`; the same seed gives the same prompts. One thread at a time."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._random = random.Random(seed)
        self._ids = range(FIRST_TOKEN_ID, vocab_size)

    def fresh(self, tokens: int) -> list[int]:
        """A prompt of `tokens` ids, unlike any before."""
        return self._random.choices(self._ids, k=tokens)
