"""One prompt through all three ways, and what was wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from .answers import Answer, first_difference

WAYS = ("cold", "device", "storage")


@dataclass(frozen=True)
class Trial:
    """A prompt's answers: computed, from the device's cache, from the storage."""

    tokens: int
    round: int
    longest_hit: int
    cold: Answer
    device: Answer
    storage: Answer

    def answer(self, way: str) -> Answer:
        """The answer of one of WAYS."""
        return {"cold": self.cold, "device": self.device, "storage": self.storage}[way]


def problems(trial: Trial, tolerance: float, flushed: bool) -> list[str]:
    """What was wrong with a trial, in words; empty when nothing was.

    Ids and logprobs of the storage hit are compared with the device hit's: both compute the same few last tokens,
    whereas a cold run computes all of them in other batches. `flushed`: device and host were emptied, so
    every token must come from the storage; else they may have kept a part.
    """
    found = []
    if trial.cold.cached.total:
        found.append(f"the cold run was not cold ({trial.cold.cached}); repeat with another --seed")
    if trial.device.cached.device < trial.longest_hit:
        found.append(f"the device hit was none of {trial.longest_hit} tokens ({trial.device.cached})")
    hit = trial.storage.cached
    if hit.storage < (trial.longest_hit if flushed else 1) or hit.total < trial.longest_hit:
        found.append(f"the storage hit was none of {trial.longest_hit} tokens ({hit})")
    difference = first_difference(trial.device, trial.storage, tolerance)
    if difference is not None:
        found.append(f"the storage hit differs from the device hit: {difference}")
    return found
