"""Large compressed files that are made quickly: a part is compressed once, and repeated.

Every format here lets its chunks stand again behind one another, with one header before them and
one trailer behind: the decoded bytes of the file are those of the part, again and again. Codecs
look back at most 64 KiB (Zstandard here: a frame), so that nobody gains from the repetitions.
"""

from __future__ import annotations

import io
import struct
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import lz4.frame
import xxhash

import gpuload

if TYPE_CHECKING:
    from concurrent.futures import Executor

_MAGIC = 0x184D2204
#: LZ4 frame format, "Frame Descriptor": version 01, independent blocks, block checksums, content
#: size, neither content checksum nor dictionary; blocks of at most 64 KiB.
_FLAGS, _BLOCK_MAXIMUM = 0b01_1_1_1_0_0_0, 4 << 4
_LZ4_HEADER, _END_MARK, _CONTENT_CHECKSUM = 15, 4, 4
#: framing_format.txt, section 4.1.
_SNAPPY_IDENTIFIER = 10
#: SAM specification, section 4.1.2: the block that ends a file.
_BGZF_END = 28
#: Zstandard seekable format: header of a skippable frame, an entry for each frame, a footer.
_SEEK_HEADER, _SEEK_ENTRY, _SEEK_FOOTER = 8, 12, 9

__all__ = ["make", "small_files", "text", "write_raw"]


def text(size: int) -> bytes:
    """Return `size` bytes of the standard library's sources, from the start again at their end."""
    found = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        found += path.read_bytes()
        if len(found) >= size:
            break
    return bytes((found * (size // len(found) + 1))[:size])


def write_raw(part: bytes, count: int, path: Path) -> None:
    """Write the decoded bytes themselves."""
    _write(path, b"", part, count, b"")


def make(kind: str, part: bytes, count: int, path: Path, chunk_size: int | None = None) -> None:
    """Write a file that decodes to `count` times `part`.

    Parameters
    ----------
    kind : str
        "lz4", one frame with content size and block checksums; "snappy", the framing format;
        "bgzf"; "zstd", frames with checksums.
    part : bytes
        A multiple of 64 KiB.
    count : int
        How often.
    path : Path
        The file.
    chunk_size : int, optional
        Decoded bytes of a chunk, where that is free.
    """
    codec = "gzip" if kind == "bgzf" else kind
    file = io.BytesIO()
    gpuload.compress(part, file, codec=codec, chunk_size=chunk_size)
    once = file.getvalue()
    header, body, trailer = _MAKERS[kind](memoryview(once), len(part), count)
    _write(path, header, body, count, trailer)


Parts = tuple[bytes, memoryview, bytes]


def _lz4(once: memoryview, size: int, count: int) -> Parts:
    descriptor = struct.pack("<BBQ", _FLAGS, _BLOCK_MAXIMUM, size * count)
    check = xxhash.xxh32_intdigest(descriptor) >> 8 & 0xFF
    header = struct.pack("<I", _MAGIC) + descriptor + bytes([check])
    body = once[_LZ4_HEADER : len(once) - _END_MARK - _CONTENT_CHECKSUM]
    return header, body, bytes(_END_MARK)


def _snappy(once: memoryview, size: int, count: int) -> Parts:
    return bytes(once[:_SNAPPY_IDENTIFIER]), once[_SNAPPY_IDENTIFIER:], b""


def _bgzf(once: memoryview, size: int, count: int) -> Parts:
    return b"", once[:-_BGZF_END], bytes(once[-_BGZF_END:])


def _zstd(once: memoryview, size: int, count: int) -> Parts:
    """Leave out the seek table, which other tools do not write."""
    (frames,) = struct.unpack_from("<I", once, len(once) - _SEEK_FOOTER)
    table = _SEEK_HEADER + _SEEK_ENTRY * frames + _SEEK_FOOTER
    return b"", once[:-table], b""


_MAKERS = {"lz4": _lz4, "snappy": _snappy, "bgzf": _bgzf, "zstd": _zstd}


def _write(path: Path, header: bytes, body: bytes | memoryview, count: int, trailer: bytes) -> None:
    with path.open("wb") as file:
        file.write(header)
        for _ in range(count):
            file.write(body)
        file.write(trailer)


def small_files(
    part: bytes, count: int, size: int, folder: Path, pool: Executor
) -> list[tuple[Path, int]]:
    """Write LZ4 files of a frame each; return their paths, and where in `part` each starts."""
    folder.mkdir(exist_ok=True)
    places = len(part) // size
    starts = [number % places * size for number in range(count)]

    def one(number: int) -> tuple[Path, int]:
        path, start = folder / f"{number:06}.lz4", starts[number]
        path.write_bytes(
            lz4.frame.compress(
                part[start : start + size],
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                block_checksum=True,
                store_size=True,
            )
        )
        return path, start

    return list(pool.map(one, range(count)))
