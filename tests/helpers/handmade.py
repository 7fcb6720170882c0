"""Files built by hand after the format specifications, byte by byte."""

from __future__ import annotations

import struct
import zlib

import xxhash

# LZ4 frame format, "FLG byte": version 01 and the flags.
V1, INDEPENDENT, BLOCK_SUM, SIZE, CONTENT_SUM, DICT_ID = 0x40, 0x20, 0x10, 0x08, 0x04, 0x01
LZ4_MAGIC, LZ4_LEGACY_MAGIC = b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
#: SAM specification, section 4.1.2.
BGZF_EOF = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
FHCRC, FEXTRA, FNAME, FCOMMENT = 0x02, 0x04, 0x08, 0x10


def skippable(content: bytes = b"", *, magic: int = 0x184D2A50) -> bytes:
    """Return a skippable frame of LZ4 and Zstandard (RFC 8878, section 3.1.2)."""
    return struct.pack("<II", magic, len(content)) + content


# --- LZ4 ------------------------------------------------------------------------------------------


def lz4_header(flags: int, *, limits: int = 0x40, size: int = 0, dictionary: int = 0) -> bytes:
    """Return the magic and the descriptor of a frame; `limits` is the BD byte."""
    descriptor = bytes([flags, limits])
    descriptor += struct.pack("<Q", size) if flags & SIZE else b""
    descriptor += struct.pack("<I", dictionary) if flags & DICT_ID else b""
    return LZ4_MAGIC + descriptor + bytes([xxhash.xxh32_intdigest(descriptor) >> 8 & 255])


def lz4_block(payload: bytes, *, raw: bool = False, checksum: bool = False) -> bytes:
    """Return a block with its size word, and with its checksum if wanted."""
    tail = struct.pack("<I", xxhash.xxh32_intdigest(payload)) if checksum else b""
    return struct.pack("<I", len(payload) | raw << 31) + payload + tail


def lz4_frame(
    *blocks: bytes, flags: int = V1 | INDEPENDENT, content: bytes = b"", **fields: int
) -> bytes:
    """Return a frame; `content` is what its content checksum is computed from."""
    tail = struct.pack("<I", xxhash.xxh32_intdigest(content)) if flags & CONTENT_SUM else b""
    return lz4_header(flags, **fields) + b"".join(blocks) + bytes(4) + tail


def lz4_legacy(*payloads: bytes) -> bytes:
    return LZ4_LEGACY_MAGIC + b"".join(lz4_block(payload) for payload in payloads)


def lz4_sequence(literals: bytes, offset: int, length: int) -> bytes:
    """Return literals and a match (LZ4 block format, "Compressed block format")."""
    token = min(len(literals), 15) << 4 | min(length - 4, 15)
    return b"".join(
        (
            bytes([token]),
            _lz4_length(len(literals)),
            literals,
            struct.pack("<H", offset),
            _lz4_length(length - 4),
        )
    )


def lz4_literals(literals: bytes) -> bytes:
    """Return the last sequence of a block, which has no match."""
    return bytes([min(len(literals), 15) << 4]) + _lz4_length(len(literals)) + literals


def _lz4_length(length: int) -> bytes:
    if length < 15:
        return b""
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


# --- Zstandard ------------------------------------------------------------------------------------


def zstd_header(
    *,
    size: int | None = None,
    window: int | None = None,
    checksum: bool = False,
    dictionary: int | None = None,
) -> bytes:
    """Return a frame header (RFC 8878, section 3.1.1.1); `window` is the descriptor byte.

    Without a window the frame is a single segment. Sizes take eight bytes, dictionary IDs four.
    """
    descriptor = (0xC0 if size is not None else 0) | (0x20 if window is None else 0)
    descriptor |= (4 if checksum else 0) | (3 if dictionary is not None else 0)
    fields = b"" if window is None else bytes([window])
    fields += b"" if dictionary is None else struct.pack("<I", dictionary)
    fields += b"" if size is None else struct.pack("<Q", size)
    return ZSTD_MAGIC + bytes([descriptor]) + fields


def zstd_block(kind: int, size: int, body: bytes, *, last: bool = False) -> bytes:
    """Return a block: kind 0 is raw, 1 a run, 2 compressed (section 3.1.1.2)."""
    return struct.pack("<I", size << 3 | kind << 1 | last)[:3] + body


def zstd_frame(*blocks: tuple[int, int, bytes], content: bytes | None = None, **fields) -> bytes:
    """Return a frame of blocks (kind, size, body); with `content` it gets its checksum."""
    parts = [zstd_header(checksum=content is not None, **fields)]
    for number, block in enumerate(blocks, 1):
        parts.append(zstd_block(*block, last=number == len(blocks)))
    if content is not None:
        parts.append(struct.pack("<Q", xxhash.xxh64_intdigest(content))[:4])
    return b"".join(parts)


def zstd_seek_table(
    entries: list[tuple[int, int]], checksums: list[int] | None = None, *, reserved: int = 0
) -> bytes:
    """Return a seek table of (stored size, decoded size) as the seekable format describes it."""
    columns = zip(*entries, strict=True) if entries else [(), ()]
    rows = zip(*columns, *([] if checksums is None else [checksums]), strict=True)
    body = b"".join(struct.pack(f"<{len(row)}I", *row) for row in rows)
    descriptor = (0 if checksums is None else 0x80) | reserved
    footer = struct.pack("<IBI", len(entries), descriptor, 0x8F92EAB1)
    return skippable(body + footer, magic=0x184D2A5E)


# --- gzip and BGZF --------------------------------------------------------------------------------


def deflated(data: bytes, level: int = 6) -> bytes:
    """Return a raw DEFLATE stream; level 0 makes stored blocks only."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def gzip_member(
    data: bytes,
    *,
    flags: int = 0,
    extra: bytes = b"",
    level: int = 6,
    crc: int | None = None,
    size: int | None = None,
) -> bytes:
    """Return a member (RFC 1952, section 2.3), with the optional fields that `flags` name."""
    header = struct.pack("<2sBBIBB", b"\x1f\x8b", 8, flags, 0, 0, 255)
    header += struct.pack("<H", len(extra)) + extra if flags & FEXTRA else b""
    header += b"name.bin\0" if flags & FNAME else b""
    header += b"a comment\0" if flags & FCOMMENT else b""
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF) if flags & FHCRC else b""
    return header + deflated(data, level) + gzip_trailer(data, crc=crc, size=size)


def gzip_trailer(data: bytes, *, crc: int | None = None, size: int | None = None) -> bytes:
    crc = zlib.crc32(data) if crc is None else crc
    return struct.pack("<II", crc, len(data) % 2**32 if size is None else size)


def subfield(identifier: bytes, content: bytes) -> bytes:
    """Return a subfield of FEXTRA (RFC 1952, section 2.3.1.1)."""
    return identifier + struct.pack("<H", len(content)) + content


def bgzf_block(data: bytes, *, before: bytes = b"", after: bytes = b"", level: int = 6) -> bytes:
    """Return a BGZF block whose BC subfield has other subfields around it."""
    framing = 12 + len(before) + 6 + len(after) + 8
    size = framing + len(deflated(data, level))
    extra = before + subfield(b"BC", struct.pack("<H", size - 1)) + after
    return gzip_member(data, flags=FEXTRA, extra=extra, level=level)


# --- Snappy ---------------------------------------------------------------------------------------


def snappy_chunk(kind: int, body: bytes) -> bytes:
    """Return a chunk of the framing format: the type, a length of three bytes, the body."""
    return struct.pack("<I", len(body) << 8 | kind) + body


def snappy_data(
    data: bytes, *, elements: bytes | None = None, checksum: int | None = None
) -> bytes:
    """Return a data chunk: uncompressed, or compressed with `elements` behind the preamble."""
    crc = struct.pack("<I", masked_crc32c(data) if checksum is None else checksum)
    if elements is None:
        return snappy_chunk(1, crc + data)
    return snappy_chunk(0, crc + varint(len(data)) + elements)


def snappy_literal(data: bytes) -> bytes:
    """Return a literal element of up to 65,536 bytes with a length of two bytes."""
    return b"\xf4" + struct.pack("<H", len(data) - 1) + data


def varint(value: int) -> bytes:
    """Return seven bits a byte, lowest first, the top bit set on all but the last."""
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of the framing format, section 3: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of RFC 3720, appendix B.4 (reflected polynomial 0x82f63b78)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _crc32c_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC32C = [_crc32c_entry(value) for value in range(256)]
