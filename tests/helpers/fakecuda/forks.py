"""Calls that a forked child makes, seen by its parent through shared memory.

A child cannot use its parent's CUDA. A real driver answers most calls in one with
NOT_INITIALIZED, carries some out as if nothing were wrong, and never returns from a few; the
double refuses all of them and remembers the latter, which would have hung the child.
"""

from __future__ import annotations

import mmap

_SIZE = 1 << 16
#: Seen to hang on an H200 with driver 580.159.04.
_HANG = ("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async", "cuStreamDestroy")


class ForkedCalls:
    """The names of calls made in children."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _SIZE)

    def note(self, name: str) -> None:
        """Remember a call; in the child."""
        text = name.encode() + b"\n"
        used = self._page.find(b"\0")
        if used + len(text) < _SIZE:
            self._page[used : used + len(text)] = text

    def names(self) -> list[str]:
        """Return the calls so far; in the parent."""
        used = self._page.find(b"\0")
        return self._page[:used].decode().split()

    def complaints(self) -> list[str]:
        """Return the calls that never return in a child of a real driver's process."""
        return [f"{name} in a forked child hangs" for name in self.names() if name in _HANG]

    def clear(self) -> None:
        """Forget them."""
        self._page[:] = bytes(_SIZE)
