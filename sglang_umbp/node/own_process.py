"""What a process has from the one that started it and should not keep: CPUs, priority, memory policy, signals."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path

MAX_CPUS = 8192
"""More than the kernel knows; it takes those that exist and that the cpuset allows."""

OOM_SCORE = Path("/proc/self/oom_score_adj")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_DEFAULT = 0
_KEPT_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them by itself
DROPPED_VARIABLES = (
    *("LD_PRELOAD", "LD_AUDIT", "LD_PROFILE", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT"),
    *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
)
"""Variables that are meant for one process: libraries put into it, its debugger, its place under systemd."""


def settle() -> list[str]:
    """Gives this process what one has that a user starts by hand. Call it first, before there are threads.

    What the kernel does not allow is left as it is: the answer has one line for each.
    """
    steps = {"CPUs": _use_all_cpus, "scheduling": _schedule_as_others, "nice": _be_as_nice_as_others}
    steps |= {"NUMA memory policy": _forget_memory_policy, "oom_score_adj": _give_up_protection}
    steps |= {"signals": _hear_signals}
    os.umask(0o077)
    kept = []
    for what, step in steps.items():
        try:
            step()
        except (OSError, ValueError) as error:
            kept.append(f"{what} stay as the process had them that started this server: {error}")
    return kept


def _use_all_cpus() -> None:
    os.sched_setaffinity(0, range(MAX_CPUS))


def _schedule_as_others() -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _be_as_nice_as_others() -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) != 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _forget_memory_policy() -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(f"the number of set_mempolicy on {platform.machine()} is not known")
    syscall: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
    if syscall(ctypes.c_long(number), ctypes.c_long(_MPOL_DEFAULT), None, ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _give_up_protection() -> None:
    """A cache must not outlive, by another's protection, those who only lose hits with it; the reverse is kept."""
    if int(OOM_SCORE.read_text()) < 0:
        OOM_SCORE.write_text("0")


def _hear_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in _KEPT_IGNORED:
            signal.signal(number, signal.SIG_DFL)
