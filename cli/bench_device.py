"""Memory on a device, and the time that work takes there, for ``gpuload bench kernels``."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import numpy as np

from gpuload import driver
from gpuload.errors import GpuloadError
from gpuload.memory import DecompressMemory, copy, host_view, staging_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from cuda.core import Buffer, Event

    Content = npt.NDArray[np.uint8]

__all__ = ["POISON", "DeviceBench", "WrongBytesError", "compare"]

#: What the destination holds before every run.
POISON = 0xCD
#: Bytes that are fetched at a time to be compared.
_PIECE = 32 << 20
#: Fills of the destination before a run, at most.
_MOST_FILLS = 512


class WrongBytesError(GpuloadError):
    """An engine decoded something else than what was compressed."""


class DeviceBench:
    """A destination, the content that belongs there, and a stream.

    Parameters
    ----------
    device_id : int
        The device, which is current.
    size : int
        Bytes of a content.
    chunks : int
        Most chunks of a batch.
    mapped : bool
        Whether stored chunks stay in host memory that the device reads over the link.

    Attributes
    ----------
    stream : Stream
        For all work.
    target, original : Buffer
        Where the content is decoded to, and a copy of it.
    actual : Buffer
        A word for each chunk (see `gpuload.engines.base.DeviceBatch`).
    """

    def __init__(self, device_id: int, size: int, chunks: int, *, mapped: bool) -> None:
        from cuda.core import EventOptions

        self.mapped = mapped
        self.content: Content = np.empty(0, np.uint8)
        self._fills = 1
        device = driver.device(device_id)
        with ExitStack() as undo:
            with driver.calling("cuStreamCreateWithPriority", "a benchmark"):
                self.stream = device.create_stream()
            undo.callback(self.stream.close)
            self._events: list[Event] = []
            for _ in range(2):
                with driver.calling("cuEventCreate", "the time that work takes"):
                    self._events.append(device.create_event(EventOptions(timing_enabled=True)))
                undo.callback(self._events[-1].close)
            self._device = undo.enter_context(DecompressMemory(device_id))
            self._host = staging_memory(device_id, undo)
            # A statement each: cuda.core does not survive that a buffer goes while an error rises.
            self.target = self._on_device(size)
            self.original = self._on_device(size)
            self.actual = self._on_host(4 * chunks, undo)
            self._landing = self._on_host(min(size, _PIECE), undo)
            self._undo = undo.pop_all()

    def _on_device(self, size: int) -> Buffer:
        return self._device.allocate(size, stream=self.stream)

    def _on_host(self, size: int, undo: ExitStack) -> Buffer:
        """Return memory that both sides use, on the device's own NUMA node if there is such."""
        with driver.calling("cuMemAllocHost", f"{size} bytes of the host's memory"):
            buffer = self._host.allocate(size, stream=self.stream)
        undo.callback(buffer.close)
        return buffer

    def load(self, content: Content) -> None:
        """Take a content of the size that was announced."""
        self.content = content
        copy(int(self.original.handle), content.ctypes.data, content.size, self.stream)
        self.wait()

    @contextlib.contextmanager
    def stored(self, chunks: Content) -> Iterator[int]:
        """Yield the address of stored chunks in memory that the device reads."""
        with ExitStack() as undo:
            if self.mapped:
                buffer = self._on_host(chunks.size, undo)
                host_view(buffer)[:] = chunks
            else:
                buffer = self._on_device(chunks.size)
                undo.callback(buffer.close)
                copy(int(buffer.handle), chunks.ctypes.data, chunks.size, self.stream)
                self.wait()
            yield int(buffer.handle)

    def seconds(self, run: Callable[[], Callable[[], object]]) -> tuple[float, bool]:
        """Return how long the device works on something, and whether it had to wait for the host.

        The destination is poisoned first, several times if it must be: the device is still busy
        with that when the host has submitted everything, so that only its own work counts.

        Parameters
        ----------
        run : callable
            Submits work, and returns what waits for it.
        """
        while True:
            seconds, waited = self._sample(run)
            if not waited or self._fills >= _MOST_FILLS:
                return seconds, waited
            self._fills *= 2

    def warm_up(self, run: Callable[[], Callable[[], object]]) -> None:
        """Do something once that will be timed."""
        self._fills = 1
        self._sample(run)

    def _sample(self, run: Callable[[], Callable[[], object]]) -> tuple[float, bool]:
        began, ended = self._events
        with driver.calling("cuMemsetD8Async", "the poison of the destination"):
            for _ in range(self._fills):
                self.target.fill(POISON, stream=self.stream)
            self.stream.record(began)
        finish = run()
        with driver.calling("cuEventRecord", "the end of a run"):
            self.stream.record(ended)
            waited = began.is_done
        finish()
        with driver.calling("cuEventSynchronize", "a run"):
            ended.sync()
            return (ended - began) / 1e3, waited

    def check(self, size: int) -> None:
        """Compare the start of the destination with the content.

        Raises
        ------
        WrongBytesError
            If a byte is wrong.
        """
        view, address = host_view(self._landing), int(self.target.handle)
        for at in range(0, size, view.size):
            piece = view[: min(view.size, size - at)]
            copy(int(self._landing.handle), address + at, piece.size, self.stream)
            self.wait()
            compare(piece, self.content[at : at + piece.size], at)

    def wait(self) -> None:
        """Block until everything that was submitted is done."""
        with driver.calling("cuStreamSynchronize", "a benchmark"):
            self.stream.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()


def compare(found: Content, expected: Content, offset: int) -> None:
    """Compare decoded bytes; `offset` is their place in the content.

    Raises
    ------
    WrongBytesError
        If a byte is wrong.
    """
    # Words take an eighth of the memory for what the comparison answers.
    whole = found.size // 8 * 8
    words = found[:whole].view(np.uint64), expected[:whole].view(np.uint64)
    if np.array_equal(*words) and np.array_equal(found[whole:], expected[whole:]):
        return
    at = int(np.flatnonzero(found != expected)[0])
    raise WrongBytesError(
        f"byte {offset + at} of the content decodes to {found[at]:#04x}, it is {expected[at]:#04x}"
    )
