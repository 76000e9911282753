"""The node server: owns the pool's memory, hands it to clients, is the only one that inserts, removes and evicts."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from ..errors import NodeServerError, PoolClosedError, UmbpError
from ..pool import Pool
from ..put_watch import PutWatch
from . import protocol
from .channel import Channel
from .connection import Connection
from .listening import ListeningSocket
from .peer import peer_of
from .protocol import ErrorCode
from .refusal import LimitedLog, as_error, refusal
from .server_settings import ServerSettings, server_sizes
from .service import Service
from .stat_report import StatReport

MAX_CONNECTIONS = 1024
STOP_S = 2.0
"""How long a stopping server waits for its threads."""

ACCEPT_PAUSE_S = 0.1
logger = logging.getLogger(__name__)


class NodeServer:
    """One pool, one socket. ``open``, ``run`` in one thread, ``stop`` from any thread or a signal handler, ``close``.

    One thread watches the socket and the clients' processes; each connection has a thread of its own, so that one
    client's call, however long it waits, never holds up another's.
    """

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._listening = ListeningSocket(settings.path)
        self._epoll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._log = LimitedLog(logger)
        self._lock = threading.Lock()
        self._threads: dict[threading.Thread, Connection] = {}
        self._pool: Pool | None = None
        self._service: Service | None = None
        self._socket: socket.socket | None = None

    # Life ------------------------------------------------------------------------------------------------

    def open(self) -> NodeServer:
        """Takes the address, gets the memory, listens; says in one log line what was got.

        Raises AddressInUseError, SettingsError, PoolMemoryError, OSError; nothing is left then.
        """
        try:
            self._listening.reserve()
            self._open_pool()
            self._socket = self._listening.open()
        except BaseException:
            self.close()
            raise
        self._socket.setblocking(False)
        for descriptor in (self._socket.fileno(), self._stop):
            self._epoll.register(descriptor, select.EPOLLIN)
        service = self.service
        logger.info(
            "serving at %s, pid %d, version %s: up to %d clients, each with %d bytes reserved at most; %s",
            self.settings.address,
            os.getpid(),
            protocol.VERSION,
            self.settings.max_clients,
            service.sizes.reservation_quota_bytes,
            self._when_it_stops(),
        )
        return self

    def _when_it_stops(self) -> str:
        idle_s = self.settings.idle_exit_s
        return f"stops after {idle_s:g} s without a client" if idle_s else "stops when it is told to"

    def _open_pool(self) -> None:
        sizes = server_sizes(self.settings)
        self._pool = Pool(self.settings.pool).open()
        native = self._pool.native
        watch = PutWatch(native)
        self._service = Service(native, self.settings, sizes, watch=self._watch, after_put=watch.after_put)
        self._service.report = StatReport(self._service, self._clock).as_json

    @property
    def service(self) -> Service:
        """What the connections share. Raises PoolClosedError before open()."""
        if self._service is None:
            raise PoolClosedError("the server is not open")
        return self._service

    def stop(self) -> None:
        """Makes run() return. Safe in a signal handler."""
        if not self._epoll.closed:
            os.eventfd_write(self._stop, 1)

    def close(self) -> bool:
        """Ends all connections, gives memory, socket and lock back. Whether every thread ended in time.

        If one did not, the memory stays until the process ends: closing the pool would wait for that thread's call.
        """
        self._listening.stop_listening()
        with self._lock:
            threads = dict(self._threads)
        # First nobody can be told a place any more, then what others may still be copying to is freed.
        for connection in threads.values():
            connection.interrupt()
        if self._service is not None:
            self._service.clients.forget_all()
        deadline = self._clock() + STOP_S
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock()))
        ended = not any(thread.is_alive() for thread in threads)
        if self._pool is not None and ended:
            self._pool.close()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._stop)
        self._listening.close()
        return ended

    def __enter__(self) -> NodeServer:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    # The watching thread -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until stop(), or until no client has been attached for idle_exit_s."""
        idle_since = self._clock()
        while True:
            for descriptor, _ in self._epoll.poll(self._patience_s(idle_since)):
                if descriptor == self._stop:
                    logger.info("stopping: told to")
                    return
                self._attend_safely(descriptor)
            if len(self.service.clients):  # not connections: who is refused, and asks again and again, is no client
                idle_since = self._clock()
            elif self.settings.idle_exit_s and self._clock() - idle_since >= self.settings.idle_exit_s:
                logger.info("stopping: no client for %g s", self.settings.idle_exit_s)
                return

    def _patience_s(self, idle_since: float) -> float | None:
        if not self.settings.idle_exit_s:
            return None
        return min(1.0, max(0.0, idle_since + self.settings.idle_exit_s - self._clock()) + 0.001)

    def _watch(self, pidfd: int) -> None:
        self._epoll.register(pidfd, select.EPOLLIN)

    def _attend_safely(self, descriptor: int) -> None:
        """Attends to it; what goes wrong there ends that connection, or the watch over that client, and no other."""
        try:
            self._attend(descriptor)
        except Exception:  # the thread's border: without it the server would end
            logger.exception("a fault of the server, which goes on")
            if self._socket is None or descriptor != self._socket.fileno():
                with contextlib.suppress(OSError):  # else it would be attended to again and again
                    self._epoll.unregister(descriptor)
            time.sleep(ACCEPT_PAUSE_S)

    def _attend(self, descriptor: int) -> None:
        if self._socket is not None and descriptor == self._socket.fileno():
            self._accept(self._socket)
            return
        client = self.service.clients.end_of(descriptor)
        if client is not None:
            logger.info("client %d (pid %d, %s) has ended", client.number, client.pid, client.label or "no label")

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors, or the client went away
            self._log.warning("accept", "a connection could not be accepted: %s", error)
            time.sleep(ACCEPT_PAUSE_S)
            return
        channel = Channel(sock, protocol.REQUESTS)
        try:
            self._start(channel)
        except (UmbpError, OSError, RuntimeError) as error:  # RuntimeError: no more threads
            self._log.warning("accept", "a connection was refused: %s", error)
            channel.close()
        except BaseException:
            channel.close()
            raise

    def _start(self, channel: Channel) -> None:
        if len(self._threads) >= MAX_CONNECTIONS:
            text = f"{MAX_CONNECTIONS} connections are open; allowed: no more"
            with contextlib.suppress(NodeServerError):
                channel.send(0, as_error(refusal(ErrorCode.LIMIT, text)), deadline=self._clock())
            raise refusal(ErrorCode.LIMIT, text)
        connection = Connection(channel, peer_of(channel.socket), self.service)
        thread = threading.Thread(target=self._run, args=(connection,), name="umbp connection", daemon=True)
        with self._lock:
            self._threads[thread] = connection
        try:
            thread.start()
        except RuntimeError:
            self._forget(thread)
            connection.close()
            raise

    def _run(self, connection: Connection) -> None:
        try:
            connection.run()
        finally:
            self._forget(threading.current_thread())

    def _forget(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.pop(thread, None)
