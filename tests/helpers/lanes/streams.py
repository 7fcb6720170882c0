"""Small LZ4 blocks and Snappy elements of many kinds, and what the host's decoders say of any."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import cramjam
import lz4.block
import numpy as np

from gpuload.chunks import Codec
from gpuload.codecs import lz4 as host_lz4
from gpuload.codecs import snappy as host_snappy
from gpuload.codecs.base import CorruptChunkError
from tests.helpers import lz4_blocks
from tests.helpers.payloads import varint

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

#: Bytes of stored streams that are damaged or cut.
SMALL = range(40, 601)


class Stream(NamedTuple):
    """A valid stream."""

    stored: bytes
    raw: bytes


# Contents


def _text(rng: random.Random, size: int) -> bytes:
    words = [bytes(rng.choices(b"etaoinshrdlu", k=rng.randrange(2, 9))) for _ in range(40)]
    return b" ".join(rng.choices(words, k=size // 5 + 1))


def _noise(rng: random.Random, size: int) -> bytes:
    return rng.randbytes(min(size, 590))


def _runs(rng: random.Random, size: int) -> bytes:
    run = b"".join(bytes([rng.randrange(4)]) * rng.randrange(1, 120) for _ in range(size // 30 + 1))
    return run + rng.randbytes(20)


def _periodic(rng: random.Random, size: int) -> bytes:
    return rng.randbytes(rng.randrange(1, 41)) * (size // 8 + 1) + rng.randbytes(20)


def _long_literals(rng: random.Random, size: int) -> bytes:
    start = rng.randbytes(rng.randrange(300, 500))
    return start + start[: rng.randrange(300)] + rng.randbytes(12)


def _long_match(rng: random.Random, size: int) -> bytes:
    unit = rng.randbytes(rng.randrange(1, 200))
    return unit * (rng.randrange(1_000, 20_000) // len(unit) + 1) + rng.randbytes(30)


def _numbers(rng: random.Random, size: int) -> bytes:
    steps = np.linspace(0, rng.random() * 9, size // 4 + 9, dtype=np.float32)
    return np.round(np.sin(steps), 2).tobytes()


CONTENTS: list[Callable[[random.Random, int], bytes]] = [
    _text,
    _noise,
    _runs,
    _periodic,
    _long_literals,
    _long_match,
    _numbers,
]


# Encoders


def _lz4(rng: random.Random, raw: bytes) -> Stream:
    level = rng.choice(
        ({}, {"mode": "high_compression"}, {"mode": "fast", "acceleration": rng.randrange(1, 9)})
    )
    return Stream(lz4.block.compress(raw, store_size=False, **level), raw)


def _snappy(rng: random.Random, raw: bytes) -> Stream:
    block = bytes(cramjam.snappy.compress_raw(raw))
    return Stream(block[len(varint(len(raw))) :], raw)


def _some_length(rng: random.Random) -> int:
    return rng.choice((rng.randrange(4), rng.randrange(20), rng.randrange(70), rng.randrange(400)))


def _some_offset(rng: random.Random, written: int) -> int:
    return min(written, rng.choice((1, rng.randrange(1, 41), rng.randrange(1, written + 1))))


def _repeat(out: bytearray, offset: int, length: int) -> None:
    start = len(out) - offset
    out += (out[start:] * (length // offset + 1))[:length]


def _lz4_by_hand(rng: random.Random, size: int) -> Stream:
    """Return a block whose sequences no encoder would choose."""
    sequences, out = [], bytearray()
    for _ in range(size // 12 + 1):
        literals = rng.randbytes(_some_length(rng) + (not out))
        out += literals
        offset, length = _some_offset(rng, len(out)), 4 + _some_length(rng)
        sequences.append(lz4_blocks.Sequence(literals, offset, length))
        _repeat(out, offset, length)
    last = rng.randbytes(rng.choice((12, 40)))
    return Stream(lz4_blocks.write(*sequences, lz4_blocks.Sequence(last)), bytes(out + last))


def snappy_literal(literals: bytes, length_bytes: int = 0) -> bytes:
    """Return a literal (format description, section 2.1), its length in 0 to 4 extra bytes."""
    count = len(literals) - 1
    if not length_bytes:
        return bytes([count << 2]) + literals
    return bytes([(59 + length_bytes) << 2]) + count.to_bytes(length_bytes, "little") + literals


def snappy_copy(offset: int, length: int, offset_bytes: int) -> bytes:
    """Return a copy (section 2.2) with an offset of 1 (and 3 bits), 2 or 4 bytes."""
    if offset_bytes == 1:
        return bytes([offset >> 8 << 5 | (length - 4) << 2 | 1, offset & 255])
    tag = 2 if offset_bytes == 2 else 3
    return bytes([(length - 1) << 2 | tag]) + offset.to_bytes(offset_bytes, "little")


def _snappy_by_hand(rng: random.Random, size: int) -> Stream:
    elements, out = bytearray(), bytearray()
    while len(elements) < size // 2:
        literals = rng.randbytes(_some_length(rng) + 1)
        least = 0 if len(literals) <= 60 else 1 + (len(literals) > 256)
        elements += snappy_literal(
            literals, rng.choice((least, least, rng.randrange(max(1, least), 5)))
        )
        out += literals
        for _ in range(rng.randrange(6)):
            offset, wide = _some_offset(rng, len(out)), rng.choice((1, 2, 2, 4))
            wide = 2 if wide == 1 and offset > 2047 else wide
            length = rng.randrange(4, 12) if wide == 1 else rng.randrange(1, 65)
            elements += snappy_copy(offset, length, wide)
            _repeat(out, offset, length)
    return Stream(bytes(elements), bytes(out))


_ENCODERS = {Codec.LZ4: (_lz4, _lz4_by_hand), Codec.SNAPPY: (_snappy, _snappy_by_hand)}


def small_streams(
    codec: Codec, rng: random.Random, count: int, sizes: range = SMALL
) -> list[Stream]:
    """Return valid streams with stored sizes in a range; every kind in turn, some by hand."""
    found: list[Stream] = []
    while len(found) < count:
        stream = _small_stream(codec, rng, len(found), sizes)
        if len(stream.stored) in sizes:
            found.append(stream)
    return found


def _small_stream(codec: Codec, rng: random.Random, number: int, sizes: range) -> Stream:
    size = rng.choice((sizes[-1] // 2, sizes[-1], 4 * sizes[-1]))
    kind = number % (len(CONTENTS) + 2)
    if codec == Codec.RAW:
        raw = rng.randbytes(rng.choice(sizes))
        return Stream(raw, raw)
    encode, by_hand = _ENCODERS[codec]
    # A kind that does not fit the sizes gives way to others.
    if kind >= len(CONTENTS) or rng.random() < 0.2:
        return by_hand(rng, sizes[-1] // rng.randrange(1, 5))
    return encode(rng, rng.choice((CONTENTS[kind], rng.choice(CONTENTS)))(rng, size))


# References


def host_decoded(codec: Codec, stored: bytes, capacity: int) -> bytes | None:
    """Return what the host engine's decoder makes of a stream; None if it refuses it."""
    slot = np.empty(capacity, np.uint8)
    try:
        size = _DECODERS[codec](np.frombuffer(stored, np.uint8), slot)
    except CorruptChunkError:
        return None
    return slot[:size].tobytes()


def _decode_raw(stored: np.ndarray, slot: np.ndarray) -> int:
    if stored.size > slot.size:
        raise CorruptChunkError("too large")
    slot[: stored.size] = stored
    return stored.size


def _decode_snappy(stored: np.ndarray, slot: np.ndarray) -> int:
    preamble = np.frombuffer(varint(slot.size), np.uint8)
    return host_snappy.decode(np.concatenate((preamble, stored)), slot)


_DECODERS = {
    Codec.RAW: _decode_raw,
    Codec.LZ4: host_lz4.decoder(None, strict=True),
    Codec.SNAPPY: _decode_snappy,
}
