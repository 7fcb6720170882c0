"""Writers, one module a format: chunks in, a stream that other tools read out. No files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.writers.bgzf import BgzfWriter
from gpuload.writers.lz4 import Lz4Writer
from gpuload.writers.snappy import SnappyWriter
from gpuload.writers.zstd import ZstdWriter

if TYPE_CHECKING:
    from gpuload.writers.base import Writer

__all__ = ["WRITERS", "make_writer"]

#: Writers by the name of their codec.
WRITERS: dict[str, type[Writer]] = {
    writer.codec: writer for writer in (Lz4Writer, BgzfWriter, ZstdWriter, SnappyWriter)
}


def make_writer(codec: str, chunk_size: int | None = None, level: int | None = None) -> Writer:
    """Return a new writer.

    Parameters
    ----------
    codec : str
        A key of `WRITERS`.
    chunk_size : int, optional
        Decoded bytes of every chunk but the last; default as the format suggests.
    level : int, optional
        Compression level; default as the format's own tool.

    Raises
    ------
    ValueError
        If one of them is not allowed; the message lists what is.
    """
    if codec not in WRITERS:
        raise ValueError(f"codec must be one of {', '.join(WRITERS)}, not {codec!r}")
    return WRITERS[codec](chunk_size, level)
