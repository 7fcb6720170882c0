"""Which variant of a kernel decodes a batch."""

from __future__ import annotations

import pytest

from gpuload.engines.refusals import KERNELS
from gpuload.kernels import variants
from gpuload.kernels.compiler import CODECS
from gpuload.kernels.variants import BLOCK, Variant, choose


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 31, 1000, 10**6])
def test_every_batch_has_a_variant(codec, count):
    found = choose(codec, count, 30_000, 65_536)
    assert found.codec == codec
    assert BLOCK % found.lanes == 0


def test_every_kernel_has_a_rule():
    assert set(KERNELS.values()) == set(CODECS) == set(variants._RULES)


def test_the_first_that_is_for_so_many(monkeypatch):
    rules = {"lz4": ((100, 128), (2000, 64), (float("inf"), 32))}
    monkeypatch.setattr(variants, "_RULES", rules)
    counts = {1: 128, 100: 128, 101: 64, 2000: 64, 2001: 32, 10**9: 32}
    assert {count: choose("lz4", count, 1, 1).lanes for count in counts} == counts


@pytest.mark.parametrize(
    ("lanes", "count", "blocks"),
    [(32, 0, 0), (32, 1, 1), (32, 4, 1), (32, 5, 2), (128, 1, 1), (128, 5, 5)],
)
def test_blocks(lanes, count, blocks):
    assert Variant("lz4", lanes).blocks(count) == blocks


def test_names():
    assert Variant("snappy", 32).name == "snappy_32"
