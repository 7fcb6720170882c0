"""Ways to decode whole files, and data that tests of several formats share."""

from __future__ import annotations

import os
import random
import threading
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpuload.sources import BytesSource, LocalFile, Source
from tests.helpers import host

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["MIB", "NOISE", "TEXT", "Waiting", "allocating_at_most", "decoded", "written"]

MIB = 1 << 20
TEXT = b"".join(b"%d bottles of something on the wall\n" % n for n in range(6_000))
NOISE = random.Random(7).randbytes(100_000)


def decoded(data: bytes, **options: Any) -> bytes:
    """Decode into memory; a warning fails the test."""
    return bytes(host.load(data, **options))


def written(data: bytes, path: Path, *, positional: bool = False, **options: Any) -> bytes:
    """Decode to a descriptor, by default in order, as to a pipe."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        with host.open(data, **options) as container:
            container.write_to(fd, positional=positional)
    finally:
        os.close(fd)
    return path.read_bytes()


@contextmanager
def allocating_at_most(size: int) -> Iterator[None]:
    """Fail if what runs inside has more than `size` bytes allocated at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= size, f"{peak} bytes were allocated"


class Waiting(Source):
    """A source that, once `armed`, is not read before `go_on` is set.

    Parameters
    ----------
    content : path or bytes
        What it reads.
    """

    def __init__(self, content: Path | bytes) -> None:
        self._inner = BytesSource(content) if isinstance(content, bytes) else LocalFile(content)
        self.name, self.size = self._inner.name, self._inner.size
        self.armed = False
        self.go_on = threading.Event()

    def readinto(self, offset: int, view: memoryview) -> int:
        if self.armed and not self.go_on.wait(60):
            raise TimeoutError("nobody let it go on")
        return self._inner.readinto(offset, view)

    def close(self) -> None:
        self._inner.close()
