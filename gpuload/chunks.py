"""The chunk table: one row per compressed chunk, read or written by every part of gpuload.

Readers (``containers/``) produce it; the planner, the batch builder and the engines consume it with
vectorised NumPy.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

#: A one-dimensional structured array of `CHUNK_DTYPE`.
ChunkTable = npt.NDArray[np.void]
#: A one-dimensional structured array of `SPAN_DTYPE`.
SpanTable = npt.NDArray[np.void]

#: `raw_size` of a span whose format does not state its decoded size.
UNKNOWN = 2**64 - 1


class Codec(IntEnum):
    """How the payload of a row is compressed."""

    RAW = 0
    DEFLATE = 1  #: a raw DEFLATE stream (RFC 1951), without gzip or zlib wrapping
    SNAPPY = 2  #: raw Snappy elements, without the length preamble (that is the row's prefix)
    LZ4 = 3  #: a raw LZ4 block
    ZSTD = 4  #: one Zstandard frame (RFC 8878)
    GZIP = 5  #: one or more whole gzip members (RFC 1952) whose ends only decoding finds; host only
    #: Microsoft DirectStorage's and NVIDIA's GDeflate, a DEFLATE stream laid out for 32 lanes;
    #: nvCOMP only
    GDEFLATE = 6
    BLOSC = 7  #: a whole Blosc 1 chunk, whose compressor only the library has (blosclz); host only


class Checksum(IntEnum):
    """What a checksum is computed with, and of which bytes."""

    NONE = 0
    XXH32_STORED = 1  #: xxHash-32 of the stored payload (LZ4 block checksum)
    XXH32 = 2  #: xxHash-32 of the decoded bytes (LZ4 content checksum)
    XXH64_LOW = 3  #: low 32 bits of xxHash-64 of the decoded bytes (Zstandard)
    CRC32 = 4  #: CRC-32 of the decoded bytes (gzip)
    CRC32C_MASKED = 5  #: CRC-32C of the decoded bytes, rotated and offset (Snappy framing)
    ADLER32 = 6  #: Adler-32 of the decoded bytes (zlib); only the host computes it


CHUNK_DTYPE = np.dtype(
    [
        ("source", "<u4"),  # index into the container's sources
        ("asset", "<u4"),  # index into the container's assets
        ("offset", "<u8"),  # first byte of the bare payload in the source
        ("stored_size", "<u8"),  # bytes of the bare payload
        ("raw_size", "<u8"),  # decoded bytes: the size if `exact`, else an upper bound
        ("dst_offset", "<u8"),  # place of the decoded bytes in the asset (slots if inexact)
        ("checksum", "<u8"),
        ("prefix_size", "<u4"),  # bytes right before the payload that a host decoder wants back
        ("codec", "<u2"),
        ("checksum_kind", "u1"),
        ("exact", "?"),  # raw_size is the size, stated by the file
        ("chained", "?"),  # decodes only after the row before it, whose output is its history
        ("dictionary", "?"),  # the file says that a dictionary is needed
        ("padding", "V6"),
    ],
    align=True,
)

SPAN_DTYPE = np.dtype(
    [
        ("first", "<u8"),  # first row
        ("count", "<u8"),  # number of rows; they decode to consecutive bytes
        ("raw_size", "<u8"),  # decoded bytes that the header states, or UNKNOWN
        ("offset", "<u8"),  # where the checksum stands in the source
        ("checksum", "<u8"),
        ("checksum_kind", "u1"),
        ("padding", "V7"),
    ],
    align=True,
)
"""One row per frame whose size or checksum covers several chunks (as those of an LZ4 frame do)."""


def make_table(offset: npt.ArrayLike, **columns: Any) -> ChunkTable:
    """Return a chunk table from its columns.

    Parameters
    ----------
    offset : array-like of int
        Payload offsets; its length is the number of rows.
    **columns
        Any other column by name, arrays of that length or scalars; columns left out are zero.

    Returns
    -------
    ChunkTable
        `dst_offset` is the running sum of `raw_size` unless it is given.
    """
    offset = np.asarray(offset, dtype=np.uint64)
    table = np.zeros(offset.size, CHUNK_DTYPE)
    table["offset"] = offset
    for name, values in columns.items():
        table[name] = values
    if "dst_offset" not in columns:
        place(table)
    return table


def place(table: ChunkTable) -> None:
    """Set `dst_offset` of rows that follow one another: the running sum of `raw_size`."""
    if table.size:
        table["dst_offset"][0] = 0
        np.cumsum(table["raw_size"][:-1], out=table["dst_offset"][1:])


def make_spans(spans: list[tuple[int, int, int, int, int, int]]) -> SpanTable:
    """Return a span table from tuples (first, count, raw_size, offset, checksum, checksum_kind)."""
    table = np.zeros(len(spans), SPAN_DTYPE)
    if spans:
        names = ("first", "count", "raw_size", "offset", "checksum", "checksum_kind")
        for name, column in zip(names, zip(*spans, strict=True), strict=True):
            table[name] = column
    return table
