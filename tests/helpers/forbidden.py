"""Payloads that a bounded decoder has to refuse, made by hand."""

from __future__ import annotations

from gpuload.chunks import Codec
from tests.helpers import lz4_blocks
from tests.helpers.payloads import Payload, varint

#: Payloads that the format of their codec forbids; nothing else is wrong with them.
FORBIDDEN = {
    "LZ4 match offset 0": Payload(
        Codec.LZ4,
        bytes(64),
        lz4_blocks.write(
            lz4_blocks.Sequence(b"", 0, 59),
            lz4_blocks.Sequence(bytes(5)),
        ),
    ),
    "LZ4 match offset 0 after literals": Payload(
        Codec.LZ4,
        b"abcdefgh" + bytes(56),
        lz4_blocks.write(
            lz4_blocks.Sequence(b"abcdefgh", 0, 51),
            lz4_blocks.Sequence(bytes(5)),
        ),
    ),
    "LZ4 match before the start": Payload(
        Codec.LZ4,
        bytes(64),
        lz4_blocks.write(
            lz4_blocks.Sequence(b"abcd", 5, 55),
            lz4_blocks.Sequence(bytes(5)),
        ),
    ),
    "LZ4 match far before the start": Payload(
        Codec.LZ4,
        bytes(64),
        lz4_blocks.write(
            lz4_blocks.Sequence(b"abcd", 65535, 55),
            lz4_blocks.Sequence(bytes(5)),
        ),
    ),
    # Tag 01 is a copy with a 1-byte offset: 4 + 7 bytes; tag 10 one with a 2-byte offset.
    "Snappy copy offset 0": Payload(
        Codec.SNAPPY, bytes(64), b"\x00a" + b"\xfa\x00\x00", prefix=varint(64)
    ),
    "Snappy copy before the start": Payload(
        Codec.SNAPPY, bytes(64), b"\x00a" + b"\xfa\x02\x00", prefix=varint(64)
    ),
    "Snappy literal behind the end": Payload(
        Codec.SNAPPY, bytes(64), b"\xf0\x3f" + bytes(63), prefix=varint(64)
    ),
    # RFC 1951, section 3.2.3: block type 11 is reserved.
    "DEFLATE block type 3": Payload(Codec.DEFLATE, bytes(64), b"\x07\x00\x00\x00"),
    # Section 3.2.4: NLEN is the complement of LEN.
    "DEFLATE stored length": Payload(Codec.DEFLATE, bytes(64), b"\x01\x40\x00\xbf\xfe" + bytes(64)),
    # A fixed block (section 3.2.6) whose first symbol copies 3 bytes from 1 back.
    "DEFLATE copy before the start": Payload(Codec.DEFLATE, bytes(3), b"\x03\x02\x00\x00\x00"),
    # RFC 8878, section 3.1.1.2: block type 3 is reserved. Single segment of 64 bytes.
    "Zstandard block type 3": Payload(
        Codec.ZSTD, bytes(64), b"\x28\xb5\x2f\xfd\x20\x40\x07\x02\x00" + bytes(64)
    ),
    "Zstandard wrong magic": Payload(
        Codec.ZSTD, bytes(64), b"\x28\xb5\x2f\xfc\x20\x40\x01\x02\x00" + bytes(64)
    ),
}
