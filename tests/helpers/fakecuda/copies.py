"""Copies and fills: what is checked when they are submitted, and what they do when they run."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.allocations import device
from tests.helpers.fakecuda.codes import Code, CudaError, DeviceFaultError, LocationType

if TYPE_CHECKING:
    from tests.helpers.fakecuda.allocations import Mapping
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
    pageable: bool = False


def check_range(
    cuda: FakeDriver, stream: Stream, address: int, size: int, *, write: bool, kind: str
) -> Range:
    """Return a range that a copy may use, or refuse it as the driver does at submission."""
    found = cuda.memory.covering(address, size)
    if not found:
        _check_pageable(cuda, address, size, kind)
        return Range(address, size, write, pageable=True)
    gone = next((m for m in found if m.freed), None)
    if gone is not None:
        cuda.recorder.violation(f"copy submitted after its free: {gone.allocation}")
    if not all(_reachable(m, stream, write=write) for m in found):
        what = "written" if write else "read"
        raise CudaError(Code.INVALID_VALUE, f"{found[0].allocation} may not be {what}")
    return Range(address, size, write)


def _reachable(mapping: Mapping, stream: Stream, *, write: bool) -> bool:
    """Return whether the stream's device, or the one that has the memory, may do a copy."""
    places = (device(stream.context.ordinal), mapping.allocation.location)
    return any(p[0] == LocationType.DEVICE and mapping.allows(p, write=write) for p in places)


def _check_pageable(cuda: FakeDriver, address: int, size: int, kind: str) -> None:
    """Refuse what is no memory of the process's own either."""
    mixed = cuda.memory.between(address, address + size)
    foreign = cuda.memory.space.overlaps(address, size)
    if not (mixed or foreign or kind == DEVICE or address == 0):
        return
    text = cuda.memory.epitaph(address)
    if foreign and not mixed and kind == ANY:
        cuda.recorder.violation(f"a copy that takes a dead address for the host's: {text}")
    elif "freed" in text:
        cuda.recorder.violation(f"a copy of freed memory: {text}")
    raise CudaError(Code.INVALID_VALUE, text)


def submit_copy(cuda: FakeDriver, stream: Stream, target: Range, source: Range) -> None:
    """Queue a copy; one that touches pageable memory is done before this returns.

    The driver stages pageable memory while the caller waits, and such a copy is a mistake in a
    program that means to overlap: the double keeps count in `pageable_copies`.
    """
    point = cuda.scheduler.submit(stream, "copy", lambda: _copy(cuda, stream, target, source))
    if target.pageable or source.pageable:
        cuda.pageable_copies.append(f"{source.size} bytes in stream {stream.handle:#x}")
        cuda.scheduler.run_until(point)


def submit_copy_read_now(cuda: FakeDriver, stream: Stream, target: Range, source: Range) -> None:
    """Queue a copy whose source is read during the call, out of stream order."""
    data = ctypes.string_at(usable(cuda, stream, source), source.size)

    def store() -> None:
        ctypes.memmove(usable(cuda, stream, target), data, target.size)

    cuda.scheduler.submit(stream, "copy", store)


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
    if not found or not all(_reachable(m, stream, write=wanted.write) for m in found):
        text = f"work ran on memory that is gone: {cuda.memory.epitaph(wanted.address)}"
        cuda.recorder.violation(text)
        raise DeviceFaultError(Code.ILLEGAL_ADDRESS, text)
    early = next((m for m in found if not m.ready), None)
    if early is not None:
        cuda.recorder.violation(f"used before its stream allocated it: {early.allocation}")
    return cuda.memory.host_address(wanted.address)
