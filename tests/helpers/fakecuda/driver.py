"""The double itself: configuration, state, and the path that every call takes."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.memory import Memory
from tests.helpers.fakecuda.recorder import Recorder
from tests.helpers.fakecuda.streams import Context, Scheduler

if TYPE_CHECKING:
    from tests.helpers.fakecuda.abi import DriverCall
    from tests.helpers.fakecuda.pools import Pool

ALL_CODECS = 7
_CONTEXT_HANDLES = 0x7E57_0000_0000


@dataclass
class Settings:
    """What a test may choose; `FakeDriver.reset` brings the defaults back.

    Attributes
    ----------
    driver_version : int
        What cuDriverGetVersion says; symbols of newer versions are not found.
    algorithm_mask, maximum_length : int
        The device's decompression attributes; both 0 for a GPU without an engine.
    corruption : str
        What a corrupt chunk does when it is decoded: "short" (a short count), "overrun"
        (bytes are written behind the slot) or "sticky" (the context ends).
    overrun : int
        How many bytes "overrun" writes behind the slot.
    total_memory : int
        Bytes of device memory; allocations beyond it are OUT_OF_MEMORY.
    attributes : dict
        Overrides of device attributes by number.
    """

    driver_version: int = 13000
    device_count: int = 1
    compute_capability: tuple[int, int] = (10, 0)
    algorithm_mask: int = ALL_CODECS
    maximum_length: int = 4 << 20
    total_memory: int = 4 << 30
    host_numa_id: int = 0
    corruption: str = "short"
    overrun: int = 4096
    attributes: dict[int, int] = field(default_factory=dict)


class FakeDriver:
    """A driver that knows what it forbids."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.recorder = Recorder()
        self.memory = Memory(self.recorder)
        self._handles = itertools.count(0x5EED_0000_0000, 0x10)
        self.scheduler = Scheduler(self.new_handle)
        self.contexts: dict[int, Context] = {}
        self.pools: dict[int, Pool] = {}
        self.current_pools: dict[int, int] = {}
        self.initialised = False
        self.pageable_copies: list[str] = []
        self.overruns: list[str] = []
        self.batches: list[int] = []
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._thread = threading.local()

    def new_handle(self) -> int:
        """Return a number that was never a handle before."""
        return next(self._handles)

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

    def call(self, entry: DriverCall, args: tuple[int, ...]) -> int:
        """Answer one call from C; whatever goes wrong in here is kept for the test."""
        if os.getpid() != self._owner:
            return Code.NOT_INITIALIZED
        with self._lock:
            code = self._answer(entry, args)
            self.recorder.calls[entry.name] += 1
            self.recorder.log.append((entry.name, args, code))
            return code

    def _answer(self, entry: DriverCall, args: tuple[int, ...]) -> int:
        try:
            injected = self.recorder.injected(entry.name)
            if injected is not None:
                return injected
            self._admit(entry)
            return int(entry.handler(self, *args) or Code.SUCCESS)
        except CudaError as refusal:
            return refusal.code
        except BaseException as error:  # noqa: BLE001 - C code is the caller: nothing may escape
            return self.recorder.exception(entry.name, error)

    def _admit(self, entry: DriverCall) -> None:
        if entry.needs_init and not self.initialised:
            raise CudaError(Code.NOT_INITIALIZED, "cuInit was not called")
        if self.scheduler.running is not None:
            raise CudaError(Code.NOT_PERMITTED, "a call from inside a host function")
        if entry.needs_context and self.current is None:
            raise CudaError(Code.INVALID_CONTEXT, "no current context")
        if self.current is not None and self.current.fault and not entry.survives:
            raise CudaError(self.current.fault, "the context ended with a fault")
