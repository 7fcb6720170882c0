"""Contexts, streams with their queued work, and events."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LEGACY, PER_THREAD = 1, 2
NON_BLOCKING = 1


@dataclass(eq=False)
class Context:
    """A device's primary context.

    Attributes
    ----------
    fault : int
        The code of what ended the context; a process never gets rid of it.
    destroyed : bool
        Whether it was released as often as retained, until it is retained again.
    """

    handle: int
    ordinal: int
    retained: int = 0
    fault: int = 0
    destroyed: bool = False


@dataclass(frozen=True)
class Point:
    """A place in a stream: the work up to number `count`."""

    stream: Stream
    count: int

    @property
    def reached(self) -> bool:
        """Whether all work up to here has run."""
        return self.stream.executed >= self.count


@dataclass(eq=False)
class Operation:
    """Work in a stream's queue."""

    label: str
    run: Callable[[], None]
    after: tuple[Point, ...] = ()


@dataclass(eq=False)
class Stream:
    """A queue of work."""

    handle: int
    context: Context
    flags: int = 0
    priority: int = 0
    queue: collections.deque[Operation] = field(default_factory=collections.deque)
    executed: int = 0

    @property
    def submitted(self) -> int:
        """How many operations were ever queued."""
        return self.executed + len(self.queue)

    @property
    def tail(self) -> Point:
        """The place behind all work queued so far."""
        return Point(self, self.submitted)


@dataclass(eq=False)
class Event:
    """The place in a stream that cuEventRecord captured."""

    handle: int
    context: Context
    flags: int = 0
    point: Point | None = None
    time: float = 0.0
