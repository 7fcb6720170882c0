"""Writing compressed files: standard streams whose chunks decode independently, with an index."""

from __future__ import annotations

import io
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from gpuload.options import available_cpus
from gpuload.outputs import AtomicFile, write_all
from gpuload.sources import Source, open_source
from gpuload.writers import make_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from gpuload.writers.base import Packed, Writer

    Progress = Callable[[int, int], object]

__all__ = ["CompressReport", "compress"]

#: Least decoded bytes of one task, so that small chunks do not drown in its overhead.
_GROUP_SIZE = 1 << 20
#: Tasks in flight per thread: one being packed, one waiting for its turn to be written.
_TASKS_PER_THREAD = 2


@dataclass(frozen=True)
class CompressReport:
    """What `compress` did.

    Attributes
    ----------
    codec : str
        "lz4", "gzip", "zstd" or "snappy".
    source : str
        Name of the input.
    raw_size, stored_size : int
        Bytes read and bytes written.
    chunks : int
        Number of chunks.
    chunk_size : int
        Decoded bytes of every chunk but the last.
    level : int or None
        Compression level; None where the codec has none.
    seconds : float
        Time it took.
    """

    codec: str
    source: str
    raw_size: int
    stored_size: int
    chunks: int
    chunk_size: int
    level: int | None
    seconds: float

    @property
    def ratio(self) -> float:
        """Bytes read per byte written."""
        return self.raw_size / self.stored_size


def compress(
    source: Source | str | os.PathLike[str] | Buffer,
    dest: str | os.PathLike[str] | BinaryIO,
    *,
    codec: str,
    chunk_size: int | None = None,
    level: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = True,
) -> CompressReport:
    """Write a compressed copy that other tools read and gpuload loads in parallel.

    The bytes written do not depend on the number of threads.

    Parameters
    ----------
    source : str, os.PathLike, bytes-like or Source
        As `gpuload.sources.open_source` takes it. A Source stays open.
    dest : str, os.PathLike or binary file
        A path gets its content at the end, whole, or is left alone (see
        `gpuload.outputs.AtomicFile`). A file object is written to and stays open.
    codec : str
        "lz4" (an LZ4 frame), "gzip" (BGZF), "zstd" (frames and a seek table) or "snappy" (the
        framing format).
    chunk_size : int, optional
        Decoded bytes of a chunk. Up to ``2 * threads`` of them are in memory at once, or groups of
        them that make a MiB.
    level : int, optional
        Compression level as the codec's own tool counts it; Snappy has none.
    threads : int, optional
        Default one for each CPU that this process may use.
    progress : callable, optional
        Called as ``progress(done_bytes, total_bytes)``, of decoded bytes, from the calling thread.
    overwrite : bool, optional
        Whether a file at the path `dest` may be replaced.

    Returns
    -------
    CompressReport
        Sizes, settings and the time it took.

    Raises
    ------
    ValueError
        If codec, chunk_size, level or threads is not allowed; the message lists what is.
    FormatError
        If the source shrinks while it is read.
    OSError
        As the file system says.
    """
    started = time.perf_counter()
    writer = make_writer(codec, chunk_size, level)
    workers = _thread_count(threads)
    with ExitStack() as stack:
        opened = source if isinstance(source, Source) else stack.enter_context(open_source(source))
        writer.check(opened.size)
        sink = stack.enter_context(_open_sink(dest, overwrite=overwrite))
        pool = stack.enter_context(_open_pool(workers))
        groups = _packed_groups(opened, writer, pool, workers * _TASKS_PER_THREAD)
        _write_stream(sink, writer, groups, opened.size, progress)
    return CompressReport(
        codec=codec,
        source=opened.name,
        raw_size=opened.size,
        stored_size=sink.size,
        chunks=writer.chunk_count(opened.size),
        chunk_size=writer.chunk_size,
        level=writer.level,
        seconds=time.perf_counter() - started,
    )


def _thread_count(threads: int | None) -> int:
    if threads is None:
        return available_cpus()
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    return threads


class _Sink:
    """What writes all it is given, and counts it."""

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        self._write = write
        self.size = 0

    def write(self, data: bytes) -> None:
        write_all(self._write, data)
        self.size += len(data)


@contextmanager
def _open_sink(dest: str | os.PathLike[str] | BinaryIO, *, overwrite: bool) -> Iterator[_Sink]:
    """Yield the sink of a path, which takes its name when nothing failed, or of a file."""
    if not isinstance(dest, str | os.PathLike):
        yield _Sink(_write_method(dest))
        return
    with AtomicFile(dest, overwrite=overwrite) as file:
        yield _Sink(partial(os.write, file.fd))
        file.commit()


def _write_method(dest: object) -> Callable[[memoryview], object]:
    write = getattr(dest, "write", None)
    if write is None or isinstance(dest, io.TextIOBase):
        raise TypeError(f"dest must be a path or a binary file, not {type(dest).__name__}")
    if isinstance(dest, io.RawIOBase):
        # A raw file says None where it took nothing, other objects where they took everything.
        return lambda view: write(view) or 0
    return cast("Callable[[memoryview], object]", write)


@contextmanager
def _open_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool that drops what waits in it when an error or Ctrl-C ends the work."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="gpuload-compress")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Group(NamedTuple):
    raw: memoryview
    packed: Packed


def _packed_groups(
    source: Source, writer: Writer, pool: ThreadPoolExecutor, in_flight: int
) -> Iterator[_Group]:
    """Yield all groups in the order of the data, packing the next ones meanwhile.

    A group is valid until the next one is asked for: its memory is used again.
    """
    size = max(1, _GROUP_SIZE // writer.chunk_size) * writer.chunk_size
    pending: deque[Future[_Group]] = deque()
    spare: list[memoryview] = []
    for start in range(0, source.size, size):
        if len(pending) == in_flight:
            group = pending.popleft().result()
            yield group
            spare.append(group.raw)
        left = source.size - start
        raw = spare.pop() if spare else memoryview(bytearray(min(size, left)))
        pending.append(pool.submit(_pack_group, source, writer, start, raw[:left]))
    while pending:
        yield pending.popleft().result()


def _pack_group(source: Source, writer: Writer, start: int, raw: memoryview) -> _Group:
    source.read_exact(start, raw)
    step = writer.chunk_size
    return _Group(raw, writer.pack([raw[at : at + step] for at in range(0, len(raw), step)]))


def _write_stream(
    sink: _Sink, writer: Writer, groups: Iterator[_Group], raw_size: int, progress: Progress | None
) -> None:
    sink.write(writer.header(raw_size))
    done = 0
    for raw, packed in groups:
        writer.note(packed.notes)
        # Joined here and not in the pool: the allocator then hands out the same memory every time.
        sink.write(b"".join(packed.pieces))
        done += len(raw)
        if progress is not None:
            progress(done, raw_size)
    sink.write(writer.trailer())
