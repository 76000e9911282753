"""Benchmarks: every mode is measured by the same loop over one small interface."""
