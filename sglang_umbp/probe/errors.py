"""What stops a probe."""

from __future__ import annotations

from ..bench.errors import MeasurementError
from ..errors import UmbpError


class ServerUnusableError(UmbpError, OSError):
    """There is no server at the address, or it is not one that can be probed as asked."""


class ServerAnswerError(MeasurementError):
    """A request failed, or its answer cannot be compared."""
