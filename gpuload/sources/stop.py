"""The wish that a wait ends."""

from __future__ import annotations

import errno
import threading

__all__ = ["Stop"]


class Stop:
    """Ends a wait from another thread."""

    def __init__(self) -> None:
        self._wanted = threading.Event()

    def cancel(self) -> None:
        """Let the wait end."""
        self._wanted.set()

    def check(self, name: str) -> None:
        """Raise an OSError (ECANCELED) of a file if its wait is to end."""
        if self._wanted.is_set():
            raise OSError(errno.ECANCELED, "the read was cancelled", name)
