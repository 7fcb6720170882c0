"""Memory around an engine of a device: where batches are put, and what comes back."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload import driver
from gpuload.engines.base import DeviceBatch
from gpuload.memory import DecompressMemory, HostNumaMemory, copy, host_view
from tests.engines.engine_tests import Result, check
from tests.helpers.payloads import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    from cuda.core import Buffer, Stream

    from gpuload.engines.base import Engine, Outcome
    from tests.helpers.payloads import Work

__all__ = ["Bench", "Placed", "decode", "workbench"]

_GUARD = 64 << 20


@dataclass(frozen=True)
class Placed:
    """A batch in memory that the engine reaches, and what it leaves there."""

    batch: DeviceBatch
    words: npt.NDArray[np.uint32]
    window: Buffer


class Bench:
    """Memory around an engine: everything that is placed stays until the bench is closed."""

    def __init__(self) -> None:
        device = driver.device(0)
        device.set_current()
        self.stream = device.create_stream()
        self.host = HostNumaMemory(0)
        self.device = DecompressMemory(0, guard=_GUARD)
        self._kept: list[Buffer] = []

    def close(self) -> None:
        """Free everything, whatever fails, and raise the first failure."""
        with ExitStack() as closing:
            closing.callback(self.stream.close)
            closing.callback(self.device.close)
            closing.callback(self.host.close)

    def stored(self, data: npt.NDArray[np.uint8]) -> int:
        """Put bytes where the engine reads them over the link."""
        staging = self.host.allocate(max(1, data.size), stream=self.stream)
        self._kept.append(staging)
        host_view(staging)[: data.size] = data
        return int(staging.handle)

    def place(self, work: Work, stream: Stream | None = None) -> Placed:
        """Put all of a batch in place; the destination holds the poison of `work`."""
        stream = stream or self.stream
        window = self.device.allocate(work.out.size, stream=stream)
        self._kept.append(window)
        copy(int(window.handle), self.stored(work.out), work.out.size, stream)
        actual = self.host.allocate(max(4, 4 * work.rows.size), stream=stream)
        src, dst = work.src + self.stored(work.stored), work.dst + int(window.handle)
        batch = DeviceBatch(work.rows, src, dst, actual, stream)
        words = host_view(actual).view(np.uint32)[: work.rows.size]
        return Placed(batch, words, window)

    def fetch(self, window: Buffer) -> npt.NDArray[np.uint8]:
        landing = self.host.allocate(window.size, stream=self.stream)
        copy(int(landing.handle), int(window.handle), window.size, self.stream)
        self.stream.sync()
        return host_view(landing).copy()

    def start(self, engine: Engine[DeviceBatch], work: Work) -> Callable[[], Result]:
        """Submit a batch; what is returned waits for it."""
        placed = self.place(work)
        submission = engine.submit(placed.batch)
        return lambda: Result(submission.wait(), self.fetch(placed.window)[: work.out.size])


def decode(bench, engine, payloads, bad=(), **starts) -> Outcome:
    """Decode payloads, check what comes of them, and return the outcome."""
    work = lay_out(payloads, **starts)
    result = bench.start(engine, work)()
    check(payloads, work, result, bad)
    return result.outcome


@contextmanager
def workbench() -> Iterator[Bench]:
    bench = Bench()
    try:
        yield bench
    finally:
        bench.close()
