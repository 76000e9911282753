"""What this package raises. Every class is an UmbpError and the built-in that fits."""


class UmbpError(Exception):
    """Base of everything this package raises on purpose."""


class SettingsError(UmbpError, ValueError):
    """A setting is unknown, out of range or without effect; the message names it and what is allowed."""


class InvalidBatchError(UmbpError, ValueError):
    """A batch or an argument is malformed. Nothing was moved."""


class UnregisteredMemoryError(InvalidBatchError):
    """A batch names memory that no registered region covers, and registration is strict."""


class RegionError(UmbpError, ValueError):
    """A region cannot be registered or is not known: overlap, zero size, wrap-around."""


class PoolClosedError(UmbpError, RuntimeError):
    """The pool was closed before the call."""


class ForkedPoolError(UmbpError, RuntimeError):
    """The pool belongs to the parent of this forked process."""


class PoolMemoryError(UmbpError, MemoryError):
    """The system did not give the memory for the arena or the index."""


class DeviceError(UmbpError, RuntimeError):
    """A device runtime (CUDA, HIP) is missing, or a call of it failed; the message names the call and its answer."""


class UnsupportedHostPoolError(UmbpError, NotImplementedError):
    """A host pool of SGLang is of a kind, or in a layout, whose pages cannot be stored; the message names it."""


class NodeServerError(UmbpError, ConnectionError):
    """The node server cannot be reached, did not answer before the deadline, or broke the connection off."""


class ProtocolError(UmbpError, ValueError):
    """A frame from the other side is malformed, oversized or cut short; the connection is of no more use."""


class RefusedError(UmbpError, RuntimeError):
    """The node server answered that it will not do what was asked; ``code`` is one of protocol.ErrorCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
