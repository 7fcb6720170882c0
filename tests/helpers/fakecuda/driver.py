"""The double itself: configuration, state, and the path that every call takes."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.helpers.fakecuda.codes import Code, CudaError
from tests.helpers.fakecuda.memory import Memory, device
from tests.helpers.fakecuda.pools import Pool
from tests.helpers.fakecuda.recorder import Recorder
from tests.helpers.fakecuda.streams import Context, Scheduler

if TYPE_CHECKING:
    from tests.helpers.fakecuda.abi import DriverCall
    from tests.helpers.fakecuda.memory import Mapping

ALL_CODECS = 7
_CONTEXT_HANDLES = 0x7E57_0000_0000
_DEFAULT_POOL_HANDLES = 0x7E57_1000_0000


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

    def __init__(self, version: int = 13000) -> None:
        self._version = version
        self.settings = Settings(driver_version=version)
        self.recorder = Recorder()
        self.memory = Memory(self.recorder)
        self._handles = itertools.count(0x5EED_0000_0000, 0x10)
        self.scheduler = Scheduler(self.new_handle)
        self.contexts: dict[int, Context] = {}
        self.pools: dict[int, Pool] = {}
        self.initialised = False
        self.pageable_copies: list[str] = []
        self.overruns: list[str] = []
        self.batches: list[int] = []
        self.refusals: list[str] = []
        self.library: Any = None
        self.linker: Any = None
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._thread = threading.local()

    def reset(self) -> None:
        """Forget everything: memory, streams, faults, settings and what was recorded."""
        with self._lock:
            self.settings = Settings(driver_version=self._version)
            self.recorder.clear()
            self.scheduler.clear()
            self.memory.clear()
            self.contexts = {h: Context(h, c.ordinal, c.retained) for h, c in self.contexts.items()}
            self.pools.clear()
            for noted in (self.pageable_copies, self.overruns, self.batches, self.refusals):
                noted.clear()

    def fail_next(self, name: str, code: int, *, after: int = 0, times: int = 1) -> None:
        """Answer a later call of `name` with `code`, once `after` calls of it have passed."""
        self.recorder.fail_next(name, code, after=after, times=times)

    def complaints(self) -> list[str]:
        """Return what must be empty at the end of a test."""
        return self.recorder.complaints()

    def leaks(self) -> list[str]:
        """Return what the program made and did not destroy, once all queued work has run."""
        with self._lock:
            for stream in self.scheduler.all_streams():
                self.scheduler.run_until(stream.tail)
            found = [str(one) for one in self.memory.allocations.values()]
            found += [f"reservation {at:#x}, {n} bytes" for at, n in self.memory.reservations.items()]
            found += [f"stream {handle:#x}" for handle in self.scheduler.streams]
            found += [f"event {handle:#x}" for handle in self.scheduler.events]
            return found + [f"pool {p.handle:#x}" for p in self.pools.values() if not p.default]

    @property
    def schedule(self) -> str:
        """When queued work runs: "lazy" (when the host waits for it) or "eager" (at once)."""
        return "eager" if self.scheduler.eager else "lazy"

    @schedule.setter
    def schedule(self, value: str) -> None:
        if value not in ("lazy", "eager"):
            raise ValueError(f'schedule is "lazy" or "eager", not {value!r}')
        self.scheduler.eager = value == "eager"

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

    def device_memory_used(self, ordinal: int) -> int:
        """Return how many bytes of a device are taken, by pools too."""
        here = device(ordinal)
        ours = (a for a in self.memory.allocations.values() if a.location == here)
        pooled = (p.reserved for p in self.pools.values() if p.location == here)
        return sum(a.size for a in ours if not a.pool) + sum(pooled)

    def charge(self, ordinal: int, size: int) -> None:
        """Refuse an allocation that the device has no room for."""
        if self.device_memory_used(ordinal) + size > self.settings.total_memory:
            raise CudaError(Code.OUT_OF_MEMORY, f"{size} bytes on device {ordinal}")

    def default_pool(self, ordinal: int) -> Pool:
        """Return a device's default pool."""
        handle = _DEFAULT_POOL_HANDLES + ordinal
        if handle not in self.pools:
            self.pools[handle] = Pool(handle, device(ordinal), default=True)
        return self.pools[handle]

    def pools_give_back(self, mapping: Mapping) -> None:
        """Count an allocation of a pool as freed."""
        pool = self.pools[mapping.allocation.pool]
        pool.free(mapping.allocation.size)
        self.forget_pool_if_empty(pool)

    def forget_pool_if_empty(self, pool: Pool) -> None:
        """Remove a destroyed pool once none of its memory is in use."""
        if pool.destroyed and pool.used == 0:
            self.pools.pop(pool.handle, None)

    def after_synchronising(self) -> None:
        """Let pools return memory, as they do when the host has waited."""
        for pool in self.pools.values():
            pool.trim()

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
