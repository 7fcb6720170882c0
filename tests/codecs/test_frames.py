"""Zstandard frames that are decoded together (RFC 8878): as they are one by one, or not at all."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.chunks import Checksum, ChunkTable, Codec, make_table
from gpuload.codecs import frames
from gpuload.engines.base import HostBatch, Status
from gpuload.engines.host import MANY_THREADS, HostEngine
from gpuload.options import Options
from tests.containers import zstd_frames as handmade
from tests.helpers.mutations import mutated
from tests.helpers.payloads import KINDS, POISON, Payload, encode, sample

#: Fewer rows are not taken.
FEWEST = 8
#: Bytes of nobody's before and behind the slots, and before and behind the payloads.
GUARD = 40


def good(
    *sizes: int, kind: str = "text", dictionary: bytes | None = None, **settings_
) -> list[Payload]:
    contents = [sample(kind, size, seed) for seed, size in enumerate(sizes)]
    if dictionary is not None:
        settings_["dict_data"] = zstandard.ZstdCompressionDict(
            dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT
        )
    return [encode(Codec.ZSTD, raw, **settings_) for raw in contents]


def ten(**settings_) -> list[Payload]:
    return good(*range(900, 1900, 100), **settings_)


def summed(payload: Payload) -> Payload:
    """Return a row that says its checksum, which its frame need not carry."""
    checksum = xxhash.xxh64_intdigest(payload.raw) & 0xFFFFFFFF
    return replace(payload, kind=Checksum.XXH64_LOW, checksum=checksum)


@dataclass
class Work:
    rows: ChunkTable
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    stored: npt.NDArray[np.uint8]
    out: npt.NDArray[np.uint8]

    def decode(self, dictionary: bytes | None = None, *, verify: bool = True) -> int:
        decode = frames.decoder(dictionary, verify=verify)
        return decode(self.rows, self.src, self.dst, self.stored, self.out)


def lay_out(payloads: list[Payload], stored_gap: int = 0, slot_gap: int = 0) -> Work:
    """Return rows whose payloads and slots lie side by side, or not quite."""
    stored = bytearray(b"\xee" * GUARD)
    src = []
    for payload in payloads:
        src.append(len(stored))
        stored += payload.stored + b"\xee" * stored_gap
    sizes = [payload.raw_size for payload in payloads]
    rows = make_table(
        src,
        stored_size=[len(payload.stored) for payload in payloads],
        raw_size=sizes,
        prefix_size=[len(payload.prefix) for payload in payloads],
        codec=[payload.codec for payload in payloads],
        exact=[payload.exact for payload in payloads],
        checksum_kind=[payload.kind for payload in payloads],
        checksum=[payload.checksum for payload in payloads],
    )
    dst = np.array([GUARD, *(size + slot_gap for size in sizes)], np.int64).cumsum()
    out = np.full(int(dst[-1]) + GUARD, POISON, np.uint8)
    stored += b"\xee" * GUARD
    return Work(rows, np.array(src, np.int64), dst[:-1], np.frombuffer(stored, np.uint8), out)


def check(work: Work, payloads: list[Payload], count: int, *more, **options) -> None:
    """Check what the first `count` slots hold, and that nothing else was written."""
    assert work.decode(*more, **options) == count
    raw = b"".join(payload.raw for payload in payloads[:count])
    assert work.out[GUARD : GUARD + len(raw)].tobytes() == raw
    rest = work.out[:GUARD].tolist() + work.out[GUARD + len(raw) :].tolist()
    assert set(rest) == {POISON}


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
        inside = np.zeros(out.size, np.bool_)
        for start, size in zip(work.dst.tolist(), work.rows["raw_size"].tolist(), strict=True):
            inside[start : start + size] = True
        assert (out[~inside] == POISON).all(), "bytes outside of the slots were written"
        results.append((outcome.actual.tolist(), outcome.status.tolist(), outcome.reasons, slots))
    assert results[0] == results[1]
    return results[0]


# What is decoded together


@pytest.mark.parametrize("level", [-5, 1, 3, 19])
@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_the_reference_encoder(kind, level):
    payloads = good(*[65536] * 8, 30_000, 1, kind=kind, level=level)
    check(lay_out(payloads), payloads, 10)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_791, 65_792, 131_072, 131_073, 262_144])
def test_every_size_of_the_content_size(size):
    """Fields of 1, 2 and 4 bytes (section 3.1.1.1.4), and one block or several."""
    payloads = good(*[size] * 9, kind="floats")
    check(lay_out(payloads), payloads, 9)


@pytest.mark.parametrize("field", [4, 8])
@pytest.mark.parametrize("window", [None, handmade.WINDOW_1M])
@pytest.mark.parametrize("checksum", [False, True])
def test_handmade_headers(field, window, checksum):
    raw = sample("noise", 500) + b"z" * 1000
    own = xxhash.xxh64_intdigest(raw) & 0xFFFFFFFF
    stored = handmade.frame(
        handmade.raw(raw[:500], last=False),
        handmade.block(handmade.RLE, 1000, b"z", last=False),
        handmade.raw(b""),
        window=window,
        content_size=(len(raw), field),
        checksum=own if checksum else None,
    )
    payloads = [Payload(Codec.ZSTD, raw, stored)] * 9
    check(lay_out(payloads), payloads, 9)


def test_checksums_of_frames():
    payloads = ten(write_checksum=True)
    check(lay_out(payloads), payloads, 10)


def test_checksums_of_frames_that_rows_repeat():
    payloads = [summed(payload) for payload in ten(write_checksum=True)]
    check(lay_out(payloads), payloads, 10)


def test_frames_with_and_without_checksums():
    with_, without = ten(write_checksum=True), ten()
    payloads = [pair[n % 2] for n, pair in enumerate(zip(with_, without, strict=True))]
    check(lay_out(payloads), payloads, 10)


def test_no_checksums_to_verify():
    payloads = ten()
    check(lay_out(payloads), payloads, 10, verify=False)
    # What rows say does not matter then.
    payloads = [replace(summed(payload), checksum=1) for payload in payloads]
    check(lay_out(payloads), payloads, 10, verify=False)


def test_dictionary():
    dictionary = sample("text", 3000, 77)
    payloads = good(*[700] * 9, dictionary=dictionary)
    check(lay_out(payloads), payloads, 9, dictionary)
    assert lay_out(payloads).decode() == 0, "it was of use"
    payloads = ten()
    check(lay_out(payloads), payloads, 10, dictionary)


def test_more_than_a_call_takes():
    """The engine calls again: a call that fails costs no more than so much."""
    payloads = good(*[262_144] * 70, kind="zeros")
    assert lay_out(payloads).decode() == 64
    work = lay_out(payloads)
    calls = count_calls(work)
    assert calls == [64, 0]


def test_more_stored_bytes_than_a_call_takes():
    payloads = good(*[262_144] * 64, kind="noise")
    assert lay_out(payloads).decode() == 63


def count_calls(work: Work) -> list[int]:
    engine = HostEngine(Options(threads=MANY_THREADS))
    decode, calls = engine._together[Codec.ZSTD], []

    def counted(*batch):
        calls.append(decode(*batch))
        return calls[-1]

    engine._together[Codec.ZSTD] = counted
    outcome = engine.decode(HostBatch(work.rows, work.src, work.dst, work.stored, work.out))
    assert not outcome.status.any()
    return calls


def test_very_many_rows():
    payloads = good(*[50] * 40) * 100
    work = lay_out(payloads)
    assert count_calls(work) == [1024, 1024, 1024, 928]
    assert work.out[GUARD:-GUARD].tobytes() == b"".join(payload.raw for payload in payloads)


def test_one_decoder_and_many_threads():
    works = [(payloads := good(*[9000 + n] * 9), lay_out(payloads)) for n in range(8)]
    decode, counts = frames.decoder(None), {}

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
        assert work.out[GUARD:-GUARD].tobytes() == b"".join(payload.raw for payload in payloads)


# What is left to others: rows from the first that differs on


def nothing_else(payloads: list[Payload], count: int, **options):
    """Check that only the first rows are taken, if enough, and that all come out right."""
    for drop in (0, 1, count - FEWEST + 1):
        check(lay_out(payloads[drop:]), payloads[drop:], max(0, count - drop) * (count - drop >= 8))
    assert not any(outcomes(lay_out(payloads), **options)[1])


@pytest.mark.parametrize(
    "other",
    [
        Payload(Codec.RAW, b"raw" * 300, b"raw" * 300),
        encode(Codec.ZSTD, b""),
        encode(Codec.ZSTD, bytes(262_145)),
        encode(Codec.ZSTD, sample("text", 900), write_content_size=False),
        replace(encode(Codec.ZSTD, sample("text", 900)), exact=False),
        summed(encode(Codec.ZSTD, sample("text", 900))),
        replace(encode(Codec.ZSTD, sample("text", 900)), slot=901, exact=False),
    ],
    ids=["codec", "empty", "large", "no size", "inexact", "checksum beside", "bound"],
)
@pytest.mark.parametrize("place", [9, 12, 20])
def test_rows_before_another_kind_of_row(other, place):
    payloads = good(*range(900, 2900, 100))
    payloads.insert(place, other)
    nothing_else(payloads, place)


def test_checksum_of_another_kind():
    payloads = [encode(Codec.ZSTD, sample("text", 900, n)) for n in range(12)]
    kind, value = Checksum.XXH32, xxhash.xxh32_intdigest(payloads[10].raw)
    payloads[10] = replace(payloads[10], kind=kind, checksum=value)
    nothing_else(payloads, 10)


def test_frame_that_names_a_dictionary():
    payloads = ten()
    dictionary = zstandard.train_dictionary(2000, [sample("text", 500, n) for n in range(50)])
    named = encode(Codec.ZSTD, sample("text", 500, 1), dict_data=dictionary)
    assert zstandard.get_frame_parameters(named.stored).dict_id
    check(lay_out([*payloads, named]), payloads, 10)
    assert lay_out([*payloads, named]).decode(dictionary.as_bytes()) == 10
    work = lay_out([*payloads, named, *payloads])
    assert not any(outcomes(work, dictionary=dictionary.as_bytes())[1])


def test_frame_with_a_checksum_that_nobody_asked_for():
    payloads = [*ten(), *ten(write_checksum=True)]
    check(lay_out(payloads), payloads, 10, verify=False)
    wrong = replace(payloads[10], stored=payloads[10].stored[:-1] + b"\0")
    payloads[10] = wrong
    assert not any(outcomes(lay_out(payloads), verify=False)[1])
    assert outcomes(lay_out(payloads))[1][10] == Status.CHECKSUM


def test_blocks_without_number():
    raw = sample("text", 900)
    for blocks, taken in ((63, 10), (64, 9)):
        stored = handmade.frame(
            *[handmade.raw(b"", last=False)] * blocks,
            handmade.raw(raw),
            content_size=(len(raw), 4),
        )
        payloads = [*ten()[:9], Payload(Codec.ZSTD, raw, stored)]
        check(lay_out(payloads), payloads, taken)
        assert not any(outcomes(lay_out(payloads))[1])


@pytest.mark.parametrize("count", range(FEWEST + 1))
def test_too_few(count):
    payloads = ten()[:count]
    check(lay_out(payloads), payloads, count if count == FEWEST else 0)


@pytest.mark.parametrize("gap", [{"stored_gap": 1}, {"slot_gap": 1}, {"stored_gap": 4}])
def test_rows_apart(gap):
    work = lay_out(ten(), **gap)
    assert work.decode() == 0
    assert not any(outcomes(work)[1])


def test_rows_before_a_payload_elsewhere():
    payloads = good(*[900] * 20)
    work = lay_out(payloads)
    work.stored = np.insert(work.stored, work.src[12], 0)
    work.src[12:] += 1
    check(work, payloads, 12)
    assert not any(outcomes(work)[1])


def test_rows_before_a_slot_elsewhere():
    payloads = good(*[900] * 20)
    work = lay_out(payloads)
    work.dst[12:] += 1
    check(work, payloads, 12)
    assert not any(outcomes(work)[1])


def test_rows_in_reverse():
    work = lay_out(good(*[500] * 9))
    work.rows, work.src = work.rows[::-1].copy(), work.src[::-1].copy()
    assert work.decode() == 0


@pytest.mark.parametrize("size", [2**62, 2**63 - 1, 2**63, 2**63 + 99, 2**64 - 5, 2**64 - 1])
@pytest.mark.parametrize("name", ["raw_size", "stored_size"])
def test_sizes_beyond_all_bounds(name, size):
    work = lay_out(ten(write_checksum=True))
    work.rows[name][8:] = size
    assert work.decode() == 8
    assert (work.out[work.dst[8] :] == POISON).all()


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("cut", [1, 4, 5])
def test_payload_that_is_not_all_there(checksum, cut):
    work = lay_out(ten(write_checksum=checksum))
    work.stored = work.stored[: -GUARD - cut]
    assert work.decode() == 0
    assert np.flatnonzero(outcomes(work)[1]).tolist() == [9]


def test_row_with_a_prefix():
    payloads = ten()
    payloads[8] = replace(payloads[8], prefix=b"?")
    check(lay_out(payloads), payloads, 8)
    assert np.flatnonzero(outcomes(lay_out(payloads))[1]).tolist() == [8]


def test_engine_tells_what_it_takes_together():
    def takes(payloads, threads=MANY_THREADS, **how):
        return HostEngine(Options(threads=threads)).takes_together(lay_out(payloads, **how).rows)

    assert takes(ten())
    assert takes([summed(payload) for payload in ten(write_checksum=True)])
    assert not takes(ten(), threads=MANY_THREADS - 1)
    assert not takes(ten(), stored_gap=1)
    assert not takes([])
    assert not takes([*ten(), encode(Codec.ZSTD, bytes(262_145))])
    assert not takes([*ten(), encode(Codec.LZ4, bytes(100))])


# Damage


def nothing(payloads: list[Payload], **options):
    """Check that rows are not decoded together; return what one by one gives."""
    assert lay_out(payloads).decode(verify=options.get("verify", True)) == 0
    return outcomes(lay_out(payloads), **options)


PLACES = [0, 1, 5, 9]


@pytest.mark.parametrize("bad", PLACES)
def test_wrong_checksum_of_a_frame(bad):
    payloads = ten(write_checksum=True)
    stored = payloads[bad].stored
    payloads[bad] = replace(payloads[bad], stored=stored[:-1] + bytes([stored[-1] ^ 1]))
    _, status, *_ = nothing(payloads)
    assert status == [Status.CHECKSUM * (row == bad) for row in range(10)]


@pytest.mark.parametrize("bad", PLACES)
def test_row_with_another_checksum_than_its_frame(bad):
    """Both in turn: the frame's is right, and the row's is."""
    payloads = [summed(payload) for payload in ten(write_checksum=True)]
    stored = payloads[bad].stored
    for wrong in (
        replace(payloads[bad], checksum=payloads[bad].checksum ^ 1),
        replace(payloads[bad], checksum=payloads[bad].checksum | 1 << 32),
        replace(payloads[bad], stored=stored[:-4] + bytes([stored[-4] ^ 1]) + stored[-3:]),
    ):
        damaged = [*payloads[:bad], wrong, *payloads[bad + 1 :]]
        # Those before are decoded together if they are enough.
        assert lay_out(damaged).decode() == (bad if bad >= FEWEST else 0)
        _, status, *_ = outcomes(lay_out(damaged))
        assert status == [Status.CHECKSUM * (row == bad) for row in range(10)]


def test_row_whose_checksum_is_the_end_of_a_frame_without_one():
    payloads = ten()
    end = int.from_bytes(payloads[8].stored[-4:], "little")
    payloads[8] = replace(payloads[8], kind=Checksum.XXH64_LOW, checksum=end)
    assert lay_out(payloads).decode() == 8
    assert outcomes(lay_out(payloads))[1] == [Status.CHECKSUM * (row == 8) for row in range(10)]


def test_row_whose_checksum_is_that_of_its_frame_by_another_name():
    payloads = [summed(payload) for payload in ten(write_checksum=True)]
    payloads[8] = replace(payloads[8], kind=Checksum.XXH32_STORED)
    assert lay_out(payloads).decode() == 8
    assert outcomes(lay_out(payloads))[1] == [Status.CHECKSUM * (row == 8) for row in range(10)]


@pytest.mark.parametrize("bad", PLACES)
@pytest.mark.parametrize("more", [-1, 1, 300])
def test_size_that_the_frame_does_not_state(bad, more):
    payloads = ten()
    payloads[bad] = replace(payloads[bad], slot=len(payloads[bad].raw) + more)
    assert lay_out(payloads).decode() == (bad if bad >= FEWEST else 0)
    assert np.flatnonzero(outcomes(lay_out(payloads))[1]).tolist() == [bad]


@pytest.mark.parametrize("bad", PLACES)
@pytest.mark.parametrize("more", [-1, 1, 300])
def test_size_that_the_frame_does_not_have(bad, more):
    """It states what the row says, and decodes to less or more: also where slots make up for it."""
    payloads = ten()
    states = len(payloads[bad].raw) + more
    field = len(payloads[bad].stored)
    stored = bytearray(payloads[bad].stored)
    # A single segment of 256 bytes or more has a field of two bytes, less 256.
    stored[5:7] = (states - 256).to_bytes(2, "little")
    assert len(stored) == field
    payloads[bad] = replace(payloads[bad], stored=bytes(stored), slot=states)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [bad]


def test_sizes_that_make_up_for_each_other():
    payloads = ten()
    for bad, more in ((3, -1), (4, 1)):
        states = len(payloads[bad].raw) + more
        stored = bytearray(payloads[bad].stored)
        stored[5:7] = (states - 256).to_bytes(2, "little")
        payloads[bad] = replace(payloads[bad], stored=bytes(stored), slot=states)
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [3, 4]


@pytest.mark.parametrize("bad", [0, 4, 9])
@pytest.mark.parametrize(
    "more",
    [b"\0", b"\0\0\0\0", handmade.MAGIC, handmade.skippable(b""), handmade.compress(b"")],
    ids=["zero", "zeros", "magic", "skippable", "frame"],
)
def test_bytes_beside_a_frame(bad, more):
    payloads = ten()
    for stored in (payloads[bad].stored + more, more + payloads[bad].stored):
        damaged = payloads.copy()
        damaged[bad] = replace(payloads[bad], stored=stored)
        assert lay_out(damaged).decode() == (bad if bad >= FEWEST else 0)
        assert np.flatnonzero(outcomes(lay_out(damaged))[1]).tolist() == [bad]


def test_frames_that_do_not_keep_to_the_rows():
    """Two payloads whose bytes are two frames, but cut elsewhere: the stream would be in order."""
    payloads = ten()
    both = payloads[4].stored + payloads[5].stored
    for cut in range(1, len(both)):
        if cut == len(payloads[4].stored):
            continue
        damaged = payloads.copy()
        damaged[4] = replace(payloads[4], stored=both[:cut])
        damaged[5] = replace(payloads[5], stored=both[cut:])
        assert lay_out(damaged).decode() == 0
    assert np.flatnonzero(outcomes(lay_out(damaged))[1]).tolist() == [4, 5]


def test_two_frames_in_a_payload():
    """The row's size is what both decode to, and what the first one states."""
    raw = sample("text", 900)
    first = handmade.frame(handmade.raw(raw[:400]), content_size=(900, 4))
    payloads = ten()
    payloads[4] = Payload(Codec.ZSTD, raw, first + handmade.compress(raw[400:]))
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [4]


def test_content_that_looks_like_frames():
    """Only the headers of blocks count."""
    inside = b"".join(payload.stored for payload in ten())
    raw = inside + handmade.skippable(b"x") + inside
    payloads = [
        Payload(Codec.ZSTD, raw, handmade.frame(handmade.raw(raw), content_size=(len(raw), 4)))
    ]
    check(lay_out(payloads * 9), payloads * 9, 9)


def test_matches_that_reach_into_the_frame_before():
    """In the output they would find what they need: a decoder must not look there."""
    before = [sample("noise", 900, n) for n in range(10)]
    dictionary = zstandard.ZstdCompressionDict(before[4], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    reaching = encode(Codec.ZSTD, before[4][100:800], dict_data=dictionary)
    assert len(reaching.stored) < 100, "it copies from what is before"
    payloads = [encode(Codec.ZSTD, raw) for raw in before]
    payloads[5] = reaching
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [5]


@pytest.mark.parametrize("field", ["literals", "sequences"])
def test_tables_of_the_frame_before(field):
    """Sections 3.1.1.3.1.1 and 3.1.1.3.2.1: the first block of a frame has none to repeat."""
    payloads = good(*[4000] * 10, level=3)
    stored = bytearray(payloads[5].stored)
    block = 7 + 3  # single segment, content size of two bytes, block header
    assert stored[7] >> 1 & 3 == handmade.COMPRESSED
    if field == "literals":
        assert stored[block] & 3 == 2, "the literals are compressed"
        stored[block] |= 3
    else:
        size_format = stored[block] >> 2 & 3
        header, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[size_format]
        sizes = int.from_bytes(stored[block : block + header], "little") >> 4
        place = block + header + (sizes >> bits)
        place += 1 if stored[place] < 128 else 2
        stored[place] = 0b11111100
    payloads[5] = replace(payloads[5], stored=bytes(stored))
    assert np.flatnonzero(nothing(payloads)[1]).tolist() == [5]


def test_cut_anywhere():
    payloads = good(*[150] * 9, write_checksum=True)
    for number in (0, 4, 8):
        for size in range(len(payloads[number].stored)):
            damaged = payloads.copy()
            damaged[number] = replace(payloads[number], stored=payloads[number].stored[:size])
            assert lay_out(damaged).decode() == (8 if number == 8 else 0)


def test_every_bit_of_headers():
    payloads = good(*[300] * 9, write_checksum=True)
    for bit in range(13 * 8):
        stored = bytearray(payloads[4].stored)
        stored[bit // 8] ^= 1 << bit % 8
        damaged = payloads.copy()
        damaged[4] = replace(payloads[4], stored=bytes(stored))
        outcomes(lay_out(damaged))


def test_bad_dictionary():
    """As one by one: it is the frames that fail."""
    broken = zstandard.train_dictionary(2000, [sample("text", 500, n) for n in range(50)])
    dictionary = broken.as_bytes()[:8] + b"\xff" * 100
    assert lay_out(ten()).decode(dictionary) == 0
    assert all(outcomes(lay_out(ten()), dictionary=dictionary)[1])


def test_decoder_after_damage():
    decode = frames.decoder(None)
    payloads = ten(write_checksum=True)
    damaged = payloads.copy()
    damaged[5] = replace(payloads[5], stored=payloads[5].stored[:-1] + b"\0")
    for each, count in ((damaged, 0), (payloads, 10), (damaged, 0), (payloads, 10)):
        work = lay_out(each)
        assert decode(work.rows, work.src, work.dst, work.stored, work.out) == count


SETTINGS = [{}, {"write_checksum": True}, {"level": 19}, {"write_content_size": False}]


@pytest.mark.parametrize("verify", [True, False])
def test_damage_gives_what_it_gives_one_by_one(verify):
    rng = random.Random(f"frames {verify}")
    taken = 0
    for number in range(400):
        more = SETTINGS[rng.choice((0, 0, 0, 1, 1, 2, 3))]
        sizes = [rng.randrange(20, 900) for _ in range(12)]
        payloads = good(*sizes, kind=KINDS[number % len(KINDS)], **more)
        files = [payload.stored for payload in payloads]
        for _ in range(rng.randrange(1, 3)):
            bad = rng.randrange(12)
            payloads[bad] = replace(payloads[bad], stored=mutated(rng, [files[bad], *files]))
            if rng.randrange(3) == 0:
                payloads[bad] = summed(payloads[bad])
        taken += lay_out(payloads).decode(verify=verify) > 0
        outcomes(lay_out(payloads), verify=verify)
    assert taken > 20


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_inside_blocks(data):
    """Headers that are in order, and blocks of which anything can come."""
    payloads = ten()
    content = data.draw(st.binary(min_size=1, max_size=60))
    size = data.draw(st.integers(1, 400))
    kind = data.draw(st.sampled_from([handmade.RAW, handmade.RLE, handmade.COMPRESSED]))
    block = handmade.block(kind, size if kind == handmade.RLE else len(content), content)
    stored = handmade.frame(block, content_size=(size, 4))
    payloads[data.draw(st.integers(0, 9))] = Payload(Codec.ZSTD, bytes(size), stored)
    outcomes(lay_out(payloads))


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=40),
    kind=st.sampled_from(KINDS),
    level=st.integers(-3, 12),
    checksum=st.booleans(),
    beside=st.booleans(),
)
def test_batches_of_any_rows(sizes, kind, level, checksum, beside):
    payloads = good(*sizes, kind=kind, level=level, write_checksum=checksum)
    if beside:
        payloads = [summed(payload) for payload in payloads]
    _, status, _, slots = outcomes(lay_out(payloads))
    assert not any(status)
    assert slots == [payload.raw for payload in payloads]
