"""What every engine has to fulfil, as a class of tests to inherit.

An engine's test module subclasses `EngineTests` and says how to make one::

    class TestHostEngine(EngineTests):
        def make_engine(self, options):
            return HostEngine(options)

The tests build rows, stored bytes and a poisoned destination in host memory and compare what comes
back there. An engine whose memory is elsewhere overrides `start`, which is the only place that
hands a batch to the engine.
"""

from __future__ import annotations

import inspect
import random
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest

from gpuload.chunks import Checksum, Codec, make_table
from gpuload.engines.base import Engine, HostBatch, Outcome, Status
from gpuload.options import Options
from tests.helpers.forbidden import FORBIDDEN
from tests.helpers.payloads import (
    KINDS,
    NATURAL_CHECKSUM,
    POISON,
    Payload,
    Work,
    checksum,
    encode,
    lay_out,
    sample,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    import numpy.typing as npt

#: Around every size at which a copy loop or a format changes its ways.
SIZES = (0, 1, 2, 3, 4, 5, 12, 13, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257)
SIZES += (1000, 4095, 4096, 4097, 16383, 16384, 65535, 65536, 65537, 131071, 131072, 131073)

#: Each codec with the checksums that formats attach to it.
CHECKSUMS = [
    (Codec.RAW, Checksum.XXH32_STORED),
    (Codec.RAW, Checksum.XXH32),
    (Codec.RAW, Checksum.CRC32C_MASKED),
    (Codec.LZ4, Checksum.XXH32_STORED),
    (Codec.LZ4, Checksum.XXH32),
    (Codec.SNAPPY, Checksum.CRC32C_MASKED),
    (Codec.DEFLATE, Checksum.CRC32),
    (Codec.ZSTD, Checksum.XXH64_LOW),
]

#: Settings of the reference encoders that make blocks of different shapes.
SETTINGS: dict[Codec, list[dict]] = {
    Codec.RAW: [{}],
    Codec.SNAPPY: [{}],
    Codec.GDEFLATE: [{}],
    Codec.BLOSC: [{"cname": b"blosclz"}, {"cname": b"zstd", "shuffle": 2}],
    Codec.LZ4: [
        {"mode": "fast", "acceleration": 20},
        {"mode": "default"},
        {"mode": "high_compression", "compression": 12},
    ],
    Codec.DEFLATE: [
        {"level": 0},
        {"level": 1},
        {"level": 9},
        {"strategy": zlib.Z_FIXED},
        {"strategy": zlib.Z_HUFFMAN_ONLY},
        {"strategy": zlib.Z_RLE},
    ],
    Codec.ZSTD: [
        {"level": level, "write_checksum": sums, "write_content_size": sizes}
        for level in (1, 3, 19)
        for sums in (False, True)
        for sizes in (False, True)
    ],
}


#: Codecs of which a reference decoder decodes single payloads on the host.
HOST_CODECS = frozenset(Codec) - {Codec.GZIP, Codec.GDEFLATE}

#: Sizes of rows that nobody decodes; engines may leave empty ones to others.
SOME_BYTES = {"stored_size": 40, "raw_size": 100}


@dataclass(frozen=True)
class Result:
    """What came of a batch: the outcome, and the destination as it was left."""

    outcome: Outcome
    out: npt.NDArray[np.uint8]


class EngineTests:
    """The contract of `gpuload.engines.base.Engine`.

    Attributes
    ----------
    supported : frozenset of Codec
        What the engine decodes; it has to refuse the rest.
    bounded : bool
        Whether it may be given damaged payloads: none of them harms another row, or the bytes
        between the slots.
    checks : bool
        Whether it compares checksums itself; if not, who gives it batches does so afterwards.
    """

    supported: ClassVar[frozenset[Codec]] = HOST_CODECS
    bounded: ClassVar[bool] = True
    checks: ClassVar[bool] = True

    def make_engine(self, options: Options) -> Engine:
        """Return a new engine."""
        raise NotImplementedError

    def start(self, engine: Engine, work: Work) -> Callable[[], Result]:
        """Submit a batch and return what waits for it and fetches the destination."""
        out = work.out.copy()
        submission = engine.submit(HostBatch(work.rows, work.src, work.dst, work.stored, out))
        return lambda: Result(submission.wait(), out)

    def run(self, engine: Engine, work: Work) -> Result:
        """Decode a batch."""
        return self.start(engine, work)()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run tests that ask for a `codec` with each one that is supported."""
        if "codec" in metafunc.fixturenames:
            metafunc.parametrize("codec", sorted(self.supported), ids=lambda codec: codec.name)
        if "summed" in metafunc.fixturenames:
            summed = [pair for pair in CHECKSUMS if pair[0] in self.supported]
            metafunc.parametrize(
                "summed", summed, ids=lambda pair: f"{pair[0].name}-{pair[1].name}"
            )
        if "forbidden" in metafunc.fixturenames:
            names = [name for name in FORBIDDEN if FORBIDDEN[name].codec in self.supported]
            metafunc.parametrize("forbidden", names)

    @pytest.fixture
    def engine(self) -> Iterator[Callable[..., Engine]]:
        """Return a function that makes engines from options; they are closed afterwards."""
        made: list[Engine] = []

        def make(**options) -> Engine:
            made.append(self.make_engine(Options(**options)))
            return made[-1]

        yield make
        for each in made:
            each.close()

    @pytest.fixture
    def damageable(self) -> None:
        """Mark a test of damaged payloads, which an engine without bounds is not given."""

    @pytest.fixture
    def checking(self) -> None:
        """Mark a test of checksums, which some engines leave to their callers."""

    def __init_subclass__(cls, **more: object) -> None:
        """Leave out the tests of what is not the engine's business."""
        super().__init_subclass__(**more)
        for name, test in inspect.getmembers(EngineTests, inspect.isfunction):
            asked = inspect.signature(test).parameters
            if ("damageable" in asked and not cls.bounded) or (
                "checking" in asked and not cls.checks
            ):
                setattr(cls, name, None)

    def decode(self, engine: Engine, payloads: list[Payload], bad: Container[int] = ()) -> Outcome:
        """Decode a batch and check everything that holds for rows that are not in `bad`."""
        work = lay_out(payloads)
        result = self.run(engine, work)
        check(payloads, work, result, bad)
        return result.outcome

    # What decodes

    def test_every_size_and_kind_of_data(self, engine, codec):
        payloads = [encode(codec, sample(kind, size)) for size in SIZES for kind in KINDS]
        self.decode(engine(), payloads)

    def test_every_short_period(self, engine, codec):
        payloads = [encode(codec, sample(f"periodic {n}", 700 + 3 * n)) for n in range(1, 70)]
        self.decode(engine(), payloads)

    def test_random_sizes(self, engine, codec):
        rng = random.Random(1)
        payloads = [
            encode(codec, sample(rng.choice(KINDS), rng.randrange(9000), seed))
            for seed in range(150)
        ]
        self.decode(engine(), payloads)

    def test_every_setting_of_the_encoder(self, engine, codec):
        payloads = [
            encode(codec, sample(kind, size), **settings)
            for settings in SETTINGS[codec]
            for kind, size in [("text", 70_000), ("floats", 9000), ("noise", 3000), ("zeros", 0)]
        ]
        self.decode(engine(), payloads)

    def test_chunks_of_megabytes(self, engine, codec):
        data = sample("text", 800_000) + sample("noise", 500_000) + sample("zeros", 800_001)
        self.decode(engine(), [encode(codec, data[:size]) for size in (len(data), 1 << 20, 5)])

    def test_every_alignment_of_source_and_destination(self, engine, codec):
        pairs = [(src, dst) for src in range(16) for dst in range(16)]
        payloads = [
            encode(codec, sample(KINDS[i % len(KINDS)], 150 + i)) for i in range(len(pairs))
        ]
        src_starts, dst_starts = zip(*pairs, strict=True)
        work = lay_out(payloads, src_starts=src_starts, dst_starts=dst_starts)
        assert set(zip(work.src % 16, work.dst % 16, strict=True)) == set(pairs)
        check(payloads, work, self.run(engine(), work))

    def test_codecs_side_by_side(self, engine):
        self.decode(engine(), self.mixture())

    def test_slots_in_any_order(self, engine):
        payloads = self.mixture()
        work = lay_out(payloads)
        order = np.random.default_rng(3).permutation(len(payloads))
        work = replace(work, rows=work.rows[order], src=work.src[order], dst=work.dst[order])
        check([payloads[i] for i in order], work, self.run(engine(), work))

    def test_rows_that_share_a_payload(self, engine, codec):
        payload = encode(codec, sample("text", 3000))
        work = lay_out([payload] * 9)
        work = replace(work, src=np.full(9, work.src[4]))
        check([payload] * 9, work, self.run(engine(), work))

    def test_empty_batch(self, engine):
        assert self.decode(engine(), []).actual.size == 0

    def test_one_row(self, engine, codec):
        self.decode(engine(), [encode(codec, b"one row")])

    def test_rows_of_no_bytes_only(self, engine):
        self.decode(engine(), [encode(codec, b"") for codec in sorted(self.supported)] * 3)

    def test_inexact_slot_reports_the_actual_size(self, engine, codec):
        sizes = [0, 1, 15, 64, 1000, 65535]
        payloads = [
            replace(encode(codec, sample("text", size)), slot=size + more, exact=False)
            for size in sizes
            for more in (0, 1, 13, 5000)
            if codec != Codec.RAW or not more
        ]
        self.decode(engine(), payloads)

    # Sizes that disagree

    def test_exact_size_that_is_too_large(self, engine, codec):
        payloads = self.neighbours(codec)
        bad = {1: 2001, 4: 2600, 6: 9000}
        for row, size in bad.items():
            payloads[row] = replace(payloads[row], slot=size)
        outcome = self.decode(engine(), payloads, bad)
        assert [outcome.status[row] for row in bad] == [Status.SIZE] * 3
        assert [outcome.actual[row] for row in bad] == [2000] * 3
        for row, size in bad.items():
            assert "2000" in outcome.reasons[row]
            assert str(size) in outcome.reasons[row]

    def test_size_that_is_too_small(self, engine, codec, damageable):
        payloads = self.neighbours(codec)
        bad = {1: 1999, 4: 1000, 6: 0}
        for row, size in bad.items():
            payloads[row] = replace(payloads[row], slot=size)
        outcome = self.decode(engine(), payloads, bad)
        assert all(outcome.status[row] in (Status.CORRUPT, Status.SIZE) for row in bad)
        assert all(str(size) in outcome.reasons[row] for row, size in bad.items())

    def test_bound_that_is_too_small(self, engine, codec, damageable):
        payloads = self.neighbours(codec)
        for row in (0, 5):
            payloads[row] = replace(payloads[row], slot=1500, exact=False)
        outcome = self.decode(engine(), payloads, {0, 5})
        assert all(outcome.status[row] in (Status.CORRUPT, Status.SIZE) for row in (0, 5))

    # Damage

    @pytest.mark.parametrize("kind", ["text", "noise", "zeros"])
    def test_payload_cut_anywhere(self, engine, codec, kind, damageable):
        whole = encode(codec, sample(kind, 90))
        cuts = [
            cut
            for size in range(len(whole.stored))
            for cut in (whole, replace(whole, stored=whole.stored[:size]))
        ]
        bad = set(range(1, len(cuts), 2))
        outcome = self.decode(engine(), cuts, bad)
        assert all(outcome.status[row] in (Status.CORRUPT, Status.SIZE) for row in bad)

    def test_damage_never_passes_a_checksum(self, engine, codec, damageable, checking):
        rng = random.Random(5)
        payloads = []
        for number in range(400):
            good = with_checksum(encode(codec, sample(KINDS[number % 7], rng.randrange(1, 900))))
            payloads += [good, replace(good, stored=damaged(rng, good.stored))]
        work = lay_out(payloads)
        result = self.run(engine(), work)
        passed = np.flatnonzero(result.outcome.status == Status.OK).tolist()
        # What decodes to the right bytes all the same is no failure.
        check(payloads, work, result, set(range(len(payloads))) - set(passed))
        assert set(range(0, len(payloads), 2)) <= set(passed)

    def test_damage_without_checksums_stays_in_its_slot(self, engine, codec, damageable):
        rng = random.Random(6)
        payloads = []
        for number in range(400):
            good = encode(codec, sample(KINDS[number % 7], rng.randrange(1, 900)))
            payloads += [good, replace(good, stored=damaged(rng, good.stored))]
        self.decode(engine(), payloads, set(range(1, len(payloads), 2)))

    def test_noise_instead_of_payloads(self, engine, codec, damageable):
        rng = random.Random(7)
        good = encode(codec, sample("text", 200))
        payloads = [
            good if number % 2 == 0 else replace(good, stored=rng.randbytes(rng.randrange(200)))
            for number in range(400)
        ]
        self.decode(engine(), payloads, set(range(1, len(payloads), 2)))

    def test_forbidden_payload(self, engine, forbidden, damageable):
        payload = FORBIDDEN[forbidden]
        good = encode(payload.codec, sample("text", 64))
        payloads = [good, payload, good, replace(payload, slot=5000, exact=False), good]
        outcome = self.decode(engine(), payloads, {1, 3})
        assert outcome.status[1] == Status.CORRUPT
        assert outcome.status[3] == Status.CORRUPT

    def test_engine_goes_on_after_failures(self, engine, codec, damageable):
        good = encode(codec, sample("text", 5000))
        cut = replace(good, stored=good.stored[:-3])
        one = engine()
        self.decode(one, [cut] * 20, range(20))
        self.decode(one, [good] * 20)

    # Checksums

    def test_right_checksums(self, engine, summed):
        codec, kind = summed
        payloads = [with_checksum(p, kind) for p in self.neighbours(codec, (0, 1, 2000, 70_000))]
        self.decode(engine(), payloads)

    def test_right_checksums_of_inexact_rows(self, engine, summed):
        codec, kind = summed
        payloads = [
            replace(with_checksum(p, kind), exact=False, slot=len(p.raw) + 100 * (codec != 0))
            for p in self.neighbours(codec)
        ]
        self.decode(engine(), payloads)

    @pytest.mark.parametrize("verify", [True, "auto"])
    def test_wrong_checksums(self, engine, summed, verify, checking):
        codec, kind = summed
        payloads = [with_checksum(p, kind) for p in self.neighbours(codec)]
        bad = {0, 3, 7}
        for row in bad:
            payloads[row] = replace(payloads[row], checksum=payloads[row].checksum ^ 1 << row)
        outcome = self.decode(engine(verify=verify), payloads, bad)
        for row in bad:
            assert outcome.status[row] == Status.CHECKSUM
            assert f"{payloads[row].checksum:08x}" in outcome.reasons[row]
            assert f"{checksum(kind, payloads[row]):08x}" in outcome.reasons[row]

    def test_unverified_checksums_are_ignored(self, engine, summed):
        codec, kind = summed
        payloads = [replace(p, kind=kind, checksum=1) for p in self.neighbours(codec)]
        self.decode(engine(verify=False), payloads)

    def test_unverified_sizes_are_not_ignored(self, engine, codec):
        payloads = self.neighbours(codec)
        payloads[2] = replace(payloads[2], slot=2001)
        assert self.decode(engine(verify=False), payloads, {2}).status[2] == Status.SIZE

    # How batches are taken

    def test_refuses_chained_rows(self, engine):
        rows = make_table(
            range(4), **SOME_BYTES, codec=min(self.supported), chained=[False, True, True, False]
        )
        # The first of a chain may be refused too: who decodes the others decodes it.
        assert self.refused(engine(), rows)[1:] == [True, True, False]

    def test_refuses_unsupported_codecs(self, engine):
        rows = make_table(range(len(Codec)), **SOME_BYTES, codec=list(Codec))
        assert self.refused(engine(), rows) == [codec not in self.supported for codec in Codec]

    def test_refuses_nothing_of_an_empty_table(self, engine):
        assert self.refused(engine(), make_table([])) == []

    def refused(self, engine: Engine, rows) -> list[bool]:
        """Return which rows an engine refuses for whatever reason."""
        refusals = engine.refusals(rows)
        assert all(type(reason) is str and reason for reason in refusals)
        assert all(which.dtype == np.bool_ for which in refusals.values())
        assert all(which.shape == rows.shape for which in refusals.values())
        return np.logical_or.reduce([*refusals.values(), np.zeros(rows.size, np.bool_)]).tolist()

    def test_batches_submitted_before_any_is_waited_for(self, engine):
        one, payloads = engine(), self.mixture()
        works = [lay_out(payloads[first:]) for first in range(4)]
        waiting = [self.start(one, work) for work in works]
        for first in (2, 0, 3, 1):
            check(payloads[first:], works[first], waiting[first]())

    def test_many_batches_one_after_the_other(self, engine):
        one = engine()
        for payload in self.mixture() * 3:
            self.decode(one, [payload])

    def test_close_twice(self, engine):
        one = engine()
        self.decode(one, self.mixture()[:3])
        one.close()
        one.close()

    def mixture(self) -> list[Payload]:
        """Return rows of all codecs, kinds of data and sizes in a random order."""
        rng = random.Random(2)
        payloads = [
            encode(codec, sample(kind, rng.randrange(5000)))
            for codec in sorted(self.supported)
            for kind in KINDS
        ]
        return rng.sample(payloads, len(payloads))

    def neighbours(self, codec: Codec, sizes: tuple[int, ...] = (2000,) * 8) -> list[Payload]:
        """Return rows of one codec, all with other content."""
        return [encode(codec, sample("text", size, seed)) for seed, size in enumerate(sizes)]


def check(payloads: list[Payload], work: Work, result: Result, bad: Container[int] = ()) -> None:
    """Check an outcome and a destination; rows in `bad` may have failed."""
    outcome, out = result.outcome, result.out
    check_form(outcome, len(payloads))
    for row, payload in enumerate(payloads):
        if row not in bad:
            assert row not in outcome.reasons, f"row {row}: {outcome.reasons[row]}"
            assert outcome.actual[row] == len(payload.raw)
            start = int(work.dst[row])
            same = out[start : start + len(payload.raw)].tobytes() == payload.raw
            assert same, f"row {row} decodes to other bytes"
    touched = np.flatnonzero((out != POISON) & ~work.slots)
    assert not touched.size, f"bytes outside every slot were written, first at {touched[0]}"


def check_form(outcome: Outcome, count: int) -> None:
    """Check what holds for every outcome of `count` rows."""
    assert outcome.actual.shape == outcome.status.shape == (count,)
    assert outcome.actual.dtype == np.int64
    assert outcome.status.dtype == np.uint8
    assert set(outcome.status.tolist()) <= set(Status)
    assert sorted(outcome.reasons) == np.flatnonzero(outcome.status != Status.OK).tolist()
    assert all(type(reason) is str and reason for reason in outcome.reasons.values())


def with_checksum(payload: Payload, kind: Checksum | None = None) -> Payload:
    """Return a payload with its right checksum, of the kind that its format uses by default."""
    kind = NATURAL_CHECKSUM[payload.codec] if kind is None else kind
    return replace(payload, kind=kind, checksum=checksum(kind, payload))


def damaged(rng: random.Random, stored: bytes) -> bytes:
    """Return other bytes: some replaced, inserted or removed."""
    data = bytearray(stored)
    while data == stored:
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data) + 1)
            patch = rng.randbytes(rng.randrange(3))
            data[place : place + rng.choice((0, len(patch), 1))] = patch
    return bytes(data)
