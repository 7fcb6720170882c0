"""Streams and events that do nothing until somebody waits for them.

Work is queued when it is submitted and runs when the host synchronises with its stream, in order,
after the work of other streams that it waits for and after no other. So a program that forgot a
wait finds the bytes that it would find on an unlucky day.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from tests.helpers.fakecuda.codes import Code, CudaError, DeviceFaultError
from tests.helpers.fakecuda.streams import (
    LEGACY,
    NON_BLOCKING,
    PER_THREAD,
    Context,
    Event,
    Operation,
    Point,
    Stream,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_Kind = TypeVar("_Kind")


class BadHandleError(CudaError):
    """A handle that a real driver would have followed to wherever it points."""

    def __init__(self, what: str, handle: int, fate: str) -> None:
        super().__init__(Code.INVALID_HANDLE, f"{what} {handle:#x} was {fate}")
        self.handle = handle


class Scheduler:
    """All streams and events, and the order in which their work runs."""

    def __init__(self, new_handle: Callable[[], int]) -> None:
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self.eager = False
        self.running: Operation | None = None
        self._new_handle = new_handle
        self._implicit: dict[tuple[int, int], Stream] = {}
        self._detached: list[Stream] = []
        self._gone: dict[int, str] = {}
        self._threads = threading.local()
        self._thread_count = itertools.count(1)

    def stream(self, handle: int, current: Context | None) -> Stream:
        """Return the stream of a handle; default streams belong to the current context."""
        if handle not in (0, LEGACY, PER_THREAD):
            return self._known(self.streams, handle, "stream")
        if current is None:
            raise CudaError(Code.INVALID_CONTEXT, "a default stream without a context")
        thread = self._thread() if handle == PER_THREAD else 0
        return self._implicit.setdefault(
            (current.ordinal, thread), Stream(handle or LEGACY, current)
        )

    def event(self, handle: int) -> Event:
        """Return the event of a handle."""
        return self._known(self.events, handle, "event")

    def create_stream(self, context: Context, flags: int, priority: int) -> Stream:
        """Make a stream."""
        made = Stream(self._new_handle(), context, flags, priority)
        self.streams[made.handle] = made
        return made

    def create_event(self, context: Context, flags: int) -> Event:
        """Make an event that has captured nothing."""
        made = Event(self._new_handle(), context, flags)
        self.events[made.handle] = made
        return made

    def submit(
        self, stream: Stream, label: str, run: Callable[[], None], after: tuple[Point, ...] = ()
    ) -> Point:
        """Queue work, behind what stream order and the default stream's rules put before it."""
        stream.queue.append(Operation(label, run, after + self._implied(stream)))
        point = stream.tail
        if self.eager:
            self.run_until(point)
        return point

    def record(self, event: Event, stream: Stream) -> None:
        """Let an event capture the work queued so far."""

        def stamp() -> None:
            event.time = time.perf_counter()

        event.point = self.submit(stream, "event", stamp)

    def run_until(self, point: Point) -> None:
        """Run a stream's work up to a place, and before it whatever that work waits for."""
        waiting = [point]
        while waiting:
            target = waiting[-1]
            if target.reached:
                waiting.pop()
                continue
            operation = target.stream.queue[0]
            missing = [one for one in operation.after if not one.reached]
            if missing:
                waiting.extend(missing)
                continue
            self._run(target.stream, operation)

    def step(self, point: Point) -> bool:
        """Let the device make a little progress; return whether it had nothing left to do."""
        if point.reached:
            return True
        self.run_until(Point(point.stream, point.stream.executed + 1))
        return False

    def synchronize_context(self, context: Context) -> None:
        """Run all work of a context."""
        for stream in self.all_streams():
            if stream.context is context:
                self.run_until(stream.tail)

    def all_streams(self) -> list[Stream]:
        """Return every stream, default streams and destroyed ones with work left included."""
        self._detached = [stream for stream in self._detached if stream.queue]
        return [*self.streams.values(), *self._implicit.values(), *self._detached]

    def destroy_stream(self, stream: Stream) -> None:
        """Forget a stream's handle; its work still runs before anything that waits for it."""
        del self.streams[stream.handle]
        self._gone[stream.handle] = "destroyed"
        self._detached.append(stream)

    def destroy_event(self, event: Event) -> None:
        """Forget an event's handle."""
        del self.events[event.handle]
        self._gone[event.handle] = "destroyed"

    def orphan(self, context: Context) -> None:
        """Forget what belonged to a context that is destroyed."""
        for table in (self.streams, self.events):
            for handle, one in tuple(table.items()):
                if one.context is context:
                    del table[handle]  # type: ignore[attr-defined]
                    self._gone[handle] = "orphaned"

    def clear(self) -> None:
        """Drop all streams, events and work."""
        for table in (self.streams, self.events, self._implicit, self._detached, self._gone):
            table.clear()  # type: ignore[attr-defined]
        self.eager = False
        self.running = None

    def _known(self, table: dict[int, _Kind], handle: int, what: str) -> _Kind:
        found = table.get(handle)
        if found is not None:
            return found
        fate = self._gone.get(handle)
        if fate == "orphaned":
            raise CudaError(Code.CONTEXT_IS_DESTROYED, f"the context of {what} {handle:#x}")
        raise BadHandleError(what, handle, fate or "never made")

    def _run(self, stream: Stream, operation: Operation) -> None:
        stream.queue.popleft()
        stream.executed += 1
        if stream.context.fault:
            return
        self.running = operation
        try:
            operation.run()
        except DeviceFaultError as fault:
            stream.context.fault = fault.code
        finally:
            self.running = None

    def _implied(self, stream: Stream) -> tuple[Point, ...]:
        """Return what the legacy default stream's rules order before new work of a stream."""
        if stream.flags & NON_BLOCKING:
            return ()
        legacy = self._implicit.get((stream.context.ordinal, 0))
        if stream is not legacy:
            return () if legacy is None or legacy.tail.reached else (legacy.tail,)
        others = [s for s in self.all_streams() if s is not legacy and s.context is stream.context]
        return tuple(s.tail for s in others if not s.flags & NON_BLOCKING and not s.tail.reached)

    def _thread(self) -> int:
        number = getattr(self._threads, "number", None)
        if number is None:
            number = self._threads.number = next(self._thread_count)
        return int(number)
