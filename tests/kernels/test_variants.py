"""Which variant of a kernel decodes a batch."""

from __future__ import annotations

import pytest

from gpuload.engines.refusals import KERNELS
from gpuload.kernels.compiler import CODECS
from gpuload.kernels.variants import Variant, choose


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("count", "stored", "lanes"),
    [
        (1, 30_000, 128),
        (2903, 30_000, 128),
        (2904, 30_000, 32),
        (10**6, 30_000, 32),
        (10**6, 65_000, 128),
        (10**6, 64_000, 32),
    ],
)
def test_blocks_for_few_chunks_and_for_those_that_are_hardly_compressed(
    codec, count, stored, lanes
):
    found = choose(codec, count, stored, 65_536, multiprocessors=132)
    assert found == Variant(codec, lanes)


def test_a_smaller_device_has_many_chunks_sooner():
    assert choose("lz4", 500, 1, 9, multiprocessors=20).lanes == 32
    assert choose("lz4", 500, 1, 9, multiprocessors=40).lanes == 128


def test_every_codec_has_a_kernel():
    assert set(KERNELS.values()) == set(CODECS)


@pytest.mark.parametrize(
    ("lanes", "count", "blocks"),
    [(32, 0, 0), (32, 1, 1), (32, 4, 1), (32, 5, 2), (128, 1, 1), (128, 5, 5)],
)
def test_blocks(lanes, count, blocks):
    assert Variant("lz4", lanes).blocks(count) == blocks


def test_names():
    assert Variant("snappy", 32).name == "snappy_32"
