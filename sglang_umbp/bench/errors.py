"""What stops a measurement."""

from __future__ import annotations

from ..errors import UmbpError


class BenchArgumentsError(UmbpError, ValueError):
    """Arguments that each are allowed but do not go together; the message names them and what is allowed."""


class MeasurementError(UmbpError, RuntimeError):
    """The measured thing failed so badly that there are no figures."""
