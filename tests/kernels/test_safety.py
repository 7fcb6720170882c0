"""The kernels on the CPU, under sanitizers, in buffers of exact size: any bytes, and right ones.

What a kernel must do with a case is what the host engine's decoders do: the same bytes, or both
refuse. `judge` knows where they may differ, and why.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

import gpuload
from gpuload.chunks import Codec
from gpuload.errors import GpuloadError
from tests.conftest import corpus_entries, corpus_folder
from tests.helpers.handmade import lz4_literals, lz4_sequence
from tests.helpers.lanes import build, cases, judge
from tests.helpers.lanes.cases import Case, Outcome
from tests.helpers.lanes.streams import (
    Stream,
    host_decoded,
    small_streams,
    snappy_copy,
    snappy_literal,
)
from tests.helpers.mutations import mutated
from tests.helpers.payloads import encode, sample

CODECS = (Codec.LZ4, Codec.SNAPPY, Codec.RAW)
#: Damaged streams of each codec; the same again of valid ones is mixed in, divided by 4.
DAMAGED = 20_000
CUT = 200
#: Of a slot whose true size the file does not say.
SLOT = 64 << 10


pytestmark = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())


@pytest.fixture(autouse=True, scope="module")
def _sanitizers():
    skip_without(build.WARPS)


@pytest.fixture(scope="module")
def _exact():
    skip_without(build.EXACT)


@pytest.fixture(scope="module")
def _races():
    skip_without(build.RACES)


def skip_without(kind: build.Build) -> None:
    if reason := build.missing(kind):
        pytest.skip(reason)


@cache
def variants(codec: Codec) -> list[int]:
    """Return the widths that a codec's kernel comes in."""
    library = build.shared_library()
    return [
        width
        for width in (1, 2, 4, 8, 16, 32, 64, 128)
        if hasattr(library, f"{codec.name.lower()}_{width}")
    ]


def run(codec: Codec, asked: list[Case], width: int = 32, **options) -> list[Outcome]:
    return cases.run_parallel(f"{codec.name.lower()}_{width}", asked, **options)


def compare(asked: list[Case], outcomes: list[Outcome]) -> int:
    """Assert that kernels and host agree on every case; return how many decode."""
    decoded, differing = judge.compare(asked, outcomes)
    assert differing <= max(5, len(asked) // 50), "known differences are rare"
    return decoded


def placed(rng: random.Random, codec: Codec, stored: bytes, capacity: int) -> Case:
    return Case(codec, stored, capacity, rng.randrange(16), rng.randrange(16))


def some_capacity(rng: random.Random, stream: Stream) -> int:
    size = len(stream.raw)
    near = max(0, size + rng.randrange(-20, 21))
    return rng.choice((size, size, size, near, max(size, SLOT), rng.randrange(size + 1)))


@cache
def streams(codec: Codec) -> list[Stream]:
    return small_streams(codec, random.Random(f"{codec.name} streams"), 700)


def mixture(codec: Codec, seed: int, damaged: int) -> list[Case]:
    """Return damaged streams, and valid ones among them."""
    rng = random.Random(f"{codec.name} {seed}")
    pool = streams(codec)
    stored = [stream.stored for stream in pool]
    mixed = []
    for number in range(damaged + damaged // 4):
        stream = rng.choice(pool)
        if number % 5 == 4:
            mixed.append(placed(rng, codec, stream.stored, len(stream.raw)))
        else:
            mixed.append(placed(rng, codec, mutated(rng, stored), some_capacity(rng, stream)))
    return mixed


# Valid streams


def corpus_rows(codec: Codec) -> list[Case]:
    """Return the rows of the corpus' files that decode on their own."""
    rng = random.Random(1)
    found = []
    for entry in corpus_entries("stream"):
        path = corpus_folder() / entry["file"]
        data = path.read_bytes()
        try:
            with gpuload.open(path, device="host") as container:
                rows = container.chunks
        except GpuloadError:
            continue
        rows = rows[(rows["codec"] == codec) & ~rows["chained"] & ~rows["dictionary"]]
        for offset, size, room in rows[["offset", "stored_size", "raw_size"]].tolist():
            found.append(placed(rng, codec, data[offset : offset + size], room))
    return found


@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
def test_corpus(codec):
    asked = corpus_rows(codec)
    assert compare(asked, run(codec, asked, batch=4)) > len(asked) // 2


@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
def test_corpus_in_slots_of_exact_size(codec):
    slots = [host_decoded(codec, case.stored, case.capacity) for case in corpus_rows(codec)]
    asked = [
        Case(codec, case.stored, len(raw), case.dst_at, case.src_at)
        for case, raw in zip(corpus_rows(codec), slots, strict=True)
        if raw is not None
    ]
    assert compare(asked, run(codec, asked, batch=4)) == len(asked)


def test_valid_streams(codec):
    rng = random.Random(2)
    asked = [
        placed(rng, codec, stored, capacity)
        for stored, raw in streams(codec)
        for capacity in (len(raw), *([SLOT] if codec != Codec.SNAPPY else []))
    ]
    assert compare(asked, run(codec, asked)) == len(asked)


@pytest.mark.usefixtures("_exact")
def test_any_alignment(codec):
    chosen = streams(codec)[:9]
    asked = [
        Case(codec, stored, len(raw), src_at, dst_at)
        for stored, raw in chosen
        for src_at in range(16)
        for dst_at in range(16)
    ]
    for width in variants(codec):
        assert compare(asked, run(codec, asked, width, build=build.EXACT)) == len(asked)


def test_large_streams(codec):
    """Of more than 64 KiB, so that offsets and lengths have all their bits."""
    rng = random.Random(12)
    asked = [placed(rng, codec, *large) for large in large_streams(codec, rng)]
    for width in variants(codec):
        assert compare(asked, run(codec, asked, width, batch=2)) == len(asked)


def large_streams(codec: Codec, rng: random.Random) -> list[tuple[bytes, int]]:
    text = sample("text", 150_000)
    raws = [text + rng.randbytes(70_000) + text[:65_000], bytes(300_000), sample("floats", 90_000)]
    found = [(encode(codec, raw).stored, len(raw)) for raw in raws]
    start = rng.randbytes(70_000)
    if codec == Codec.LZ4:
        matches = [lz4_sequence(start, 65_535, 70_000), lz4_sequence(b"", 65_535, 4)]
        found.append((b"".join([*matches, lz4_literals(start[:20])]), 140_024))
    if codec == Codec.SNAPPY:
        copies = [snappy_copy(70_000, 64, 4), snappy_copy(65_535, 1, 2), snappy_copy(70_065, 64, 4)]
        found.append((snappy_literal(start, 3) + b"".join(copies), 70_129))
    return found


# Broken ones


def test_truncations(codec):
    rng = random.Random(3)
    whole = small_streams(codec, rng, CUT, range(40, 200))
    asked = [
        placed(rng, codec, stored[:size], rng.choice((len(raw), len(raw), SLOT)))
        for stored, raw in whole
        for size in range(len(stored))
    ]
    compare(asked, run(codec, asked))


def test_capacities(codec):
    """Every capacity from nothing to a bit more than is needed."""
    rng = random.Random(4)
    asked = [
        placed(rng, codec, stored, capacity)
        for stored, raw in small_streams(codec, rng, 20, range(40, 120))
        for capacity in range(min(len(raw) + 20, 400))
    ]
    compare(asked, run(codec, asked))


def test_damaged_streams(codec):
    asked = mixture(codec, 5, DAMAGED)
    decoded = compare(asked, run(codec, asked))
    assert DAMAGED // 5 < decoded < DAMAGED


def test_any_bytes(codec):
    rng = random.Random(6)
    asked = [
        placed(
            rng,
            codec,
            rng.randbytes(rng.choice((0, 1, 2, 5, 40, 200))),
            rng.choice((0, 1, 99, SLOT)),
        )
        for _ in range(2_000)
    ]
    compare(asked, run(codec, asked))


def test_every_stream_of_two_bytes(codec):
    pairs = [bytes(pair) for pair in np.ndindex(256, 256)][:: 1 if codec == Codec.SNAPPY else 7]
    rng = random.Random(7)
    asked = [placed(rng, codec, pair, rng.choice((0, 1, 2, 30))) for pair in pairs]
    compare(asked, run(codec, asked, batch=256))


def test_every_width(codec):
    asked = mixture(codec, 8, 1_600)
    assert {1, 32} <= set(variants(codec))
    for width in variants(codec):
        compare(asked, run(codec, asked, width))


@pytest.mark.usefixtures("_exact")
def test_bounds_to_the_byte(codec):
    """AddressSanitizer cannot see what lies up to 7 bytes before a buffer that is not aligned."""
    asked = mixture(codec, 13, 2_000)
    for width in variants(codec):
        compare(asked, run(codec, asked, width, build=build.EXACT))


def test_one_lane_at_native_speed(codec):
    asked = mixture(codec, 9, 8_000)
    compare(asked, run(codec, asked, 1, build=build.ALONE))


def test_every_order_of_lanes(codec):
    asked = mixture(codec, 10, 400)
    for order in ("ascending", "descending", "random"):
        compare(asked, run(codec, asked, order=order, batch=7))


@pytest.mark.usefixtures("_races")
def test_no_data_races(codec):
    """Lanes read what others wrote only after a sync, in shared memory and in the slot."""
    asked = mixture(codec, 11, 400)
    for width in variants(codec)[1:]:
        compare(asked, run(codec, asked, width, build=build.RACES))


def test_operations_of_other_codecs_are_left_alone(codec):
    asked = [Case(other, b"\0" * 20, 64) for other in (*CODECS, Codec.DEFLATE, Codec.ZSTD)]
    outcomes = cases.run(f"{codec.name.lower()}_32", asked)
    touched = [outcome.status != cases.UNTOUCHED for outcome in outcomes]
    assert touched == [case.codec == codec for case in asked]
