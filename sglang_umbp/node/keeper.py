"""The thread that keeps a pool attached: sees the server's end at once, lets go, attaches anew."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import RefusedError, UmbpError
from .attachment import Attachment
from .debts import Debts
from .protocol import ErrorCode
from .refusal import LimitedLog

REPORT_S = 1.0
"""Between two reports of this client's figures to the server."""

TIDY_S = 0.5
"""Between two questions to a server that left a call unanswered."""

PAY_S = 2.0
"""For a server to do what is owed to it."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Between attempts to attach: doubled each time."""

logger = logging.getLogger(__name__)


class Keeper:
    """Started once, stopped once. What it calls is called by its thread only."""

    def __init__(
        self,
        path: Path,
        attach: Callable[[], Attachment],
        publish: Callable[[Attachment], None],
        debts: Debts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """attach: makes a new attachment, or raises UmbpError or OSError. publish: the pool uses it from now on.

        debts: paid as soon as the server answers.
        """
        self._path = path
        self._attach = attach
        self._publish = publish
        self._debts = debts
        self._clock = clock
        self._log = LimitedLog(logger)
        self._wake = -1
        self._wake_lock = threading.Lock()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._attachment: Attachment | None = None
        self.trouble = ""
        """Why there is no server; empty while attached."""

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called: what takes long ends now."""
        return self._stopping

    @property
    def attachment(self) -> Attachment | None:
        """The one in use; None while there is no server."""
        return self._attachment

    def attach_once(self) -> bool:
        """One attempt in the calling thread, before ``start``. Whether it succeeded; if not, ``trouble`` says why."""
        return self._try_to_attach()

    def start(self) -> None:
        """Starts the thread. Raises OSError, RuntimeError (no more threads)."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="umbp node client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; waits for an attempt to attach that is under way, which has a deadline."""
        self._stopping = True
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
            self._thread = None
            with self._wake_lock:  # a descriptor of this number must not get what was meant for ours
                os.close(self._wake)
                self._wake = -1

    def wake(self) -> None:
        """The thread looks after the attachment now."""
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # The thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            if self._turn():
                pause_s = FIRST_PAUSE_S
            else:
                self._wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _turn(self) -> bool:
        """Whether there was an attachment to look after, or is one now."""
        try:
            attachment = self._attachment
            if attachment is None:
                return self._try_to_attach()
            self._look_after(attachment)
            return True
        except Exception:  # the thread's border: without it nobody would attach again
            logger.exception("looking after the node server at unix:%s failed; trying again", self._path)
            return False

    def _wait(self, timeout_s: float, *descriptors: int) -> None:
        poller = select.poll()
        for descriptor in (self._wake, *descriptors):
            poller.register(descriptor, select.POLLIN)
        if (self._wake, select.POLLIN) in poller.poll(timeout_s * 1e3):
            os.eventfd_read(self._wake)

    def _look_after(self, attachment: Attachment) -> None:
        busy = attachment.untidy or self._debts.owed
        self._wait(TIDY_S if busy else REPORT_S, attachment.server_pidfd)
        if self._stopping:
            return
        if attachment.lost:
            self._let_go(attachment)
            return
        if attachment.untidy:
            attachment.tidy()
        if self._debts.owed and not attachment.silent:
            self._pay(attachment)
        attachment.report()

    def _pay(self, attachment: Attachment) -> None:
        try:
            self._debts.pay(attachment, time.monotonic() + PAY_S)
        except UmbpError as error:
            self._log.warning("owed", "a clear or removal is owed to unix:%s, and tried again: %s", self._path, error)
            return
        logger.info("the node server at unix:%s has done the clear or removal that was owed to it", self._path)

    def _let_go(self, attachment: Attachment) -> None:
        self.trouble = f"the server (pid {attachment.server_pid}) is gone"
        self._attachment = None
        begun_s = self._clock()
        attachment.lose()
        logger.warning(
            "node server at unix:%s lost: %s; its memory was given back after %.3f s. Look-ups and gets are misses, "
            "puts fail, until it is back; attaching again by itself",
            self._path,
            self.trouble,
            self._clock() - begun_s,
        )

    def _try_to_attach(self) -> bool:
        try:
            attachment = self._attach()
        except (UmbpError, OSError) as error:
            self.trouble = str(error)
            kind = "version" if isinstance(error, RefusedError) and error.code == ErrorCode.VERSION else "attach"
            text = "not attached to a node server at unix:%s: %s. Running on as misses, and trying again"
            self._log.warning(kind, text, self._path, error)
            return False
        attachment.on_trouble = self.wake
        try:
            self._publish(attachment)
        except BaseException:
            attachment.detach()
            raise
        self._attachment = attachment
        self.trouble = ""
        return True
