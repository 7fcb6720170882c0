"""Seeded damage to files, and what other decoders say of the result."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import cramjam
import lz4.frame
import zstandard

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["REFERENCES", "mutated"]


def mutated(rng: random.Random, files: list[bytes]) -> bytes:
    """Return one of the files with one to three kinds of damage."""
    data = bytearray(rng.choice(files))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_DAMAGES)(rng, data, files)
    return bytes(data)


def _place(rng: random.Random, data: bytearray) -> int:
    """Return an offset: as often near an end, where the framing is, as anywhere."""
    near = rng.randrange(min(64, len(data) + 1))
    return rng.choice((near, max(0, len(data) - 1 - near), rng.randrange(len(data) + 1)))


def _flip(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = _place(rng, data)
        if place < len(data):
            data[place] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    del data[_place(rng, data) :]


def _remove(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    place = _place(rng, data)
    del data[place : place + rng.choice((1, 4, 100, 5_000))]


def _repeat(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    place = _place(rng, data)
    data[place:place] = data[place : place + rng.choice((1, 4, 100, 5_000))]


def _overwrite(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    place, size = _place(rng, data), rng.choice((1, 2, 4, 8))
    kind = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
    data[place : place + size] = kind


def _splice(rng: random.Random, data: bytearray, files: list[bytes]) -> None:
    other = rng.choice(files)
    start = rng.randrange(len(other) + 1)
    place = _place(rng, data)
    data[place : place + rng.choice((0, 50, 3_000))] = other[start : start + 3_000]


def _append(rng: random.Random, data: bytearray, files: list[bytes]) -> None:
    data += rng.choice((rng.choice(files), bytes(9), rng.randbytes(9), rng.choice(files)[:40]))


def _new_header(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    size = rng.randrange(1, 24)
    data[rng.choice((0, 4)) : size] = rng.randbytes(size)


_DAMAGES: list[Callable[[random.Random, bytearray, list[bytes]], None]] = [
    _flip,
    _flip,
    _cut,
    _remove,
    _repeat,
    _overwrite,
    _splice,
    _append,
    _new_header,
]


def _lz4(data: bytes) -> bytes:
    parts = []
    while data:
        decoder = lz4.frame.LZ4FrameDecompressor()
        parts.append(decoder.decompress(data))
        if not decoder.eof:
            raise EOFError("the frame is cut short")
        data = decoder.unused_data or b""
    return b"".join(parts)


def _gzip(data: bytes) -> bytes:
    # Bytes behind the last member are ignored, as gunzip does and the gzip module does not.
    parts = []
    while data[:2] == b"\x1f\x8b":
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        parts.append(decoder.decompress(data))
        if not decoder.eof:
            raise EOFError("the member is cut short")
        data = decoder.unused_data
    if not parts:
        raise gzip.BadGzipFile("no gzip file")
    return b"".join(parts)


def _zstd(data: bytes) -> bytes:
    parts = []
    while data:
        # Skippable frames decode to nothing, and the library stops behind them.
        decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        parts.append(decoder.decompress(data))
        if not decoder.eof:
            raise EOFError("the frame is cut short")
        data = decoder.unused_data
    return b"".join(parts)


def _snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.decompress(data))


#: The reference decoder of each format; any exception is a refusal.
REFERENCES: dict[str, Callable[[bytes], bytes]] = {
    "lz4": _lz4,
    "gzip": _gzip,
    "bgzf": _gzip,
    "zstd": _zstd,
    "snappy": _snappy,
}
