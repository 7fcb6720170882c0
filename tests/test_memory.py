"""Peak memory: streams of a GiB decode in a few hundred MiB, whatever their format."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import lz4.block
import lz4.frame
import pytest
import zstandard

from tests.helpers.fresh import fresh_python
from tests.helpers.handmade import (
    BGZF_EOF,
    SNAPPY_IDENTIFIER,
    bgzf_block,
    gzip_member,
    lz4_legacy,
    snappy_data,
    zstd_frame,
)
from tests.helpers.loading import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="needs /proc to measure memory"
)

GIB = 1 << 30
#: Half again as much as the default `memory_limit`, for the interpreter and its libraries.
PEAK = 400 * MIB


def zstd_without_size() -> bytes:
    packer = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
    return b"".join(packer.compress(bytes(4 * MIB)) for _ in range(256)) + packer.flush()


def zstd_with_size() -> bytes:
    """Return a frame that is far too large for a slot, with a window of 2 MiB."""
    return zstd_frame(*[(1, 131_072, b"\0")] * 8_192, size=GIB, window=11 << 3)


def zstd_frames() -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(16 * MIB)) * 64


def gzip_one_member() -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(1_024):
        crc = zlib.crc32(bytes(MIB), crc)
    return gzip_member(b"")[:10] + piece * 1_024 + b"\3\0" + struct.pack("<II", crc, GIB)


def bgzf() -> bytes:
    return bgzf_block(bytes(65_280)) * (GIB // 65_280) + bgzf_block(bytes(GIB % 65_280)) + BGZF_EOF


def lz4_linked() -> bytes:
    options = {"block_linked": True, "block_size": 7, "content_checksum": True}
    with lz4.frame.LZ4FrameCompressor(**options) as packer:
        parts = [packer.begin(), *(packer.compress(bytes(4 * MIB)) for _ in range(256))]
        return b"".join([*parts, packer.flush()])


def lz4_independent() -> bytes:
    options = {"block_linked": False, "block_size": 7}
    with lz4.frame.LZ4FrameCompressor(**options) as packer:
        parts = [packer.begin(), *(packer.compress(bytes(4 * MIB)) for _ in range(256))]
        return b"".join([*parts, packer.flush()])


def snappy() -> bytes:
    # A literal of one zero, and copies of 64 bytes from one byte before.
    elements = b"\0\0" + b"\xfe\1\0" * 1_023 + b"\xfa\1\0"
    return SNAPPY_IDENTIFIER + snappy_data(bytes(65_536), elements=elements) * 16_384


#: Decodes to /dev/null and prints the decoded bytes and the peak of resident memory in bytes.
SCRIPT = """
import json, os, sys
from tests.helpers import host
from tests.helpers.fresh import peak_resident
with host.open(sys.argv[1], **json.loads(sys.argv[2])) as container:
    size = container.write_to(os.open(os.devnull, os.O_WRONLY)).raw_size
print(json.dumps([size, peak_resident()]))
"""


def measured(path, **options) -> tuple[int, int]:
    """Return how many bytes a file decodes to, and the peak of resident memory."""
    printed = fresh_python(SCRIPT, path, json.dumps(options), timeout=300)
    size, peak = json.loads(printed)
    return size, peak


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        zstd_without_size,
        zstd_with_size,
        zstd_frames,
        gzip_one_member,
        bgzf,
        lz4_linked,
        lz4_independent,
        snappy,
    ],
)
def test_of_a_gib_to_a_descriptor(make: Callable[[], bytes], tmp_path):
    path = tmp_path / "file"
    path.write_bytes(make())
    size, peak = measured(path, max_output=2 * GIB)
    assert size == GIB
    assert peak < PEAK


def barely_compressible(size: int) -> bytes:
    """Return noise with a few zeros between, whose compressed form is as large as it is."""
    rng = random.Random(1)
    return b"".join(rng.randbytes(60) + bytes(6) for _ in range(size // 66 + 1))[:size]


@pytest.mark.parametrize("threads", [1, 4])
def test_of_large_lz4_blocks_without_checksums(threads, tmp_path):
    """Looking for invalid matches must not take many times the size of a block."""
    block = lz4.block.compress(barely_compressible(8 * MIB), store_size=False)
    path = tmp_path / "legacy.lz4"
    path.write_bytes(lz4_legacy(*[block] * 3))
    size, peak = measured(path, threads=threads)
    assert size == 24 * MIB
    assert peak < PEAK


@pytest.mark.parametrize("threads", [1, 8])
def test_of_large_lz4_blocks_with_checksums(threads, tmp_path):
    content = barely_compressible(8 * MIB)
    path = tmp_path / "linked.lz4"
    path.write_bytes(
        lz4.frame.compress(content, block_size=7, block_linked=False, content_checksum=True) * 4
    )
    size, peak = measured(path, threads=threads)
    assert size == 32 * MIB
    assert peak < PEAK


@pytest.mark.parametrize("limit", [16 * MIB, 64 * MIB])
def test_follows_memory_limit(limit, tmp_path):
    """The limit bounds what many threads take together, beyond a bare interpreter's share."""
    path = tmp_path / "file.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(barely_compressible(8 * MIB)) * 12)
    bare = tmp_path / "bare.zst"
    bare.write_bytes(zstandard.ZstdCompressor().compress(b"bare"))
    (_, least), (size, peak) = measured(bare), measured(path, memory_limit=limit, threads=16)
    assert size == 96 * MIB
    # Each thread has its decoder's state and its stack besides.
    assert peak < least + limit + 48 * MIB


#: Loads with little address space and prints the error, or the size.
STARVED = """
import resource, sys, gpuload
from tests.helpers import host
import gpuload.loader, numpy, cramjam, zstandard, xxhash, isal.igzip_lib  # before memory is short
container = host.open(sys.argv[1], max_output=4 << 30, threads=1)
container.explain()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), used + (300 << 20)))
try:
    print(len(container.load()))
except gpuload.errors.MemoryLimitError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("make", [zstd_with_size, zstd_without_size])
def test_of_the_system_is_short(make, tmp_path):
    """A result that the system has no memory for is a MemoryLimitError that says so."""
    path = tmp_path / "file.zst"
    path.write_bytes(make())
    message = fresh_python(STARVED, path)
    assert message.startswith("refused:")
    assert str(path) in message
    assert str(GIB) in message


def test_of_a_result_is_its_size(tmp_path):
    """What a bound allows is reserved at most, not taken."""
    path = tmp_path / "file.gz"
    path.write_bytes(gzip_member(bytes(40 * MIB)))
    script = """if True:
        import sys
        from tests.helpers import host
        from tests.helpers.fresh import peak_resident
        before = peak_resident()
        array = host.load(sys.argv[1])
        assert array.nbytes == 40 << 20
        print(peak_resident() - before)
    """
    taken = int(fresh_python(script, path))
    assert taken < 120 * MIB


def test_of_many_tiny_chunks(tmp_path):
    """A hundred thousand rows take a small multiple of the file's size."""
    path = tmp_path / "file.sz"
    path.write_bytes(SNAPPY_IDENTIFIER + snappy_data(b"x") * 100_000)
    size, peak = measured(path)
    assert size == 100_000
    assert peak < PEAK
