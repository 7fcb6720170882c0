"""The host engine, by the contract of all engines and beyond it."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import lz4.block
import numpy as np
import pytest
import zstandard

from gpuload.chunks import Checksum, Codec
from gpuload.engines.base import HostBatch, Outcome, Status
from gpuload.engines.host import TASK_SIZE, HostEngine
from gpuload.options import Options
from tests.engines.engine_tests import EngineTests, Result, check, check_form, with_checksum
from tests.helpers.payloads import KINDS, Payload, encode, lay_out, sample


class TestHostEngine(EngineTests):
    def make_engine(self, options):
        return HostEngine(options)

    def test_refuses_what_only_nvcomp_decodes(self, engine):
        payloads = [encode(codec, b"some bytes") for codec in (Codec.LZ4, Codec.GDEFLATE)]
        reason = "the host has no decoder for GDeflate: only nvCOMP decodes it"
        refused = engine().refusals(lay_out(payloads).rows)
        assert {why: mask.tolist() for why, mask in refused.items() if mask.any()} == {
            reason: [False, True]
        }
        assert self.decode(engine(), payloads, {1}).reasons == {1: reason}

    # Rows larger and smaller than a task, so that tasks start at every kind of place.
    @pytest.mark.parametrize("threads", [1, 2, 7])
    def test_any_number_of_threads(self, engine, threads):
        rng = random.Random(threads)
        sizes = [rng.choice((0, 100, 65536, TASK_SIZE - 1, TASK_SIZE + 1)) for _ in range(30)]
        payloads = [
            encode(rng.choice((Codec.LZ4, Codec.ZSTD)), sample("floats", size)) for size in sizes
        ]
        self.decode(engine(threads=threads), payloads)

    @pytest.mark.parametrize("threads", [1, 7])
    def test_failures_keep_their_row_numbers(self, engine, threads):
        payloads = [encode(Codec.LZ4, sample("text", 400_000, seed)) for seed in range(10)]
        for row in (3, 8):
            payloads[row] = replace(payloads[row], stored=payloads[row].stored[:-1])
        outcome = self.decode(engine(threads=threads), payloads, {3, 8})
        assert outcome.status.nonzero()[0].tolist() == [3, 8]

    def test_submit_from_many_threads(self, engine):
        one, results = engine(threads=2), {}
        payloads = self.mixture()
        work = lay_out(payloads)

        def submit(number):
            results[number] = self.run(one, work)

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 8
        for result in results.values():
            check(payloads, work, result)


class TestInTheCallingThread(EngineTests):
    """The pipeline's workers call `decode`, which needs no threads of its own."""

    def make_engine(self, options):
        return HostEngine(options, vouched=False)

    def start(self, engine, work):
        out = work.out.copy()
        outcome = engine.decode(HostBatch(work.rows, work.src, work.dst, work.stored, out))
        return lambda: Result(outcome, out)


def decode(payloads, bad=(), *, vouched=False, **options):
    """Decode a batch on a new engine and return its outcome."""
    engine = HostEngine(Options(**options), vouched=vouched)
    work = lay_out(payloads)
    out = work.out.copy()
    outcome = engine.submit(HostBatch(work.rows, work.src, work.dst, work.stored, out)).wait()
    engine.close()
    check(payloads, work, Result(outcome, out), bad)
    return outcome


def test_vouched_engine_decodes_the_same():
    decode([encode(Codec.LZ4, sample(kind, 5000)) for kind in KINDS], vouched=True)


def test_zstd_dictionary():
    content = sample("noise", 4000)
    dictionary = zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    texts = [content[start : start + 700] for start in range(0, 3000, 97)]
    payloads = [encode(Codec.ZSTD, text, dict_data=dictionary) for text in texts]
    assert all(len(payload.stored) < 100 for payload in payloads), "the dictionary is of use"
    # Frames that need no dictionary decode on the same engine.
    payloads += [encode(Codec.ZSTD, sample(kind, 500)) for kind in KINDS]
    decode(payloads, dictionary=dictionary.as_bytes())


def test_zstd_trained_dictionary_that_is_not_given():
    dictionary = zstandard.train_dictionary(2000, [sample("text", 500, n) for n in range(50)])
    payloads = [encode(Codec.ZSTD, sample("text", 500, n)) for n in range(3)]
    payloads[1] = encode(Codec.ZSTD, sample("text", 500, 1), dict_data=dictionary)
    assert decode(payloads, {1}).status.tolist() == [Status.OK, Status.CORRUPT, Status.OK]


@pytest.mark.parametrize("size", [1, 5000, 65535, 65536, 200_000])
def test_lz4_dictionary(size):
    dictionary = sample("noise", size)
    texts = [dictionary[-end - 60 : -end or None] for end in range(0, min(size, 60_000), 997)]
    payloads = [
        Payload(
            Codec.LZ4, text, lz4.block.compress(text, store_size=False, dict=dictionary[-65536:])
        )
        for text in texts
    ]
    decode(payloads, dictionary=dictionary)


def test_lz4_block_that_copies_from_a_dictionary_that_is_not_given():
    dictionary = sample("text", 1000)
    stored = lz4.block.compress(dictionary, store_size=False, dict=dictionary)
    payload = Payload(Codec.LZ4, dictionary, stored)
    assert decode([payload], {0}).status.tolist() == [Status.CORRUPT]


def test_checksum_inside_a_zstd_frame():
    good = encode(Codec.ZSTD, sample("text", 3000), write_checksum=True)
    bad = replace(good, stored=good.stored[:-1] + bytes([good.stored[-1] ^ 1]))
    outcome = decode([good, bad, good], {1})
    assert outcome.status.tolist() == [Status.OK, Status.CHECKSUM, Status.OK]


def test_unverified_checksum_inside_a_zstd_frame():
    good = encode(Codec.ZSTD, sample("text", 3000), write_checksum=True)
    stored = good.stored[:-1] + bytes([good.stored[-1] ^ 1])
    row = replace(good, stored=stored, kind=Checksum.XXH64_LOW)
    row = replace(row, checksum=int.from_bytes(stored[-4:], "little"))
    decode([row], verify=False)


def test_checksum_beside_a_zstd_frame_that_has_its_own():
    good = encode(Codec.ZSTD, sample("text", 3000), write_checksum=True)
    right = replace(
        good, kind=Checksum.XXH64_LOW, checksum=int.from_bytes(good.stored[-4:], "little")
    )
    wrong = replace(right, checksum=right.checksum ^ 1)
    outcome = decode([right, wrong], {1})
    assert outcome.status.tolist() == [Status.OK, Status.CHECKSUM]


def pool_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpuload-host")]


def test_close_ends_the_threads():
    engine = HostEngine(Options(threads=3))
    assert not pool_threads()
    work = lay_out([encode(Codec.RAW, sample("noise", TASK_SIZE)) for _ in range(4)])
    engine.submit(HostBatch(work.rows, work.src, work.dst, work.stored, work.out)).wait()
    assert 0 < len(pool_threads()) <= 3
    engine.close()
    assert not pool_threads()


def test_close_waits_for_what_was_submitted():
    engine = HostEngine(Options(threads=1))
    payloads = [encode(Codec.LZ4, sample("text", TASK_SIZE + 1, seed)) for seed in range(4)]
    work = lay_out(payloads)
    submission = engine.submit(HostBatch(work.rows, work.src, work.dst, work.stored, work.out))
    engine.close()
    check(payloads, work, Result(submission.wait(), work.out))


class TestCheckAfterAnotherEngine:
    """Engines that leave checksums to the host hand over what they decoded."""

    def check(self, payloads, *, outcome=None, spoil=()):
        work = lay_out(payloads)
        out = work.out.copy()
        for row, payload in enumerate(payloads):
            start = work.dst[row]
            out[start : start + len(payload.raw)] = np.frombuffer(payload.raw, np.uint8)
            if row in spoil:
                out[start] ^= 1
        if outcome is None:
            outcome = Outcome.empty(len(payloads))
            outcome.actual[:] = [len(payload.raw) for payload in payloads]
        HostEngine.check(HostBatch(work.rows, work.src, work.dst, work.stored, out), outcome)
        check_form(outcome, len(payloads))
        return outcome

    def payloads(self, **settings):
        return [
            with_checksum(encode(codec, sample("text", 300), **settings.get(codec.name, {})))
            for codec in (Codec.LZ4, Codec.SNAPPY, Codec.DEFLATE, Codec.ZSTD, Codec.RAW)
        ]

    def test_right(self):
        assert not self.check(self.payloads()).status.any()

    def test_wrong_bytes(self):
        outcome = self.check(self.payloads(), spoil={1, 2, 3})
        assert np.flatnonzero(outcome.status).tolist() == [1, 2, 3]
        assert set(outcome.status.tolist()) == {Status.OK, Status.CHECKSUM}

    def test_wrong_stored_bytes(self):
        payloads = self.payloads()
        for row in (0, 4):
            payloads[row] = replace(payloads[row], checksum=payloads[row].checksum ^ 1)
        assert np.flatnonzero(self.check(payloads).status).tolist() == [0, 4]

    def test_wrong_bytes_of_a_zstd_frame_with_a_checksum(self):
        payloads = self.payloads(ZSTD={"write_checksum": True})
        assert not self.check(payloads).status.any()
        assert np.flatnonzero(self.check(payloads, spoil={3}).status).tolist() == [3]

    def test_rows_that_failed_stay_as_they_are(self):
        outcome = Outcome.empty(5)
        outcome.fail(1, Status.SIZE, "it has another size")
        outcome.actual[:] = 300
        self.check(self.payloads(), outcome=outcome, spoil={1})
        assert outcome.status.tolist() == [0, Status.SIZE, 0, 0, 0]
        assert outcome.reasons == {1: "it has another size"}

    def test_rows_without_a_checksum_pass(self):
        payloads = [replace(payload, kind=Checksum.NONE) for payload in self.payloads()]
        assert not self.check(payloads, spoil=range(5)).status.any()


def test_joined_outcomes():
    parts = [Outcome.empty(2), Outcome.empty(0), Outcome.empty(3)]
    parts[0].fail(1, Status.CORRUPT, "one")
    parts[2].fail(0, Status.SIZE, "two")
    parts[2].actual[:] = [5, 6, 7]
    joined = Outcome.joined(parts)
    assert joined.status.tolist() == [0, Status.CORRUPT, Status.SIZE, 0, 0]
    assert joined.actual.tolist() == [0, 0, 5, 6, 7]
    assert joined.reasons == {1: "one", 2: "two"}
