"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from .messages import human_size, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Bar", "decoding_bar", "encoding_bar"]

_INTERVAL = 0.1
_BAR_WIDTH = 20


class Bar:
    """One line that is drawn over and over: share, bytes, rate and time left.

    Parameters
    ----------
    name : str
        What stands at its left.
    stream : text file
        A terminal.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self, name: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = printable(name)
        self._stream: TextIO | None = stream
        self._clock = clock
        self._start = clock()
        self._drawn_at = self._start
        self._drawn_width = 0

    def update(self, done: int, share: float) -> None:
        """Draw the line, unless it was drawn a moment ago.

        Parameters
        ----------
        done : int
            Bytes so far.
        share : float
            Part of the work that is done, from 0 to 1.
        """
        now = self._clock()
        if now - self._drawn_at >= _INTERVAL:
            self._drawn_at = now
            self._draw(self._line(done, min(max(share, 0.0), 1.0), now - self._start))

    def _line(self, done: int, share: float, seconds: float) -> str:
        full = int(share * _BAR_WIDTH)
        bar = "#" * full + "." * (_BAR_WIDTH - full)
        left = f"{_duration(seconds / share - seconds)} left" if share else ""
        rate = human_size(done / seconds)
        facts = f" [{bar}] {share:4.0%} {human_size(done)} {rate}/s {left}"
        room = max(self._columns() - len(facts) - 1, 8)
        name = self._name if len(self._name) <= room else f"...{self._name[3 - room :]}"
        return f"{name}{facts}"[: self._columns() - 1]

    def _columns(self) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(self._stream.fileno()).columns or 80  # type: ignore[union-attr]
        return 80

    def _draw(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(f"\r{line.ljust(self._drawn_width)}")
            self._stream.flush()
            self._drawn_width = len(line)
        except OSError:
            self._stream = None  # a terminal that went away must not stop the work

    def close(self) -> None:
        """Wipe the line."""
        if self._drawn_width:
            self._draw("")
            self._draw("")


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(min(seconds, 359_999)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextlib.contextmanager
def _shown(name: str, *, quiet: bool) -> Iterator[Bar | None]:
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = Bar(name, sys.stderr)
    try:
        yield bar
    finally:
        bar.close()


@contextlib.contextmanager
def decoding_bar(
    name: str, raw_size: int | None, stored_size: int | None, *, quiet: bool
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback (decoded bytes, stored bytes), or None where no bar is wanted."""
    with _shown(name, quiet=quiet) as bar:
        if bar is None:
            yield None
            return

        def progress(raw: int, stored: int) -> None:
            share = stored / (stored_size or 1) if raw_size is None else raw / (raw_size or 1)
            bar.update(raw, share)

        yield progress


@contextlib.contextmanager
def encoding_bar(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback (bytes done, bytes in all), or None where no bar is wanted."""
    with _shown(name, quiet=quiet) as bar:
        if bar is None:
            yield None
            return
        yield lambda done, total: bar.update(done, done / (total or 1))
