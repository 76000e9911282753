"""What stops a measurement."""

from __future__ import annotations

from ..errors import UmbpError


class MeasurementError(UmbpError, RuntimeError):
    """The measured thing failed so badly that there are no figures."""
