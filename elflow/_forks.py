"""Processes that are forked after torch has used several threads.

The threads of OpenMP do not survive a fork: the first parallel loop of the new process waits for them forever. torch's
own `DataLoader` therefore limits its workers to one thread. So does this module, in all processes that are forked by
Python after elflow was imported.
"""

from __future__ import annotations

import os
import threading

import torch

from elflow._checks import warn_user

__all__ = ["warn_if_forked"]


class ForkGuard:
    """Limits torch to one thread in forked processes whose parent may have used several."""

    is_risky = False
    """Whether the process may have started threads that a fork would lose."""
    is_limited = False
    """Whether this process was limited to one thread, and no warning has been issued yet."""

    def prepare(self) -> None:
        """Look at the threads of the process, before it is forked."""
        self.is_risky = torch.get_num_threads() > 1 and _has_native_threads()

    def limit(self) -> None:
        """Limit torch to one thread, in the new process."""
        if self.is_risky:
            torch.set_num_threads(1)
            self.is_limited = True


def _has_native_threads() -> bool:
    """Whether the process has threads that Python has not started; assumed where this is unknown."""
    try:
        return len(os.listdir("/proc/self/task")) > threading.active_count()
    except OSError:
        return True


_guard = ForkGuard()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_guard.prepare, after_in_child=_guard.limit)


def warn_if_forked() -> None:
    """Warn once in a process that was limited to one thread, unless it has set a number of threads since."""
    if _guard.is_limited:
        _guard.is_limited = False
        if torch.get_num_threads() == 1:
            warn_user(
                "this process was forked after torch may have started threads, which do not survive a fork: torch is "
                "limited to one thread here, instead of waiting for them forever. Start processes with the method "
                "'spawn' for several threads, or call torch.set_num_threads(1) before the fork",
                RuntimeWarning,
            )
