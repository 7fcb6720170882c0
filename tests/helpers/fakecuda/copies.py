"""Copies and fills: what is checked when they are submitted, and what they do when they run."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import Code, CudaError, DeviceFault
from tests.helpers.fakecuda.memory import device

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream

#: What a pointer must be for a parameter: either, memory that the device knows, or the host's.
ANY, DEVICE, HOST_SIDE = "any", "device", "host"


@dataclass(frozen=True)
class Range:
    """A range of bytes that a copy reads or writes.

    Attributes
    ----------
    pageable : bool
        Whether this is ordinary memory of the process, of which the driver knows nothing.
    """

    address: int
    size: int
    write: bool
    pageable: bool


def check_range(cuda: FakeDriver, address: int, size: int, *, write: bool, kind: str) -> Range:
    """Return a range that a copy may use, or refuse it as the driver does at submission."""
    memory = cuda.memory
    found = memory.covering(address, size)
    if not found:
        return _unmapped(cuda, address, size, write=write, kind=kind)
    place = device(cuda.context.ordinal)
    if any(m.freed for m in found):
        cuda.recorder.violation(f"copy submitted after its free: {found[0].allocation}")
    if not all(m.allows(place, write=write) for m in found):
        what = "written" if write else "read"
        raise CudaError(Code.INVALID_VALUE, f"{found[0].allocation} may not be {what} by {place}")
    return Range(address, size, write, pageable=False)


def _unmapped(cuda: FakeDriver, address: int, size: int, *, write: bool, kind: str) -> Range:
    known = cuda.memory.between(address, address + size)
    if known or cuda.memory.space.overlaps(address, size) or kind == DEVICE or address == 0:
        text = cuda.memory.epitaph(address)
        if "freed" in text:
            cuda.recorder.violation(f"copy of freed memory: {text}")
        raise CudaError(Code.INVALID_VALUE, text)
    return Range(address, size, write, pageable=True)


def submit_copy(
    cuda: FakeDriver, stream: Stream, target: Range, source: Range, *, during_call: bool = False
) -> None:
    """Queue a copy; one that touches pageable memory is done before this returns.

    The driver stages pageable memory while the caller waits, and such a copy is a mistake in a
    program that means to overlap: the double keeps count in `pageable_copies`.
    """
    wait = target.pageable or source.pageable
    if wait:
        cuda.pageable_copies.append(f"{source.size} bytes in stream {stream.handle:#x}")
    point = cuda.scheduler.submit(stream, "copy", lambda: _copy(cuda, stream, target, source))
    if wait or during_call:
        cuda.scheduler.run_until(point)


def submit_fill(cuda: FakeDriver, stream: Stream, target: Range, pattern: bytes) -> None:
    """Queue a fill with a repeated pattern."""

    def fill() -> None:
        where = usable(cuda, stream, target)
        if len(pattern) == 1:
            ctypes.memset(where, pattern[0], target.size)
        else:
            ctypes.memmove(where, pattern * (target.size // len(pattern)), target.size)

    cuda.scheduler.submit(stream, "fill", fill)


def finish(cuda: FakeDriver, stream: Stream) -> int:
    """Wait for a stream and return the code of the call that waited."""
    cuda.scheduler.run_until(stream.tail)
    cuda.after_synchronising()
    return stream.context.fault


def _copy(cuda: FakeDriver, stream: Stream, target: Range, source: Range) -> None:
    to, out_of = usable(cuda, stream, target), usable(cuda, stream, source)
    ctypes.memmove(to, out_of, target.size)


def usable(cuda: FakeDriver, stream: Stream, wanted: Range) -> int:
    """Return where the bytes of a range are now, when the work runs, or end the context."""
    if wanted.pageable:
        return wanted.address
    found = cuda.memory.covering(wanted.address, wanted.size)
    place = device(stream.context.ordinal)
    if not found or not all(m.allows(place, write=wanted.write) for m in found):
        text = f"work ran on memory that is gone: {cuda.memory.epitaph(wanted.address)}"
        cuda.recorder.violation(text)
        raise DeviceFault(Code.ILLEGAL_ADDRESS, text)
    early = [m for m in found if not m.ready]
    if early:
        cuda.recorder.violation(f"used before its stream allocated it: {early[0].allocation}")
    return cuda.memory.host_address(wanted.address)


