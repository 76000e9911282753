"""What the connections of a node server share: the pool, its clients, its namespaces."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from .. import _native
from .clients import Clients
from .namespaces import Namespaces
from .node_client import NodeClient
from .protocol import Attached
from .refusal import LimitedLog
from .server_settings import ServerSettings, ServerSizes

logger = logging.getLogger(__name__)


class Service:
    """Thread-safe. Owns nothing that needs closing but the clients."""

    def __init__(
        self,
        native: _native.Pool,
        settings: ServerSettings,
        sizes: ServerSizes,
        *,
        watch: Callable[[int], None],
        after_put: Callable[[], None],
    ) -> None:
        """watch: is given the pidfd of each client. after_put: is called when a put is over."""
        self.native = native
        self.settings = settings
        self.sizes = sizes
        self.server_id = secrets.token_bytes(16)
        self.log = LimitedLog(logger)
        self.namespaces = Namespaces(native)
        quotas = sizes.reservation_quota_bytes, sizes.reservations_total_bytes
        self.clients = Clients(native, settings.max_clients, *quotas, watch)
        self.after_put = after_put
        self.report: Callable[[bool], bytes] = bytes

    @property
    def capacity_bytes(self) -> int:
        """Payload that the pool holds at most."""
        return self.sizes.pool.capacity_bytes

    def attached(self, client: NodeClient) -> Attached:
        """What a new client is told."""
        return Attached(
            client=client.number,
            server=self.server_id,
            capacity_bytes=self.capacity_bytes,
            index_entries=self.sizes.pool.index_entries,
            session_quota_bytes=self.sizes.pool.session_quota_bytes,
            reservation_quota_bytes=self.sizes.reservation_quota_bytes,
            deadline_s=self.settings.pool.deadline_s,
        )
