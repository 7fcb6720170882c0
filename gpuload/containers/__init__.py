"""Readers, one module a format: bytes in, chunk table out. No CUDA, no payload.

The format is recognised by the first bytes of a file, never by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload.containers import gzip, lz4, snappy, zstd
from gpuload.errors import FormatError

if TYPE_CHECKING:
    from gpuload.containers.base import Index
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["FORMATS", "read_index"]

#: Formats by name, as messages list them.
FORMATS = {
    "lz4": "LZ4 frame, also legacy (04 22 4d 18, 02 21 4c 18)",
    "gzip": "gzip and BGZF (1f 8b)",
    "zstd": "Zstandard (28 b5 2f fd)",
    "snappy": "Snappy framing (ff 06 00 00 73 4e 61 50 70 59)",
}

_SHOWN = 16
