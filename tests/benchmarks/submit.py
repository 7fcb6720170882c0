"""Host time of the SM engine: from `submit` to its return, for batches of one chunk and of more.

    python -m tests.benchmarks.submit            # on a GPU, with everything that submitting takes
    python -m tests.benchmarks.submit --stub     # without a GPU: the Python in it alone

With ``--stub`` the driver's two calls (the launch and the event's record) are left out, and memory
of NumPy's stands for pinned memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace

import numpy as np

from gpuload.chunks import Codec, make_table
from gpuload.engines.base import DeviceBatch

COUNTS = (1, 2, 16, 256, 4096)
SIZE = 65536
#: What issue and README promise for one chunk, in microseconds.
WANTED = 60


class Memory:
    """What the engine needs of a buffer of cuda.core."""

    is_host_accessible = True

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size, np.uint8)
        self.handle, self.size = self._bytes.ctypes.data, size

    def close(self) -> None:
        """There is nothing to do."""


def stub_engine():
    """Return an engine that launches nothing, and a stream that records nothing."""
    from gpuload import driver
    from gpuload.engines import operations, pinned, sm

    driver.claim()
    driver.capabilities = lambda _: SimpleNamespace(multiprocessors=132)
    event = SimpleNamespace(sync=lambda: None, close=lambda: None)
    engine = sm.SmEngine(0)
    engine._blocks._make = lambda size: pinned.PinnedBlock(Memory(size), event)

    def launch(variant, block, batch):
        operations.statuses(block, batch.rows.size)[:] = 0
        # As the kernel would.
        words = np.frombuffer(batch.actual._bytes, np.uint32)
        words[: batch.rows.size] = batch.rows["raw_size"]

    engine._launch = launch
    return engine, SimpleNamespace(record=lambda event: None, sync=lambda: None), Memory


def real_engine():
    """Return an engine, a stream, and a function that makes memory that both sides reach."""
    from cuda.core import LegacyPinnedMemoryResource

    from gpuload import driver
    from gpuload.engines.sm import SmEngine

    device = driver.device(0)
    device.set_current()
    return SmEngine(0), device.create_stream(), LegacyPinnedMemoryResource().allocate


def batch(count: int, stream, allocate):
    """Return a batch of blocks of literals, which are quick to make."""
    from gpuload.memory import host_view

    # LZ4 block format: token 15, bytes of 255 that add to the length, and the literals.
    more, last = divmod(SIZE - 15, 255)
    block = b"\xf0" + b"\xff" * more + bytes([last]) + bytes(SIZE)
    source, target = allocate(len(block)), allocate(count * SIZE)
    host_view(source)[: len(block)] = np.frombuffer(block, np.uint8)
    rows = make_table(range(count), codec=Codec.LZ4, raw_size=SIZE, stored_size=len(block))
    src = np.full(count, int(source.handle), np.int64)
    dst = int(target.handle) + SIZE * np.arange(count)
    return DeviceBatch(rows, src, dst, allocate(4 * count), stream), (source, target)


def measure(engine, one, repeats: int) -> tuple[float, float]:
    """Return the medians of microseconds of submitting and of waiting."""
    submitting, waiting = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        submission = engine.submit(one)
        submitted = time.perf_counter()
        assert not submission.wait().reasons
        submitting.append(submitted - start)
        waiting.append(time.perf_counter() - submitted)
    return statistics.median(submitting) * 1e6, statistics.median(waiting) * 1e6


def main() -> None:
    """Print a line for each count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stub", action="store_true", help="leave the driver out")
    parser.add_argument("--repeats", type=int, default=500)
    given = parser.parse_args()
    engine, stream, allocate = stub_engine() if given.stub else real_engine()
    for count in COUNTS:
        one, kept = batch(count, stream, allocate)
        engine.submit(one).wait()
        submitting, waiting = measure(engine, one, given.repeats)
        note = f" (wanted: below {WANTED})" if count == 1 else ""
        print(f"{count:>5} chunks: submit {submitting:.1f} us{note}, wait {waiting:.1f} us")
        del kept
    engine.close()


if __name__ == "__main__":
    main()
