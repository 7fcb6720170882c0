"""The index of a file must not outgrow `memory_limit`, however little its chunks hold."""

from __future__ import annotations

import pytest

from gpuload.containers import read_index
from gpuload.containers.bounded import BoundedSource
from gpuload.errors import MemoryLimitError
from gpuload.options import Options
from gpuload.sources import BytesSource

#: Magic, descriptor of a frame with independent 64 KiB blocks, its checksum byte.
LZ4_HEADER = bytes.fromhex("04224d18604082")
EMPTY_BLOCK = bytes.fromhex("00000080")
EMPTY_ZSTD_FRAME = bytes.fromhex("28b52ffd2000010000")
FILES = {
    "lz4 blocks": LZ4_HEADER + EMPTY_BLOCK * 20_000 + bytes(4),
    "lz4 frames": (LZ4_HEADER + bytes(4)) * 20_000,
    "zstd frames": EMPTY_ZSTD_FRAME * 20_000,
    "snappy chunks": bytes.fromhex("ff060000734e61507059")
    + bytes.fromhex("0104000000000000") * 20_000,
}


@pytest.mark.parametrize("name", FILES)
def test_too_many_chunks_are_refused(name):
    with pytest.raises(MemoryLimitError, match=r"memory_limit \(2097152 bytes\).*--memory-limit"):
        read_index(BytesSource(FILES[name]), Options(memory_limit=2 << 20))


@pytest.mark.parametrize("name", FILES)
def test_more_memory_lists_them(name):
    source = BytesSource(FILES[name])
    index = read_index(source, Options())
    assert index.source is source, "what is read later is not counted"


def test_a_few_looks_are_free():
    source = BoundedSource(BytesSource(b"abc"), Options(memory_limit=1))
    for _ in range(1 << 12):
        assert source.peek(1, 1) == b"b"
    with pytest.raises(MemoryLimitError):
        source.peek(1, 1)
