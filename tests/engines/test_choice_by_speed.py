"""Which of the engines that can decode rows is taken: the fastest, by the table of rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuload import driver
from gpuload.chunks import Codec, make_table
from gpuload.engines import nvcomp_library, nvcomp_refusals, rates
from gpuload.engines.choice import choose, time_text
from gpuload.kernels import compiler
from gpuload.options import ENGINES, Options
from tests.engines.engine_tests import HOST_CODECS
from tests.engines.test_choice import ENGINE

KIB = 1 << 10
#: A GPU without a decompression engine.
HOPPER = replace(ENGINE, name="NVIDIA H200", decompress_mask=0, decompress_max_length=0)


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """Be on a Hopper with kernels, and without nvCOMP."""
    monkeypatch.setattr(driver, "unavailable", lambda: "")
    monkeypatch.setattr(driver, "decompress_unavailable", lambda: "")
    monkeypatch.setattr(driver, "capabilities", lambda number: HOPPER)
    monkeypatch.setattr(compiler, "refusal", lambda number: "")
    monkeypatch.setattr(nvcomp_library, "unavailable", lambda: "nvCOMP is not installed")


@pytest.fixture(autouse=True)
def costs(monkeypatch):
    """Have a start on a device cost more than one on the host, which these tests are about."""
    monkeypatch.setattr(rates, "START", 6e-3)
    monkeypatch.setattr(rates, "HOST_START", 0.0)


@pytest.fixture
def nvcomp(monkeypatch):
    """Have nvCOMP, which refuses nothing."""
    monkeypatch.setattr(driver, "on_device", lambda number: driver.calling("nothing", "a test"))
    monkeypatch.setattr(nvcomp_library, "unavailable", lambda: "")
    monkeypatch.setattr(nvcomp_library, "load", lambda: None)
    monkeypatch.setattr(
        nvcomp_refusals,
        "refusals",
        lambda rows, library, limit: {
            "one serial stream": rows["codec"] == Codec.GZIP,
            "linked to other chunks": rows["chained"],
        },
    )


def rows(count, raw=64 * KIB, codec=Codec.LZ4, ratio=2.5, **columns):
    return make_table(
        range(count), codec=codec, raw_size=raw, stored_size=int(raw / ratio), **columns
    )


def choice(table, **options):
    return choose(table, Options(**{"threads": 4} | options), 0)


def names(table, **options):
    return sorted({ENGINES[number] for number in choice(table, **options).engines})


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY])
@pytest.mark.parametrize(
    ("count", "engine"), [(1, "host"), (3, "host"), (64, "host"), (4096, "sm"), (100_000, "sm")]
)
def test_few_chunks_are_the_hosts(codec, count, engine):
    assert names(rows(count, codec=codec)) == [engine]


def test_few_chunks_are_told_of():
    assert choice(rows(3)).passed_over["sm"] == (
        "3 chunks are too few to pay for the start (6.5 ms against 0.15 ms on the host)"
    )
    assert choice(rows(1)).passed_over["sm"].startswith("1 chunk is too few to pay for the start (")


def test_large_chunks_one_after_the_other_are_slower():
    """Each is decoded by one group of threads, whose 12 ns a byte no other group shortens."""
    assert "slower there" not in choice(rows(2, raw=512 << 20)).passed_over["sm"]
    assert names(rows(2, raw=512 << 20)) == ["host"]


def test_more_threads_of_the_host_help_only_with_large_chunks():
    few, many = (rates.host_seconds(rates.measure(rows(4096), Codec.LZ4), n) for n in (4, 64))
    assert few == many
    large = rates.measure(rows(64, raw=4 << 20, codec=Codec.ZSTD), Codec.ZSTD)
    assert rates.host_seconds(large, 16) < rates.host_seconds(large, 2)


def test_both_times_are_kept_where_the_kernels_are_chosen():
    found = choice(rows(4096))
    assert set(found.seconds) == {"sm", "host"}
    assert 0 < found.seconds["sm"] < found.seconds["host"] < 1
    assert choice(rows(3)).seconds == {}


def test_uncompressed_chunks_go_with_the_others():
    """An engine for each of them would make a window for each of them."""
    codecs = [Codec.LZ4] * 2000
    codecs[100::100] = [Codec.RAW] * 19
    assert names(rows(2000, codec=codecs)) == ["sm"]
    assert names(rows(10, codec=codecs[95:105])) == ["host"]


def test_uncompressed_chunks_among_those_of_no_kernel():
    codecs = [Codec.DEFLATE] * 2000
    codecs[100::100] = [Codec.RAW] * 19
    found = choice(rows(2000, codec=codecs))
    assert set(found.engines) == {ENGINES.index("host")}
    assert found.passed_over["sm"] == (
        "there is no kernel for the codec (1981 of 2000 chunks); "
        "uncompressed chunks among others that it cannot take"
    )


def test_nothing_but_uncompressed_chunks():
    assert names(rows(4096, codec=Codec.RAW, ratio=1)) in (["host"], ["sm"])


def test_codecs_are_compared_one_by_one():
    codecs = [Codec.LZ4] * 4096 + [Codec.SNAPPY] * 2
    found = choice(rows(4098, codec=codecs))
    assert {ENGINES[number] for number in found.engines[:4096]} == {"sm"}
    assert {ENGINES[number] for number in found.engines[4096:]} == {"host"}
    assert found.passed_over["sm"].startswith("2 chunks are too few to pay for the start")


def test_an_engine_by_name_is_not_compared():
    assert names(rows(1), engine="sm") == ["sm"]
    assert "few" not in str(choice(rows(1), engine="sm").passed_over)


def test_nvcomp_where_there_is_no_kernel(nvcomp):
    assert names(rows(4096, codec=Codec.ZSTD), trusted=True) == ["nvcomp"]
    assert names(rows(4096, codec=Codec.ZSTD)) == ["host"]
    found = choice(rows(2, codec=Codec.ZSTD), trusted=True)
    assert found.passed_over["nvcomp"].startswith("2 chunks are too few to pay for the start (")


@pytest.mark.parametrize("count", [1, 4096])
def test_nvcomp_where_there_is_no_decoder_on_the_host(nvcomp, count):
    """Nothing is too few for it, and uncompressed chunks go with the others."""
    codecs = [Codec.GDEFLATE] * count + [Codec.RAW]
    assert names(rows(count + 1, codec=codecs), trusted=True) == ["nvcomp"]
    seconds = choice(rows(count + 1, codec=codecs), trusted=True).seconds
    assert set(seconds) == {"nvcomp", "host"}
    assert time_text(seconds["host"]) == "never"


def test_the_kernels_before_nvcomp_where_they_are_faster(nvcomp):
    assert names(rows(4096), trusted=True) == ["sm"]


def test_nvcomp_where_it_is_faster(nvcomp, monkeypatch):
    slow = rates.DEVICE_RATES["sm"] | {Codec.LZ4: rates.Rate(20e9, 1e-9)}
    monkeypatch.setitem(rates.DEVICE_RATES, "sm", slow)
    found = choice(rows(4096, ratio=20), trusted=True)
    assert {ENGINES[number] for number in found.engines} == {"nvcomp"}
    assert found.passed_over["sm"].endswith(" by nvcomp)")


def test_every_codec_that_an_engine_takes_has_a_rate():
    from gpuload.engines.nvcomp_abi import METHODS
    from gpuload.engines.refusals import KERNELS

    assert set(KERNELS) == set(rates.DEVICE_RATES["sm"])
    assert {Codec.RAW, *METHODS} == set(rates.DEVICE_RATES["nvcomp"])
    assert {*HOST_CODECS, Codec.GZIP} == set(rates.HOST_RATES)
    assert set(Codec) == {*rates.HOST_RATES, *rates.DEVICE_RATES["nvcomp"]}


@pytest.mark.parametrize(
    ("kib", "seconds", "host"),
    [
        (64, 2.1e-3, 10.4e-3),
        (1024, 2.5e-3, 12.6e-3),
        (8 << 10, 3.8e-3, 19.7e-3),
        (64 << 10, 7.7e-3, 67e-3),
        (4 << 20, 70e-3, 2.67),
    ],
)
def test_rates_agree_with_what_was_measured(monkeypatch, kib, seconds, host):
    """Whole loads of LZ4 to an H200, after the first."""
    monkeypatch.undo()
    work = rates.measure(rows(kib // 64), Codec.LZ4)
    assert 0.6 < rates.device_seconds("sm", work) / seconds < 1.6
    assert 0.6 < (rates.HOST_START + rates.host_seconds(work, 16)) / host < 1.6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9e-6, "0.009 ms"),
        (0.9e-3, "0.9 ms"),
        (12.3e-3, "12 ms"),
        (0.456, "456 ms"),
        (3.21, "3.2 s"),
        (32.1, "32 s"),
    ],
)
def test_times_for_people(seconds, text):
    assert time_text(seconds) == text
