"""Contents cut into chunks and compressed, for ``gpuload bench kernels``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuload.chunks import ChunkTable, Codec, make_table

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from typing_extensions import Buffer

    Compress = Callable[[memoryview], Buffer]

__all__ = ["ALIGNMENT", "Chunks", "compress"]

#: What stored chunks start at multiples of, so that no engine has to move them first.
ALIGNMENT = 16
#: Least bytes of one task.
_TASK = 1 << 20
#: How lz4, libdeflate and zstd are asked to compress: by their own defaults.
_DEFLATE_LEVEL, _ZSTD_LEVEL = 6, 3


@dataclass(frozen=True)
class Chunks:
    """Compressed chunks.

    Attributes
    ----------
    rows : ChunkTable
        `offset` counts from the start of `stored`; `dst_offset` is the place in the content.
    stored : ndarray of uint8
        The payloads, with their prefixes before them.
    """

    rows: ChunkTable
    stored: npt.NDArray[np.uint8]

    def stored_size(self, count: int) -> int:
        """Return the bytes of the first chunks, as the codec's library wrote them."""
        first = self.rows[:count]
        return int(first["stored_size"].sum()) + int(first["prefix_size"].sum())

    def raw_size(self, count: int) -> int:
        """Return what the first chunks decode to, in bytes."""
        return int(self.rows["raw_size"][:count].sum())

    def end(self, count: int) -> int:
        """Return where the first chunks end in `stored`."""
        last = self.rows[count - 1]
        return int(last["offset"]) + int(last["stored_size"])


def compress(
    content: npt.NDArray[np.uint8], codec: str, chunk_size: int, *, threads: int
) -> Chunks:
    """Compress a content, every chunk on its own.

    Parameters
    ----------
    content : ndarray of uint8
        At least one byte.
    codec : str
        "lz4", "snappy", "deflate" or "zstd".
    chunk_size : int
        Bytes of every chunk but the last.
    threads : int
        How many of them to use.
    """
    step = max(1, _TASK // chunk_size) * chunk_size
    tasks = [memoryview(content)[at : at + step] for at in range(0, content.size, step)]
    # In this thread: imports in many at once wait for each other.
    _COMPRESSORS[codec]()
    with ThreadPoolExecutor(threads) as pool:
        packed = list(pool.map(partial(_pack, codec, chunk_size), tasks))
    sizes = np.concatenate([sizes for _, sizes in packed])
    stored = np.frombuffer(b"".join(piece for piece, _ in packed), np.uint8)
    return Chunks(_table(codec, chunk_size, content.size, sizes), stored)


def _pack(codec: str, chunk_size: int, task: memoryview) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return chunks, each filled up to a multiple of `ALIGNMENT`, and their sizes before that."""
    run = _COMPRESSORS[codec]()
    chunks = [bytes(run(task[at : at + chunk_size])) for at in range(0, len(task), chunk_size)]
    filled = b"".join(chunk + bytes(-len(chunk) % ALIGNMENT) for chunk in chunks)
    return filled, np.array([len(chunk) for chunk in chunks])


def _table(codec: str, chunk_size: int, total: int, sizes: npt.NDArray[np.int64]) -> ChunkTable:
    filled = -(-sizes // ALIGNMENT) * ALIGNMENT
    raw = np.full(sizes.size, chunk_size)
    raw[-1] = total - chunk_size * (sizes.size - 1)
    prefix = _preamble_sizes(raw) if codec == "snappy" else np.zeros_like(raw)
    return make_table(
        np.cumsum(filled) - filled + prefix,
        stored_size=sizes - prefix,
        raw_size=raw,
        prefix_size=prefix,
        codec=Codec[codec.upper()],
        exact=True,
    )


def _preamble_sizes(raw: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bytes of varints, 7 bits each (Snappy format description, section 1)."""
    limits = 1 << np.array([7, 14, 21, 28])
    return 1 + np.searchsorted(limits, raw, side="right")


def _lz4() -> Compress:
    import lz4.block

    return partial(lz4.block.compress, store_size=False)


def _snappy() -> Compress:
    import cramjam

    return cramjam.snappy.compress_raw


def _deflate() -> Compress:
    import deflate

    return lambda chunk: deflate.deflate_compress(chunk, _DEFLATE_LEVEL)


def _zstd() -> Compress:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress


#: What returns a function that compresses a chunk, for one thread.
_COMPRESSORS: dict[str, Callable[[], Compress]] = {
    "lz4": _lz4,
    "snappy": _snappy,
    "deflate": _deflate,
    "zstd": _zstd,
}
