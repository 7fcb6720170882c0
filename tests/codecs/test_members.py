"""Payloads decoded together, laid out as BGZF does (SAM specification, section 4.1)."""

from __future__ import annotations

import random
import struct
import sys
import threading
import zlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from gpuload.chunks import Checksum, ChunkTable, Codec, make_table
from gpuload.codecs import members
from gpuload.engines.base import HostBatch
from gpuload.engines.host import MANY_THREADS, HostEngine
from gpuload.options import Options
from tests.helpers.payloads import KINDS, POISON, Payload, deflate, encode, sample

pytest.importorskip("isal", reason="needs ISA-L's reader of gzip streams")

#: RFC 1952, section 2.3: no name, no time, of any system.
HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
#: Trailer and header between the payloads of BGZF.
GAP = 26


def trailer(data: bytes) -> bytes:
    """RFC 1952, section 2.3.1: CRC-32 and size."""
    return struct.pack("<II", zlib.crc32(data), len(data))


def row(stored: bytes, raw: bytes, **more) -> Payload:
    return Payload(Codec.DEFLATE, raw, stored, kind=Checksum.CRC32, **more)


def good(*sizes: int, kind: str = "text") -> list[Payload]:
    contents = [sample(kind, size, seed) for seed, size in enumerate(sizes)]
    return [row(deflate(raw), raw, checksum=zlib.crc32(raw)) for raw in contents]


@dataclass
class Work:
    rows: ChunkTable
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    stored: npt.NDArray[np.uint8]
    out: npt.NDArray[np.uint8]

    def decode(self) -> int:
        decode = members.decoder()
        assert decode is not None
        return decode(self.rows, self.src, self.dst, self.stored, self.out)


def lay_out(payloads: list[Payload], gap: int = GAP, between: bytes = b"\xee") -> Work:
    """Return rows whose payloads are `gap` bytes apart, and slots side by side between guards."""
    stored, src = b"", []
    for payload in payloads:
        src.append(len(stored))
        stored += payload.stored + between * gap
    sizes = [payload.raw_size for payload in payloads]
    rows = make_table(
        src,
        stored_size=[len(payload.stored) for payload in payloads],
        raw_size=sizes,
        codec=[payload.codec for payload in payloads],
        exact=[payload.exact for payload in payloads],
        checksum_kind=[payload.kind for payload in payloads],
        checksum=[payload.checksum for payload in payloads],
    )
    dst = np.array([40, *sizes], np.int64).cumsum()[:-1]
    stored = stored[: len(stored) - gap]  # what is behind the last payload is not read
    out = np.full(sum(sizes) + 80, POISON, np.uint8)
    return Work(rows, np.array(src, np.int64), dst, np.frombuffer(stored, np.uint8), out)


def check(work: Work, payloads: list[Payload], count: int) -> None:
    """Check what the first `count` slots hold, and that nothing else was written."""
    assert work.decode() == count
    raw = b"".join(payload.raw for payload in payloads[:count])
    assert work.out[40 : 40 + len(raw)].tobytes() == raw
    assert set(work.out[:40].tolist() + work.out[40 + len(raw) :].tolist()) == {POISON}


def outcomes(work: Work, **options):
    """Decode a batch one by one and together; return what both give, which is the same."""
    results = []
    for threads in (1, MANY_THREADS):
        out = work.out.copy()
        engine = HostEngine(Options(threads=threads, **options))
        outcome = engine.decode(HostBatch(work.rows, work.src, work.dst, work.stored, out))
        slots = [
            out[start : start + size].tobytes()
            for start, size, bad in zip(work.dst, outcome.actual, outcome.status, strict=True)
            if not bad
        ]
        assert set(out[:40].tolist() + out[-40:].tolist()) == {POISON}
        results.append((outcome.actual.tolist(), outcome.status.tolist(), outcome.reasons, slots))
    assert results[0] == results[1]
    return results[0]


# What is decoded together


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_bgzf(kind):
    payloads = good(*[65280] * 6, 30_000, kind=kind)
    check(lay_out(payloads), payloads, 7)


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_RLE])
def test_every_kind_of_block(level, strategy):
    contents = [sample(kind, 9000) for kind in KINDS]
    payloads = [
        row(deflate(raw, level, strategy), raw, checksum=zlib.crc32(raw)) for raw in contents
    ]
    check(lay_out(payloads), payloads, len(payloads))


@pytest.mark.parametrize("gap", [18, 19, 26, 300])
def test_any_distance_that_leaves_room(gap):
    payloads = good(500, 1000, 700)
    check(lay_out(payloads, gap), payloads, 3)


@pytest.mark.parametrize("between", [b"\0", HEADER[:1], b"\xff"])
def test_whatever_is_between(between):
    payloads = good(500, 1000, 700)
    check(lay_out(payloads, between=between), payloads, 3)


def test_chunks_larger_than_those_of_bgzf():
    payloads = good(1 << 20, 400_000, 70_000, 3 << 20)
    check(lay_out(payloads), payloads, 4)


def test_one_decoder_and_many_threads():
    works = [(payloads := good(*[9000 + n] * 9), lay_out(payloads)) for n in range(8)]
    decode, counts = members.decoder(), {}
    assert decode is not None

    def run(number):
        work = works[number][1]
        for _ in range(20):
            counts[number] = decode(work.rows, work.src, work.dst, work.stored, work.out)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == dict.fromkeys(range(8), 9)
    for payloads, work in works:
        assert work.out[40:-40].tobytes() == b"".join(payload.raw for payload in payloads)


# What is left to others


def test_end_of_file_block():
    payloads = [*good(900, 1000), row(b"\x03\0", b"")]
    check(lay_out(payloads), payloads, 2)


def test_last_block_that_is_small():
    payloads = good(65280, 65280, 500)
    check(lay_out(payloads), payloads, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": Checksum.NONE},
        {"exact": False},
        {"codec": Codec.RAW, "stored": sample("text", 800)},
    ],
)
def test_rows_before_another_kind_of_row(other):
    payloads = good(900, 1000, 800, 700)
    payloads[2] = replace(payloads[2], **other)
    check(lay_out(payloads), payloads, 2)


def test_rows_before_another_distance():
    payloads = good(900, 1000, 800, 700)
    work = lay_out(payloads)
    work.stored = np.insert(work.stored, work.src[2], 0)
    work.src[2:] += 1
    work.rows["offset"][2:] += 1
    check(work, payloads, 2)


def test_rows_before_a_slot_elsewhere():
    payloads = good(900, 1000, 800, 700)
    work = lay_out(payloads)
    work.dst[2:] += 1
    check(work, payloads, 2)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few(count):
    assert lay_out(good(*[1000] * count)).decode() == 0


def test_too_little_room():
    assert lay_out(good(500, 1000, 700), gap=17).decode() == 0


def test_rows_in_reverse():
    work = lay_out(good(500, 500, 500))
    work.rows, work.src = work.rows[::-1].copy(), work.src[::-1].copy()
    assert work.decode() == 0


def test_more_than_a_stream_holds():
    assert lay_out(good(*[1 << 20] * 16, kind="zeros")).decode() == 0


def test_without_the_library(monkeypatch):
    members._library.cache_clear()
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    try:
        assert members.decoder() is None
        assert outcomes(lay_out(good(900, 1000)))[1] == [0, 0]
    finally:
        members._library.cache_clear()


# Damage


def nothing(payloads: list[Payload], **options):
    """Check that rows are not decoded together; return what one by one gives."""
    assert lay_out(payloads).decode() == 0
    return outcomes(lay_out(payloads), **options)


@pytest.mark.parametrize("bad", range(4))
def test_wrong_checksum(bad):
    payloads = good(900, 1000, 800, 700)
    payloads[bad] = replace(payloads[bad], checksum=payloads[bad].checksum ^ 1)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [bad]
    assert not any(nothing(payloads, verify=False)[1])


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("more", [-1, 1, 300])
def test_wrong_size(bad, more):
    payloads = good(900, 1000, 800, 700)
    payloads[bad] = replace(payloads[bad], slot=len(payloads[bad].raw) + more)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [bad]


def test_sizes_that_make_up_for_each_other():
    payloads = good(900, 1000, 800, 700)
    payloads[1] = replace(payloads[1], slot=999)
    payloads[2] = replace(payloads[2], slot=801)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [1, 2]


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("behind", [b"\0", b"\0\0\0", bytes(9), b"junk", HEADER])
def test_bytes_behind_a_stream(bad, behind):
    payloads = good(900, 1000, 800)
    payloads[bad] = replace(payloads[bad], stored=payloads[bad].stored + behind)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [bad]


@pytest.mark.parametrize("hidden", [b"", b"hidden", sample("noise", 500)])
@pytest.mark.parametrize("apart", [0, 1, 5])
def test_member_before_that_of_the_row(hidden, apart):
    """What gunzip would decode without a word, and readers of BGZF refuse."""
    payloads = good(900, 1000, 800)
    inside = deflate(hidden) + trailer(hidden) + bytes(apart) + HEADER
    payloads[1] = replace(payloads[1], stored=inside + payloads[1].stored)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [1]


def test_member_behind_that_of_the_row():
    payloads = good(900, 1000, 800)
    inside = payloads[1].stored + trailer(payloads[1].raw) + HEADER + deflate(b"")
    payloads[1] = replace(payloads[1], stored=inside)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [1]


def test_member_that_goes_on_in_the_next_row():
    """One ends inside a row, the next swallows what is between two rows: all sizes are right."""
    first, part = sample("text", 600), sample("noise", 700)
    between = trailer(first) + bytes(GAP - 18) + HEADER
    swallowed = between + part
    # RFC 1951, section 3.2.4: a stored block, not the last, and an empty one that is.
    size = struct.pack("<HH", len(swallowed), len(swallowed) ^ 0xFFFF)
    stored = deflate(first) + trailer(first) + HEADER + b"\0" + size
    payloads = [
        row(stored, first, checksum=zlib.crc32(first)),
        row(part + b"\1\0\0\xff\xff", swallowed, checksum=zlib.crc32(swallowed)),
    ]
    whole = HEADER + payloads[0].stored + between + payloads[1].stored + trailer(swallowed)
    assert decoded_by_zlib(whole) == first + swallowed, "it is what gunzip takes"
    actual, status, *_ = nothing(payloads)
    assert all(status)
    assert actual != [len(first), len(swallowed)]


def decoded_by_zlib(data: bytes) -> bytes:
    decoded = b""
    while data:
        stream = zlib.decompressobj(31)
        decoded += stream.decompress(data)
        data = stream.unused_data.lstrip(b"\0")
    return decoded


def test_content_that_looks_like_a_header():
    """Left to others, who decode it."""
    payloads = good(900, 1000, 800)
    raw = bytes(4) + HEADER + bytes(900)
    payloads[1] = row(deflate(raw, 0), raw, checksum=zlib.crc32(raw))
    assert nothing(payloads)[1] == [0, 0, 0]


def test_cut_anywhere():
    payloads = good(300, 300, 300)
    for number, payload in enumerate(payloads):
        for size in range(len(payload.stored)):
            damaged = payloads.copy()
            damaged[number] = replace(payload, stored=payload.stored[:size])
            assert lay_out(damaged).decode() == 0


def test_damage_gives_what_it_gives_one_by_one():
    rng = random.Random(11)
    for number in range(600):
        payloads = good(*[rng.randrange(200, 900) for _ in range(4)], kind=KINDS[number % 7])
        for _ in range(rng.randrange(1, 3)):
            bad = rng.randrange(4)
            stored = bytearray(payloads[bad].stored)
            place = rng.randrange(len(stored) + 1)
            stored[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            payloads[bad] = replace(payloads[bad], stored=bytes(stored))
        outcomes(lay_out(payloads))


def test_noise_instead_of_payloads():
    rng = random.Random(12)
    for _ in range(300):
        payloads = [
            row(rng.randbytes(rng.randrange(60)), bytes(rng.randrange(1, 90)), checksum=1)
            for _ in range(3)
        ]
        assert lay_out(payloads).decode() == 0


def test_reference_payloads_of_other_codecs():
    payloads = [encode(codec, sample("text", 500)) for codec in (Codec.LZ4, Codec.RAW, Codec.ZSTD)]
    assert lay_out(payloads).decode() == 0
