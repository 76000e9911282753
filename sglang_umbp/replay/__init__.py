"""Replays request traces against the pool, every byte checked when asked to."""
