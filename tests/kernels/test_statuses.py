"""What kernels say of streams that are wrong, and where the host's libraries say something else.

Streams are made by hand from the format descriptions; statuses are numbered as in batch.cuh.
"""

from __future__ import annotations

import cramjam
import lz4.block
import numpy as np
import pytest

from gpuload.batch import ALGORITHMS, PARAMS_DTYPE
from gpuload.chunks import Codec
from tests.helpers.handmade import lz4_literals, lz4_sequence
from tests.helpers.lanes import build, cases
from tests.helpers.lanes.cases import Case, Outcome
from tests.helpers.lanes.judge import breaks_end_of_block
from tests.helpers.lanes.streams import host_decoded, snappy_copy, snappy_literal

OK, TRUNCATED, OFFSET, FULL, ENDING, LARGE = range(6)
LAST = bytes(range(12))


@pytest.fixture(autouse=True, scope="module")
def _sanitizers():
    if reason := build.missing(build.WARPS):
        pytest.skip(reason)


def outcome(codec: Codec, stored: bytes, capacity: int) -> Outcome:
    (found,) = cases.run(f"{codec.name.lower()}_32", [Case(codec, stored, capacity)])
    return found


LZ4_STREAMS = {
    "nothing": (b"", 100, TRUNCATED),
    "no literals": (b"\0", 0, OK),
    "a token without its literals": (b"\x40abc", 100, TRUNCATED),
    "a length without its end": (b"\xf0\xff\xff", 1000, TRUNCATED),
    "more literals than the slot takes": (lz4_literals(bytes(50)), 49, FULL),
    "literals that fill the slot": (lz4_literals(bytes(50)), 50, OK),
    "offset 0": (lz4_sequence(b"abcd", 0, 8) + lz4_literals(LAST), 100, OFFSET),
    "an offset before the first byte": (
        lz4_sequence(b"ab", 3, 8) + lz4_literals(LAST),
        100,
        OFFSET,
    ),
    "an offset to the first byte": (lz4_sequence(b"ab", 2, 8) + lz4_literals(LAST), 100, OK),
    "a match longer than the slot": (lz4_sequence(b"ab", 2, 90) + lz4_literals(LAST), 100, FULL),
    "an end after a match": (lz4_sequence(b"ab", 2, 9), 100, ENDING),
    "four literals at the end": (lz4_sequence(b"ab", 2, 18) + lz4_literals(b"abcd"), 100, ENDING),
}
SNAPPY_STREAMS = {
    "nothing": (b"", 0, OK),
    "a literal without its bytes": (snappy_literal(b"abcd")[:-1], 100, TRUNCATED),
    "a length without its end": (snappy_literal(bytes(300), 2)[:2], 1000, TRUNCATED),
    "a literal longer than the slot": (snappy_literal(bytes(60)), 59, FULL),
    "a literal of 2^32 bytes": (b"\xfc\xff\xff\xff\xff" + bytes(9), 100, FULL),
    "offset 0": (snappy_literal(b"abcd") + snappy_copy(0, 4, 2), 8, OFFSET),
    "an offset before the first byte": (snappy_literal(b"ab") + snappy_copy(3, 4, 1), 6, OFFSET),
    "an offset of 32 bits": (snappy_literal(b"ab") + snappy_copy(2**32 - 1, 4, 4), 6, OFFSET),
    "an offset to the first byte": (snappy_literal(b"ab") + snappy_copy(2, 4, 4), 6, OK),
    "a copy longer than the slot": (snappy_literal(b"ab") + snappy_copy(1, 64, 2), 65, FULL),
    "a copy without its offset": (snappy_literal(b"ab") + snappy_copy(1, 64, 4)[:4], 99, TRUNCATED),
}
RAW_STREAMS = {
    "nothing": (b"", 0, OK),
    "as many bytes as the slot takes": (bytes(99), 99, OK),
    "more bytes than the slot takes": (bytes(100), 99, FULL),
}


@pytest.mark.parametrize(
    ("codec", "name", "stream"),
    [
        pytest.param(codec, name, stream, id=f"{codec.name.lower()}: {name}")
        for codec, streams in [
            (Codec.LZ4, LZ4_STREAMS),
            (Codec.SNAPPY, SNAPPY_STREAMS),
            (Codec.RAW, RAW_STREAMS),
        ]
        for name, stream in streams.items()
    ],
)
def test_statuses(codec, name, stream):
    stored, capacity, status = stream
    found = outcome(codec, stored, capacity)
    assert found.status == status
    assert found.actual == (len(found.decoded) if status == OK else 0)


def test_a_length_beyond_32_bits():
    """Its bytes add up to 5 more than 2^32: a sum of 32 bits would have it decode 5 literals."""
    full, rest = divmod(2**32 + 5 - 15, 255)
    more = b"\xff" * full + bytes([rest])
    found = outcome(Codec.LZ4, b"\xf0" + more + b"abcde", 100)
    assert found.status in (TRUNCATED, FULL)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY, Codec.RAW], ids=str)
@pytest.mark.parametrize("field", ["src_num_bytes", "dst_num_bytes"])
@pytest.mark.parametrize("size", [1 << 30, (1 << 32) - 1, 1 << 32, (1 << 32) + 9, 1 << 63])
def test_sizes_that_positions_of_32_bits_are_not_enough_for(codec, field, size):
    """Nothing is read or written: the addresses are not mapped."""
    words = np.full(2, cases.UNTOUCHED, np.uint32)
    params = np.zeros(1, PARAMS_DTYPE)
    params["src_num_bytes"], params["dst_num_bytes"], params[field] = 9, 9, size
    params["src"], params["dst"], params["algo"] = 64, 4096, ALGORITHMS[codec]
    params["dst_act_bytes"] = words.ctypes.data
    kernel = f"{codec.name.lower()}_32".encode()
    state = words.ctypes.data + 4
    assert build.shared_library().lanes_launch(kernel, params.ctypes.data, 1, state) == 0
    assert words.tolist() == [0, LARGE]


# Where libraries are more lenient than the formats, or differ from one way to another


def test_liblz4_takes_offset_0():
    """The block format calls it invalid; the host engine refuses it after the library took it."""
    block = lz4_sequence(b"abcd", 0, 8) + lz4_literals(LAST)
    assert len(lz4.block.decompress(block, uncompressed_size=100)) == 24
    assert host_decoded(Codec.LZ4, block, 100) is None
    assert outcome(Codec.LZ4, block, 100).status == OFFSET


def test_liblz4_takes_some_blocks_that_end_too_early():
    """Fewer than 14 literals in front of the last match let it forget the rules for the end."""
    match = lz4_sequence(bytes(13), 1, 181)
    block = lz4_sequence(bytes(40), 1, 100) + match + lz4_literals(b"abc")
    assert breaks_end_of_block(block)
    assert host_decoded(Codec.LZ4, block, 65_536) is not None
    assert outcome(Codec.LZ4, block, 65_536).status == ENDING
    longer = (
        lz4_sequence(bytes(40), 1, 100) + lz4_sequence(bytes(15), 1, 181) + lz4_literals(b"abc")
    )
    assert host_decoded(Codec.LZ4, longer, 65_536) is None


def test_liblz4_reads_a_token_closely_for_an_empty_slot():
    for token in range(16):
        taken = host_decoded(Codec.LZ4, bytes([token]), 0)
        assert taken == (b"" if token == 0 else None)
        assert host_decoded(Codec.LZ4, bytes([token]), 1) == b""
        assert outcome(Codec.LZ4, bytes([token]), 0).status == OK


def test_a_snappy_stream_that_is_shorter_than_it_says():
    """A kernel does not know how long the stream says it is; the host compares."""
    elements = snappy_literal(b"abcd")
    with pytest.raises(cramjam.DecompressionError):
        cramjam.snappy.decompress_raw_into(b"\x05" + elements, np.empty(5, np.uint8))
    assert outcome(Codec.SNAPPY, elements, 5)[:2] == (OK, 4)
