"""Payloads made by reference encoders, and batches of them laid out for an engine."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import cramjam
import google_crc32c
import lz4.block
import numpy as np
import xxhash
import zstandard

from gpuload.chunks import Checksum, ChunkTable, Codec, make_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

#: What memory holds that nobody may have written to.
POISON = 0xCD

#: Instead of a GDeflate stream, for which there is no encoder on the host: this and the raw bytes.
#: Only the double of nvCOMP takes it, to check how it is called.
GDEFLATE_STAND_IN = b"no GDeflate:"

#: Kinds of data that `sample` makes.
KINDS = ("zeros", "text", "noise", "floats", "periodic 3", "periodic 16", "periodic 47")

#: The checksum that formats attach to payloads of each codec.
NATURAL_CHECKSUM = {
    Codec.RAW: Checksum.XXH32_STORED,
    Codec.DEFLATE: Checksum.CRC32,
    Codec.SNAPPY: Checksum.CRC32C_MASKED,
    Codec.LZ4: Checksum.XXH32_STORED,
    Codec.ZSTD: Checksum.XXH64_LOW,
    Codec.BLOSC: Checksum.XXH32_STORED,
}


@dataclass(frozen=True)
class Payload:
    """One row of a batch: what is stored, what it decodes to, and what the row says about it.

    Attributes
    ----------
    codec : Codec
        How `stored` is compressed.
    raw : bytes
        What it decodes to.
    stored, prefix : bytes
        The bare payload, and the bytes right before it that a host decoder wants back.
    slot : int or None
        `raw_size` of the row; None for the true one.
    exact : bool
        Whether the row says that `slot` is the size.
    kind, checksum : int
        What the row says about checksums.
    """

    codec: Codec
    raw: bytes
    stored: bytes
    prefix: bytes = b""
    slot: int | None = None
    exact: bool = True
    kind: Checksum = Checksum.NONE
    checksum: int = 0

    @property
    def raw_size(self) -> int:
        return len(self.raw) if self.slot is None else self.slot


@dataclass(frozen=True)
class Work:
    """What an engine is given: as `gpuload.engines.base.Batch`, all of it in host memory."""

    rows: ChunkTable
    stored: npt.NDArray[np.uint8]
    src: npt.NDArray[np.int64]
    out: npt.NDArray[np.uint8]
    dst: npt.NDArray[np.int64]

    @property
    def slots(self) -> npt.NDArray[np.bool_]:
        """Which bytes of `out` belong to a slot."""
        inside = np.zeros(self.out.size, np.bool_)
        for start, size in zip(self.dst.tolist(), self.rows["raw_size"].tolist(), strict=True):
            inside[start : start + size] = True
        return inside


@cache
def sample(kind: str, size: int, seed: int = 0) -> bytes:
    """Return `size` bytes of a kind of `KINDS`; "periodic n" repeats n random bytes."""
    rng = random.Random(f"{kind} {size} {seed}")
    if kind == "zeros":
        return bytes(size)
    if kind == "noise":
        return rng.randbytes(size)
    if kind == "text":
        words = [bytes(rng.choices(b"etaoinshrdlu", k=rng.randrange(2, 9))) for _ in range(300)]
        return b" ".join(rng.choices(words, k=size // 3 + 1))[:size].ljust(size, b".")
    if kind == "floats":
        steps = np.linspace(0, 20, size // 4 + 1, dtype=np.float32)
        return np.round(np.sin(steps + seed), 3).tobytes()[:size]
    period = int(kind.removeprefix("periodic "))
    return (rng.randbytes(period) * (size // period + 1))[:size]


def encode(codec: Codec, raw: bytes, **settings: Any) -> Payload:
    """Return a payload made by the reference encoder of `codec` with its own `settings`.

    Of GDEFLATE it is a stand-in, which only the double of nvCOMP decodes.
    """
    if codec == Codec.SNAPPY:
        return _split_preamble(raw, bytes(cramjam.snappy.compress_raw(raw)))
    encoders = {
        Codec.RAW: lambda data: data,
        Codec.DEFLATE: deflate,
        Codec.LZ4: lambda data, **more: lz4.block.compress(data, store_size=False, **more),
        Codec.ZSTD: lambda data, **more: zstandard.ZstdCompressor(**more).compress(data),
        Codec.GDEFLATE: lambda data: GDEFLATE_STAND_IN + data,
        Codec.BLOSC: blosc,
    }
    return Payload(codec, raw, encoders[codec](raw, **settings))


def deflate(raw: bytes, level: int = 6, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Return a raw DEFLATE stream."""
    encoder = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 8, strategy)
    return encoder.compress(raw) + encoder.flush()


def blosc(raw: bytes, cname: bytes = b"blosclz", shuffle: int = 1) -> bytes:
    """Return a Blosc 1 chunk of elements of one byte."""
    from numcodecs.blosc import compress

    return bytes(compress(raw, cname, 5, shuffle))


def varint(value: int) -> bytes:
    """Return the preamble of a Snappy block (Snappy format description, section 1)."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _split_preamble(raw: bytes, block: bytes) -> Payload:
    preamble = varint(len(raw))
    if not block.startswith(preamble):
        raise ValueError("the reference encoder wrote another preamble")
    return Payload(Codec.SNAPPY, raw, block[len(preamble) :], preamble)


def checksum(kind: Checksum, payload: Payload) -> int:
    """Return the right checksum of a payload, as its format stores it."""
    if kind == Checksum.CRC32C_MASKED:
        crc = google_crc32c.value(payload.raw)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return {
        Checksum.XXH32_STORED: lambda: xxhash.xxh32_intdigest(payload.stored),
        Checksum.XXH32: lambda: xxhash.xxh32_intdigest(payload.raw),
        Checksum.XXH64_LOW: lambda: xxhash.xxh64_intdigest(payload.raw) & 0xFFFFFFFF,
        Checksum.CRC32: lambda: zlib.crc32(payload.raw),
    }[kind]()


def lay_out(
    payloads: Iterable[Payload],
    *,
    src_starts: Iterable[int] | None = None,
    dst_starts: Iterable[int] | None = None,
) -> Work:
    """Lay payloads and slots out with gaps of odd sizes between, before and behind them.

    Parameters
    ----------
    payloads : iterable of Payload
        The rows.
    src_starts, dst_starts : iterable of int, optional
        For each row the alignment of its payload and of its slot: the address modulo 16, if the
        arrays themselves are aligned so.
    """
    payloads = list(payloads)
    rng = random.Random(len(payloads))
    stored, src = bytearray(rng.randbytes(3)), []
    for payload, start in zip(payloads, src_starts or _any(rng, payloads), strict=True):
        stored += rng.randbytes((start - len(stored) - len(payload.prefix)) % 16)
        src.append(len(stored) + len(payload.prefix))
        stored += payload.prefix + payload.stored
    place, dst = 5, []
    for payload, start in zip(payloads, dst_starts or _any(rng, payloads), strict=True):
        # At least one byte between two slots is nobody's.
        place += 1 + (start - place - 1) % 16
        dst.append(place)
        place += payload.raw_size
    return Work(
        _rows(payloads, src),
        np.frombuffer(bytes(stored + rng.randbytes(29)), np.uint8),
        np.array(src, np.int64),
        np.full(place + 37, POISON, np.uint8),
        np.array(dst, np.int64),
    )


def _any(rng: random.Random, payloads: list[Payload]) -> list[int]:
    return [rng.randrange(16) for _ in payloads]


def _rows(payloads: list[Payload], src: list[int]) -> ChunkTable:
    return make_table(
        src,
        stored_size=[len(p.stored) for p in payloads],
        raw_size=[p.raw_size for p in payloads],
        prefix_size=[len(p.prefix) for p in payloads],
        codec=[p.codec for p in payloads],
        exact=[p.exact for p in payloads],
        checksum_kind=[p.kind for p in payloads],
        checksum=[p.checksum for p in payloads],
    )
