"""Readers, one module a format: bytes in, chunk table out. No CUDA, no payload.

The format is recognised by the first bytes of a file, never by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.containers import foreign, gzip, lz4, skippable, snappy, zstd
from gpuload.containers.bounded import BoundedSource
from gpuload.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuload.containers.base import Index, Listener
    from gpuload.options import Options
    from gpuload.sources import Source

    Read = Callable[..., Index]

__all__ = ["FORMATS", "LISTED_ON_THE_WAY", "is_stream", "read_index"]

#: Formats by name, as messages list them.
FORMATS = {
    "lz4": "LZ4 frame, also legacy (04 22 4d 18, 02 21 4c 18)",
    "gzip": "gzip and BGZF (1f 8b)",
    "zstd": "Zstandard (28 b5 2f fd)",
    "snappy": "Snappy framing (ff 06 00 00 73 4e 61 50 70 59)",
}

#: Formats whose readers hand over rows while they go.
LISTED_ON_THE_WAY = ("lz4", "snappy", "bgzf")

_READERS: list[tuple[Callable[[bytes], bool], Read]] = [
    (reader.is_magic, reader.read) for reader in (lz4, zstd, gzip, snappy)
]
_SHOWN = 16
#: What `gpuload.containers.arrays` reads.
_ARRAYS = "arrays: Zarr, NPZ, NPY, safetensors, zip"


def is_stream(first: bytes) -> bool:
    """Return whether a file with these first bytes is of a format that `read_index` knows."""
    return skippable.is_magic(first) or any(is_magic(first) for is_magic, _ in _READERS)


def read_index(source: Source, options: Options, listener: Listener | None = None) -> Index:
    """Recognise the format of a source and read its index.

    Parameters
    ----------
    source : Source
        The file.
    options : Options
        `strict`, `dictionary` and `window_limit` matter here.
    listener : Listener, optional
        Is given the rows while they are found, by the readers in `LISTED_ON_THE_WAY`.

    Returns
    -------
    Index
        Headers only were read.

    Raises
    ------
    FormatError
        If the first bytes belong to no known format (the message shows them, or names the format
        if it is a common one), or the framing is broken.
    UnsupportedCodecError
        If the file needs a version, a codec or a dictionary that is not at hand.
    MemoryLimitError
        If the file has more chunks than `memory_limit` has room for.
    """
    bounded = BoundedSource(source, options)
    index = _read(bounded, options, listener)
    index.source = source
    return index


def _read(source: Source, options: Options, listener: Listener | None) -> Index:
    first = source.peek(0, _SHOWN)
    # Skippable frames are shared by LZ4 and Zstandard: what follows them decides.
    magic = source.peek(skippable.skip(source, 0), 4) if skippable.is_magic(first) else first
    for is_magic, read in _READERS:
        if is_magic(magic):
            return read(source, options) if listener is None else read(source, options, listener)
    if skippable.is_magic(first) and not magic:
        return lz4.read(source, options, listener)
    raise FormatError(_unknown(source, first), source=source.name, offset=0)


def _unknown(source: Source, first: bytes) -> str:
    known = "; ".join((*FORMATS.values(), _ARRAYS))
    if not first:
        return f"the file is empty; known formats are {known}"
    if name := foreign.name_of(source):
        return f"{name}, which gpuload does not read; known formats are {known}"
    return f"unknown format: it starts with {first.hex(' ')}; known formats are {known}"
