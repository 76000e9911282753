"""A pool without an owner: what a client has until it finds its first server."""

from __future__ import annotations

from .. import _native


def lost_pool(config: _native.PoolConfig) -> _native.Pool:
    """A native pool as it is after the loss of its owner: checks its arguments, finds nothing, raises nothing.

    Takes the config over.
    """
    config.capacity_bytes = config.index_entries = 64
    config.memfd = True
    config.hugepages = config.prefault = config.prefault_in_background = False
    owner = _native.Pool(config)
    try:
        share = owner.share()
        native = _native.Pool.attach(config, share["memory"], share["client"])
    finally:
        owner.close()
    native.lose()
    native.unmap()
    return native
