"""The double itself: its state, the path that every call takes, and what tests ask of it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

from tests.helpers.fakecuda.codes import Code, CudaError, DeviceFaultError
from tests.helpers.fakecuda.forks import ForkedCalls
from tests.helpers.fakecuda.libraries import Libraries
from tests.helpers.fakecuda.memory import Memory
from tests.helpers.fakecuda.pools import Pools
from tests.helpers.fakecuda.recorder import Recorder
from tests.helpers.fakecuda.scheduler import BadHandleError, Scheduler
from tests.helpers.fakecuda.settings import Settings
from tests.helpers.fakecuda.streams import Context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.fakecuda.abi import DriverCall
    from tests.helpers.fakecuda.loading import Linker

_CONTEXT_HANDLES = 0x7E57_0000_0000
_OTHER_HANDLES = 0x5EED_0000_0000
#: Calls that ask nothing of a device.
_HARMLESS = ("cuGetProcAddress", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString")


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: what is collected calls the driver, in the midst of a call."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class FakeDriver:
    """A driver that knows what it forbids.

    Attributes
    ----------
    settings : Settings
        What a test may choose.
    recorder : Recorder
        Calls, violations and injected faults.
    batches : list of int
        Sizes of the accepted decompression batches.
    refusals : list of str
        Why decompression operations were refused.
    launches : list of (str, int)
        Kernel and number of operations of each launch.
    overruns : list of str
        What the engine wrote beyond a slot or an allocation.
    pageable_copies : list of str
        Copies that could not be asynchronous, since host memory was not pinned.
    """

    library: Any
    linker: Linker

    def __init__(self, version: int = 13000) -> None:
        self._version = version
        self._handles = itertools.count(_OTHER_HANDLES, 0x10)
        self._last_handle = self._stale_up_to = 0
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._thread = threading.local()
        self.settings = Settings(driver_version=version)
        self.recorder = Recorder()
        self.memory = Memory()
        self.scheduler = Scheduler(self.new_handle)
        self.pools = Pools(self)
        self.libraries = Libraries(self.new_handle)
        self.forked = ForkedCalls()
        self.contexts: dict[int, Context] = {}
        self.initialised = False
        self.pageable_copies: list[str] = []
        self.overruns: list[str] = []
        self.batches: list[int] = []
        self.launches: list[tuple[str, int]] = []
        self.refusals: list[str] = []

    # What tests ask for

    def reset(self) -> None:
        """Forget everything: memory, streams, faults, settings and what was recorded.

        Not the kernels that are loaded: programs load them once a process, and keep them.
        """
        with self._lock:
            self._stale_up_to = self._last_handle
            self.settings = Settings(driver_version=self._version)
            self.recorder.clear()
            self.scheduler.clear()
            self.memory.clear()
            self.pools.clear()
            self.forked.clear()
            for context in self.contexts.values():
                context.fault = 0
                context.destroyed = False
            self.context_stack.clear()
            noted = (self.pageable_copies, self.overruns, self.batches, self.refusals)
            for one in (*noted, self.launches):
                one.clear()

    def fail_next(self, name: str, code: int, *, after: int = 0, times: int = 1) -> None:
        """Answer a later call of `name` with `code`, once `after` calls of it have passed."""
        self.recorder.fail_next(name, code, after=after, times=times)

    def queue_fault(self, stream: int, code: int = Code.ILLEGAL_ADDRESS) -> None:
        """Queue work in a stream that ends the context when it runs."""

        def fault() -> None:
            raise DeviceFaultError(code, "queued by the test")

        self.scheduler.submit(self.scheduler.stream(stream, self.current), "fault", fault)

    def complaints(self) -> list[str]:
        """Return what must be empty at the end of a test."""
        return self.recorder.complaints() + self.forked.complaints()

    def leaks(self) -> list[str]:
        """Return what the program made and did not destroy, once all queued work has run.

        After a fault only what a driver still takes back counts: created memory, reservations
        and pools.
        """
        with self._lock:
            for stream in self.scheduler.all_streams():
                self.scheduler.run_until(stream.tail)
            return self._created() + ([] if self._faulted() else self._owned_by_contexts())

    def _created(self) -> list[str]:
        reserved = self.memory.reservations.items()
        created = [a for a in self.memory.allocations.values() if a.kind == "created"]
        pools = [p for p in self.pools.values() if not p.default and not p.destroyed]
        found = [str(one) for one in created]
        found += [f"reservation {at:#x}, {size} bytes" for at, size in reserved]
        return found + [f"pool {pool.handle:#x}" for pool in pools]

    def _owned_by_contexts(self) -> list[str]:
        others = [a for a in self.memory.allocations.values() if a.kind != "created"]
        found = [str(one) for one in others]
        found += [f"stream {handle:#x}" for handle in self.scheduler.streams]
        return found + [f"event {handle:#x}" for handle in self.scheduler.events]

    def _faulted(self) -> bool:
        return any(context.fault for context in self.contexts.values())

    @property
    def schedule(self) -> str:
        """When queued work runs: "lazy" (when the host waits for it) or "eager" (at once)."""
        return "eager" if self.scheduler.eager else "lazy"

    @schedule.setter
    def schedule(self, value: str) -> None:
        if value not in ("lazy", "eager"):
            raise ValueError(f'schedule is "lazy" or "eager", not {value!r}')
        self.scheduler.eager = value == "eager"

    # What calls need

    def new_handle(self) -> int:
        """Return a number that was never a handle before."""
        self._last_handle = next(self._handles)
        return self._last_handle

    def is_stale(self, handle: int) -> bool:
        """Return whether a handle is from before a reset, which its owner could not know of."""
        return _OTHER_HANDLES <= handle <= self._stale_up_to

    def context_of(self, ordinal: int) -> Context:
        """Return a device's primary context."""
        handle = _CONTEXT_HANDLES + 0x1000 * (ordinal + 1)
        return self.contexts.setdefault(handle, Context(handle, ordinal))

    @property
    def context_stack(self) -> list[Context]:
        """The calling thread's stack of contexts; the last is current."""
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        stack: list[Context] = self._thread.stack
        return stack

    @property
    def current(self) -> Context | None:
        """The calling thread's current context."""
        return self.context_stack[-1] if self.context_stack else None

    @property
    def context(self) -> Context:
        """The current context of a call that needs one."""
        if self.current is None:
            raise CudaError(Code.INVALID_CONTEXT, "no current context")
        return self.current

    @property
    def some_context(self) -> Context:
        """The current context, or device 0's for calls that need none."""
        return self.current or self.context_of(0)

    def after_synchronising(self) -> None:
        """Let pools return memory, as they do when the host has waited."""
        self.pools.trim()

    def call(self, entry: DriverCall, args: tuple[int, ...]) -> int:
        """Answer one call from C; whatever goes wrong in here is kept for the test."""
        if os.getpid() != self._owner:
            return self._answer_child(entry, args)
        with self._lock, _no_collection():
            code = self._answer(entry, args)
            if entry.name != "cuGetProcAddress":
                self.recorder.calls[entry.name] += 1
                self.recorder.log.append((entry.name, args, code))
            return code

    def _answer_child(self, entry: DriverCall, args: tuple[int, ...]) -> int:
        """Answer a forked child, without a lock that another thread may have held at the fork."""
        if entry.name in _HARMLESS:
            return self._answer(entry, args)
        self.forked.note(entry.name)
        return Code.NOT_INITIALIZED

    def _answer(self, entry: DriverCall, args: tuple[int, ...]) -> int:
        try:
            injected = self.recorder.injected(entry.name)
            if injected is not None:
                return injected
            self._admit(entry)
            return int(entry.handler(self, *args) or Code.SUCCESS)
        except BadHandleError as bad:
            if bad.handle and not self.is_stale(bad.handle):
                self.recorder.violation(f"{entry.name}: {bad}")
            return bad.code
        except CudaError as refusal:
            return refusal.code
        except BaseException as error:  # noqa: BLE001 - C code is the caller: nothing may escape
            return self.recorder.exception(entry.name, error)

    def _admit(self, entry: DriverCall) -> None:
        if entry.needs_init and not self.initialised:
            raise CudaError(Code.NOT_INITIALIZED, "cuInit was not called")
        if self.scheduler.running is not None and entry.needs_init:
            self.recorder.violation(f"{entry.name} called by a host function")
            raise CudaError(Code.NOT_PERMITTED)
        if entry.needs_context and self.current is None:
            raise CudaError(Code.INVALID_CONTEXT, "no current context")
        if entry.survives:
            return
        for context in [self.current] if self.current else self.contexts.values():
            if context.destroyed:
                raise CudaError(Code.CONTEXT_IS_DESTROYED)
            if context.fault:
                raise CudaError(context.fault, "the context ended with a fault")
