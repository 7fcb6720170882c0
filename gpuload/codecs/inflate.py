"""A raw DEFLATE stream that is fed piece by piece: ISA-L where it is installed, else zlib."""

from __future__ import annotations

import zlib
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Inflate", "errors", "new_stream"]


class Inflate(Protocol):
    """What ISA-L's decompressor offers, and `_Zlib` after it."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes without more data."""

    @property
    def unused_data(self) -> bytes:
        """What was fed beyond the end."""

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        """Return at most `max_length` decoded bytes; data that is not needed yet is kept."""


class _Zlib:
    """zlib's decompressor with the interface of ISA-L's."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, /, max_length: int) -> bytes:
        decoded = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        # A full answer may have more behind it even when all input is taken.
        self.needs_input = not self._stream.unconsumed_tail and len(decoded) < max_length
        return decoded


@cache
def _implementation() -> tuple[Callable[[], Inflate], type[Exception]]:
    try:
        from isal import igzip_lib
    except ImportError:
        return _Zlib, zlib.error
    # The library's own type stub calls its exception class an instance.
    error: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]
    return partial(igzip_lib.IgzipDecompressor, igzip_lib.DECOMP_DEFLATE), error


def new_stream() -> Inflate:
    """Return the decoder of a new stream."""
    return _implementation()[0]()


def errors() -> type[Exception]:
    """Return what `Inflate.decompress` raises for a damaged stream."""
    return _implementation()[1]
