"""BGZF on so many threads that blocks are decoded together: the same bytes, the same errors."""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib

import pytest

import gpuload
from gpuload.engines.host import MANY_THREADS
from gpuload.errors import DecompressError
from tests.helpers import host
from tests.helpers.loading import decoded
from tests.helpers.payloads import deflate, sample

#: SAM specification, section 4.1: an empty block ends a file.
EOF_BLOCK = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
THREADS = [1, MANY_THREADS, 9]


def block(stored: bytes, crc: int, size: int) -> bytes:
    """SAM specification, section 4.1: BSIZE is the size of the block less 1."""
    header = bytes.fromhex("1f8b08040000000000ff060042430200")
    return header + struct.pack("<H", 25 + len(stored)) + stored + struct.pack("<II", crc, size)


def blocks(content: bytes, size: int = 65280) -> list[bytes]:
    parts = [content[start : start + size] for start in range(0, len(content), size)]
    return [block(deflate(part, 1), zlib.crc32(part), len(part)) for part in parts]


CONTENT = sample("text", 4_000_000) + sample("noise", 3_000_000)
BLOCKS = [*blocks(CONTENT), EOF_BLOCK]


@pytest.mark.parametrize("threads", THREADS)
def test_bytes(threads):
    assert decoded(b"".join(BLOCKS), threads=threads) == CONTENT


@pytest.mark.parametrize("threads", THREADS)
def test_empty_blocks_between(threads):
    spread = [*BLOCKS[:30], EOF_BLOCK, EOF_BLOCK, *BLOCKS[30:]]
    assert decoded(b"".join(spread), threads=threads) == CONTENT


@pytest.mark.parametrize("threads", THREADS)
def test_blocks_written_by_gpuload(threads):
    file = io.BytesIO()
    gpuload.compress(CONTENT, file, codec="gzip")
    assert decoded(file.getvalue(), threads=threads) == CONTENT


@pytest.mark.parametrize("threads", THREADS)
def test_order_in_a_pipe(threads):
    readable, writable = os.pipe()
    read = []

    def drain():
        with os.fdopen(readable, "rb") as file:
            read.append(file.read())

    reader = threading.Thread(target=drain)
    reader.start()
    with (
        os.fdopen(writable, "wb") as pipe,
        host.open(b"".join(BLOCKS), threads=threads) as container,
    ):
        container.write_to(pipe.fileno(), positional=False)
    reader.join()
    assert read == [CONTENT]


@pytest.mark.parametrize("threads", THREADS)
def test_damaged_blocks_are_named(threads):
    damaged = BLOCKS.copy()
    for number in (7, 80):
        damaged[number] = damaged[number][:-8] + b"\0\0\0\0" + damaged[number][-4:]
    with host.open(b"".join(damaged), threads=threads) as container:
        report = container.verify()
    assert [failure.chunk for failure in report.failures] == [7, 80]
    assert all(failure.checksum for failure in report.failures)
    with pytest.raises(DecompressError, match="CRC-32 of the content"):
        decoded(b"".join(damaged), threads=threads)


@pytest.mark.parametrize("threads", THREADS)
def test_checksums_that_nobody_asked_for(threads):
    damaged = BLOCKS.copy()
    damaged[7] = damaged[7][:-8] + b"\0\0\0\0" + damaged[7][-4:]
    assert decoded(b"".join(damaged), threads=threads, verify=False) == CONTENT


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("hidden", [b"", b"hidden"])
def test_member_hidden_in_a_block(threads, hidden):
    """The block holds two members: what it states is the size of the second alone."""
    part = CONTENT[:65280]
    trailer = struct.pack("<II", zlib.crc32(hidden), len(hidden))
    inside = deflate(hidden) + trailer + bytes([31, 139, 8, 0, 0, 0, 0, 0, 0, 255])
    crafted = [*BLOCKS[:9], block(inside + deflate(part), zlib.crc32(part), len(part)), *BLOCKS]
    with host.open(b"".join(crafted), threads=threads) as container:
        report = container.verify()
    assert [failure.chunk for failure in report.failures] == [9]
    assert report.failures[0].actual_size == len(hidden)
