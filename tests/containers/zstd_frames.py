"""Zstandard frames and seek tables built by hand, and libzstd to read them back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import xxhash
import zstandard

from gpuload.containers import zstd
from gpuload.options import Options
from gpuload.sources import BytesSource

if TYPE_CHECKING:
    from gpuload.containers.base import Index

MAGIC = b"\x28\xb5\x2f\xfd"
RAW, RLE, COMPRESSED, RESERVED = range(4)
KIB, MIB = 1 << 10, 1 << 20
#: Flags of the frame header descriptor by the size of the field they announce.
CONTENT_SIZE_FLAGS = {0: 0, 1: 0, 2: 1, 4: 2, 8: 3}
DICTIONARY_ID_FLAGS = {0: 0, 1: 1, 2: 2, 4: 3}
#: Window descriptor of 1 MiB: exponent 10, mantissa 0.
WINDOW_1M = 0x50


def little(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def block(kind: int, size: int, content: bytes = b"", *, last: bool = True) -> bytes:
    return little(size << 3 | kind << 1 | last, 3) + content


def raw(content: bytes, *, last: bool = True) -> bytes:
    return block(RAW, len(content), content, last=last)


def frame(
    *blocks: bytes,
    window: int | None = WINDOW_1M,
    content_size: tuple[int, int] | None = None,
    dictionary: tuple[int, int] = (0, 0),
    checksum: int | None = None,
    reserved: bool = False,
) -> bytes:
    """Return a frame; sizes and IDs are pairs of value and field size, no window is one segment."""
    content, content_bytes = content_size or (0, 0)
    identifier, id_bytes = dictionary
    descriptor = CONTENT_SIZE_FLAGS[content_bytes] << 6 | DICTIONARY_ID_FLAGS[id_bytes]
    descriptor |= (window is None) << 5 | reserved << 3 | (checksum is not None) << 2
    header = MAGIC + bytes([descriptor]) + (b"" if window is None else bytes([window]))
    header += little(identifier, id_bytes) + little(content, content_bytes)
    return header + b"".join(blocks) + (b"" if checksum is None else little(checksum, 4))


def skippable(content: bytes, magic: int = 0x184D2A50) -> bytes:
    return little(magic, 4) + little(len(content), 4) + content


def seek_table(
    entries: list[tuple[int, ...]], *, descriptor: int | None = None, count: int | None = None
) -> bytes:
    """Return a seek table; entries are (stored size, decoded size) and maybe a checksum."""
    if descriptor is None:
        descriptor = 0x80 * any(len(entry) == 3 for entry in entries)
    count = len(entries) if count is None else count
    content = b"".join(little(value, 4) for entry in entries for value in entry)
    footer = little(count, 4) + bytes([descriptor]) + little(0x8F92EAB1, 4)
    return skippable(content + footer, 0x184D2A5E)


def low64(content: bytes) -> int:
    return xxhash.xxh64_intdigest(content) & 0xFFFFFFFF


def compress(content: bytes, **flags: bool) -> bytes:
    return zstandard.ZstdCompressor(level=3, **flags).compress(content)


def read(data: bytes, **options: Any) -> Index:
    return zstd.read(BytesSource(data, "a.zst"), Options(**options))


def decode_rows(data: bytes, index: Index) -> bytes:
    """Decode every row with libzstd and check its size and checksum."""
    parts = []
    for row in index.chunks:
        payload = data[int(row["offset"]) : int(row["offset"] + row["stored_size"])]
        part = zstandard.ZstdDecompressor().stream_reader(payload).read()
        assert len(part) == row["raw_size"] if row["exact"] else len(part) <= row["raw_size"]
        assert row["checksum"] == (low64(part) if row["checksum_kind"] else 0)
        parts.append(part)
    return b"".join(parts)


TEXT = b"some text, some more text; " * 20
ONE = compress(TEXT, write_checksum=True)
HAND = frame(raw(b"hand", last=False), block(RLE, 1000, b"z"))
NOISE = random.Random(1).randbytes(64 * KIB)


def ends(*parts: bytes) -> list[int]:
    return [len(b"".join(parts[:i])) for i in range(1, len(parts) + 1)]
