"""Filters undone on the host, against numcodecs, zarr-python, Blosc, and values made by hand."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    Filter,
    FixedScaleOffset,
    PackBits,
    Pipeline,
    Skip,
    Swap,
    Transpose,
    Unshuffle,
)
from gpuload.codecs.base import CorruptChunkError
from gpuload.filters.host import blosc_unshuffle, undo, undo_all
from tests.helpers.filtered import filtered, name_of, steps

TYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", ">i4", ">f8", ">u2")


@pytest.fixture
def rng():
    return np.random.default_rng(13)


@pytest.fixture
def numcodecs():
    return pytest.importorskip("numcodecs")


def flat(array) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def with_out(step, data, shape, size):
    """Undo a filter in both ways, which must agree; memory around `out` is left alone."""
    given = data.copy()
    alone = undo(step, data, shape)
    around = np.full(size + 20, 0xA5, np.uint8)
    out = around[7 : 7 + size]
    assert undo(step, data, shape, out) is out
    assert (out == alone).all()
    assert set(around[:7].tolist()) == set(around[7 + size :].tolist()) == {0xA5}
    assert (data == given).all()
    return alone


# --- By hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "stored", "decoded"),
    [
        (Unshuffle(2), [1, 2, 3, 11, 12, 13], [1, 11, 2, 12, 3, 13]),
        (Unshuffle(2), [1, 2, 11, 12, 99], [1, 11, 2, 12, 99]),
        (Unshuffle(4), [1, 2, 3], [1, 2, 3]),
        (Unshuffle(1), [1, 2, 3], [1, 2, 3]),
        (Unshuffle(3), [1, 2, 3, 4, 5, 6], [1, 3, 5, 2, 4, 6]),
        # Bit 0 of elements 0 and 7, then bit 7 of element 1.
        (BitUnshuffle(1), [0x81, 0, 0, 0, 0, 0, 0, 2], [1, 128, 0, 0, 0, 0, 0, 1]),
        # Bit 0 of the second byte of element 3.
        (BitUnshuffle(2), [0] * 8 + [8] + [0] * 7, [0] * 7 + [1] + [0] * 8),
        (BitUnshuffle(2), [1, 2, 3, 4], [1, 2, 3, 4]),
        (BitUnshuffle(1), [1] + [0] * 7 + [7], [1] + [0] * 7 + [7]),
        (Swap(2), [1, 2, 3, 4, 5], [2, 1, 4, 3, 5]),
        (Swap(4), [1, 2, 3, 4, 5, 6, 7, 8], [4, 3, 2, 1, 8, 7, 6, 5]),
        (Swap(3), [1, 2, 3, 4, 5, 6], [3, 2, 1, 6, 5, 4]),
        (PackBits(), [4, 0b10010000], [1, 0, 0, 1]),
        (PackBits(), [0, 0b10000001], [1, 0, 0, 0, 0, 0, 0, 1]),
        (PackBits(), [0], []),
        (Skip(3), [1, 2, 3, 4, 5], [4, 5]),
        (Skip(2), [1, 2], []),
        (Delta(np.dtype("u1"), np.dtype("u1")), [250, 10, 255], [250, 4, 3]),
        (Delta(np.dtype("<i2"), np.dtype("i1")), [100, 2, 254], [100, 0, 102, 0, 100, 0]),
    ],
)
def test_by_hand(step, stored, decoded):
    data = np.array(stored, np.uint8)
    assert with_out(step, data, (len(decoded),), len(decoded)).tolist() == decoded


def test_transposing_by_hand():
    """A chunk of 2 by 3 by 1: axis 0 of what is stored is axis 1 of the chunk, and so on."""
    stored = np.array([0, 10, 1, 11, 2, 12], np.uint8)
    step = Transpose((1, 2, 0), 1)
    assert with_out(step, stored, (2, 3, 1), 6).tolist() == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize("step", steps(), ids=name_of)
def test_definitions(step, rng):
    for size in [*range(40), 64, 100, 1000, 8192, 70_001, 600_000]:
        stored, raw = filtered(step, rng, size if not isinstance(step, Delta) else size // 16)
        assert (with_out(step, stored, (raw.size,), raw.size) == raw).all(), size


# --- Other libraries ------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [1, 2, 3, 4, 7, 8, 12, 16, 100])
def test_shuffles_of_numcodecs(numcodecs, rng, element):
    for count in (0, 1, 2, 31, 1000, 40_000 // element):
        raw = rng.integers(0, 256, count * element, np.uint8)
        stored = flat(numcodecs.Shuffle(element).encode(raw)) if count else raw
        assert (with_out(Unshuffle(element), stored, (count,), raw.size) == raw).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_deltas_of_numcodecs(numcodecs, rng, dtype):
    for astype in (dtype, "i1", "u2", "i8", "f4"):
        codec = numcodecs.Delta(dtype=dtype, astype=astype)
        with np.errstate(all="ignore"):
            # Of memory that numcodecs has not written yet, among others.
            stored = (rng.standard_normal(1000) * 50).astype(astype)
            expected = flat(codec.decode(stored))
        step = Delta(np.dtype(dtype), np.dtype(astype))
        assert (with_out(step, flat(stored), (1000,), expected.size) == expected).all()


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4", "f2", "i4", "u1"])
def test_scales_of_numcodecs(numcodecs, rng, dtype):
    for astype in TYPES:
        for offset, scale in ((0.0, 10.0), (-1.5, 3.7), (20.25, 1e-3 if dtype != "u1" else 2.0)):
            codec = numcodecs.FixedScaleOffset(offset, scale, dtype=dtype, astype=astype)
            stored = rng.integers(10, 100, 100_000).astype(astype)
            with np.errstate(all="ignore"):
                expected = flat(codec.decode(stored))
            step = FixedScaleOffset(offset, scale, np.dtype(dtype), np.dtype(astype))
            found = with_out(step, flat(stored), stored.shape, expected.size)
            assert (found == expected).all(), astype


def test_a_scale_of_zero(rng):
    """What the library makes of it is no number; it is no error."""
    step = FixedScaleOffset(0.0, 0.0, np.dtype("f8"), np.dtype("i4"))
    found = undo(step, flat(np.array([1, 0, -1], "i4")), (3,)).view("f8")
    assert np.isinf(found[[0, 2]]).all()
    assert np.isnan(found[1])


def test_packed_bits_of_numcodecs(numcodecs, rng):
    for count in (1, 2, 7, 8, 9, 1000, 4096):
        raw = rng.integers(0, 2, count).astype(bool)
        stored = flat(numcodecs.PackBits().encode(raw))
        assert (with_out(PackBits(), stored, (count,), count) == flat(raw)).all()


@pytest.mark.parametrize(
    "order", [(0,), (1, 0), (0, 1), (1, 2, 0), (2, 0, 1), (2, 1, 0), (3, 0, 2, 1), (1, 3, 0, 2)]
)
@pytest.mark.parametrize("dtype", ["u1", "f4", "i8", "c16", "S5"])
def test_transposing_as_zarr_does(rng, order, dtype):
    codecs = pytest.importorskip("zarr.codecs")
    codec = codecs.TransposeCodec(order=order)
    shape = (2, 3, 4, 5)[: len(order)]
    itemsize = np.dtype(dtype).itemsize
    raw = rng.integers(0, 256, (*shape, itemsize), np.uint8).view(dtype)[..., 0]
    buffers = pytest.importorskip("zarr.core.buffer.cpu")
    encoded = asyncio.run(codec._encode_single(buffers.NDBuffer(raw), None))
    stored = flat(encoded.as_numpy_array())
    found = with_out(Transpose(order, itemsize), stored, shape, raw.nbytes)
    assert (found == flat(raw)).all()


def framed(numcodecs, raw, element, shuffle, block):
    """Return what Blosc makes of bytes: a header of 16 bytes, and what it compressed."""
    from numcodecs import blosc

    codec = blosc.Blosc(cname="lz4", clevel=5, shuffle=shuffle, blocksize=block)
    return codec.encode(raw.view(f"V{element}") if element > 1 else raw)


def shuffled_blocks(blob, raw, element, *, bit):
    """Return the decoded blocks of a Blosc chunk before they are unshuffled.

    Blosc 1's header ends with the sizes of the chunk, of its blocks and of all of it; then come the
    starts of the blocks, each of which is one stream (or one for each byte of an element) with its
    size in front.
    """
    import lz4.block

    flags, (size, block) = blob[2], np.frombuffer(blob, "<u4", 2, 4).tolist()
    assert not flags & 2, "not compressed"
    starts = np.frombuffer(blob, "<u4", -(-size // block), 16).tolist()
    parts = []
    for number, start in enumerate(starts):
        length = min(block, size - number * block)
        split = 1 if flags & 16 or length < block else element
        for _ in range(split):
            (stored,) = np.frombuffer(blob, "<u4", 1, start).tolist()
            stream = bytes(blob[start + 4 : start + 4 + stored])
            whole = length // split
            parts.append(
                stream if stored == whole else lz4.block.decompress(stream, uncompressed_size=whole)
            )
            start += 4 + stored
    return np.frombuffer(b"".join(parts), np.uint8), block


@pytest.mark.parametrize("element", [1, 2, 4, 8, 12, 16])
@pytest.mark.parametrize("bit", [False, True])
@pytest.mark.parametrize("count", [100, 1000, 5000, 40_000, 40_003])
def test_chunks_of_blosc(numcodecs, element, bit, count):
    raw = (np.arange(count * element) // 7 % 50).astype(np.uint8)
    checked = 0
    for block in (0, 4096, 10_000):
        blob = framed(numcodecs, raw, element, 2 if bit else 1, block)
        if blob[2] & 2:
            continue
        stored, block_size = shuffled_blocks(blob, raw, element, bit=bit)
        found = blosc_unshuffle(stored, element, block_size, bit=bit)
        assert (found == raw).all(), (block, block_size)
        checked += 1
    assert checked or count == 100


def test_blocks_whose_elements_are_no_multiple_of_8():
    """They are stored plain, all of them."""
    data = np.arange(30, dtype=np.uint8)
    assert blosc_unshuffle(data, 2, 18, bit=True).tolist() == [*range(30)]
    full = np.array([1] + [0] * 7 + [5, 6, 7], np.uint8)
    assert blosc_unshuffle(full, 1, 8, bit=True).tolist() == [1] + [0] * 7 + [5, 6, 7]


def test_blocks_of_bytes():
    data = np.array([1, 2, 11, 12, 99, 3, 13, 98], np.uint8)
    assert blosc_unshuffle(data, 2, 5, bit=False).tolist() == [1, 11, 2, 12, 99, 3, 13, 98]
    with pytest.raises(CorruptChunkError, match="blocks of 0 bytes"):
        blosc_unshuffle(data, 2, 0, bit=False)


# --- Several, and what does not fit ---------------------------------------------------------------


def test_pipelines(numcodecs, rng):
    raw = np.cumsum(rng.integers(-5, 6, (30, 40)), axis=1).astype("<i4")
    delta = numcodecs.Delta("<i4", "<i2").encode(np.ascontiguousarray(raw.T))
    stored = np.concatenate([np.zeros(5, np.uint8), flat(numcodecs.Shuffle(2).encode(delta))])
    types = np.dtype("<i4"), np.dtype("<i2")
    filters = Pipeline((Skip(5), Unshuffle(2), Delta(*types), Transpose((1, 0), 4))).filters
    assert (undo_all(filters, stored, (30, 40)) == flat(raw)).all()
    out = np.empty(raw.nbytes, np.uint8)
    assert undo_all(filters, stored, (30, 40), out) is out
    assert (out == flat(raw)).all()
    assert undo_all((), out, (30, 40)) is out
    assert (undo_all((), stored, (1,), np.empty(stored.size, np.uint8)) == stored).all()


@pytest.mark.parametrize("step", [*steps(), Transpose((1, 0), 4), Skip(4)], ids=name_of)
def test_nothing(step):
    assert undo(step, np.zeros(0, np.uint8), (0, 7)).size == 0


@pytest.mark.parametrize(
    ("step", "size", "shape", "reason"),
    [
        (Delta(np.dtype("i4"), np.dtype("i4")), 6, (1,), "delta: 6 bytes, expected a multiple of"),
        (
            FixedScaleOffset(0.0, 1.0, np.dtype("f8"), np.dtype("i2")),
            3,
            (1,),
            "fixed scale-offset: 3 bytes, expected a multiple of the 2 of int16",
        ),
        (PackBits(), 2, (9,), "packed bits: 2 bytes, expected 3 for 9 bits"),
        (PackBits(), 0, (9,), "packed bits: 0 bytes, expected 3 for 9 bits"),
        (PackBits(), 3, (9,), "the first byte says that 0 bits are of no meaning, 7 are"),
        (Transpose((1, 0), 4), 20, (2, 3), r"transpose: 20 bytes, expected 24 for .* \(2, 3\)"),
        (Transpose((1, 0), 4), 0, (2, 3), r"transpose: 0 bytes, expected 24"),
        (Transpose((1, 1), 4), 24, (2, 3), r"the order \(1, 1\) of a chunk of shape \(2, 3\)"),
        (Skip(10), 9, (1,), "9 bytes, expected at least the 10 of a header"),
    ],
)
def test_wrong_sizes(step, size, shape, reason):
    with pytest.raises(CorruptChunkError, match=reason):
        undo(step, np.zeros(size, np.uint8), shape)


@pytest.mark.parametrize("step", [*steps()[::5], Skip(8), Transpose((0,), 4)], ids=name_of)
def test_no_room(step):
    size, shape = (26, (200,)) if isinstance(step, PackBits) else (64, (16,))
    with pytest.raises(
        CorruptChunkError, match="bytes come out of the filters, expected 5"
    ) as error:
        undo(step, np.zeros(size, np.uint8), shape, np.zeros(5, np.uint8))
    assert error.value.actual
    with pytest.raises(CorruptChunkError, match="expected 5"):
        undo_all((), np.zeros(6, np.uint8), (6,), np.zeros(5, np.uint8))


def test_a_filter_of_somebody_else():
    class Other(Filter):
        pass

    with pytest.raises(CorruptChunkError, match="nothing is known of the filter Other"):
        undo(Other(), np.zeros(5, np.uint8), (5,))
