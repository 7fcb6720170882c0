"""What filters make of bytes, as their definitions say it, and steps to undo that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    Filter,
    FixedScaleOffset,
    PackBits,
    Swap,
    Unshuffle,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["BACKGROUND", "INTEGERS", "Laid", "filtered", "lay_out", "name_of", "steps"]

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")


def steps() -> list[Filter]:
    """Return filters of all kinds that a device undoes."""
    deltas = [*((name, name) for name in INTEGERS), ("i4", "i2"), ("u8", "i1"), ("i2", "i8")]
    scales = [("f4", name) for name in (*INTEGERS, "f4", "f8")]
    scales += [("f8", name) for name in ("i1", "u2", "u8", "f4", "f8")]
    return [
        *(Unshuffle(size) for size in (2, 3, 4, 5, 8, 12, 16, 100, 300)),
        *(BitUnshuffle(size) for size in (1, 2, 3, 4, 8, 16, 200, 300)),
        *(Swap(size) for size in (2, 3, 4, 8, 16)),
        PackBits(),
        *(Delta(np.dtype(one), np.dtype(other)) for one, other in deltas),
        *(FixedScaleOffset(-3.7, 9.1, np.dtype(one), np.dtype(other)) for one, other in scales),
    ]


def name_of(step: object) -> str:
    """Return what tests call a filter; anything else is what it is."""
    if not isinstance(step, Filter):
        return str(step)
    return "-".join([type(step).__name__, *(str(value) for value in vars(step).values())])


def filtered(step: Filter, rng: np.random.Generator, size: int) -> tuple[Bytes, Bytes]:
    """Return about `size` bytes that a filter came to, and what they were before."""
    if isinstance(step, Unshuffle):
        return _shuffled(rng, size, step.element_size)
    if isinstance(step, BitUnshuffle):
        return _bit_shuffled(rng, size, step.element_size)
    if isinstance(step, Swap):
        return _swapped(rng, size, step.element_size)
    if isinstance(step, PackBits):
        return _packed(rng, size)
    if isinstance(step, Delta):
        return _differences(rng, size, step)
    assert isinstance(step, FixedScaleOffset)
    return _scaled(rng, size, step)


def _raw(rng: np.random.Generator, size: int) -> Bytes:
    return rng.integers(0, 256, size, np.uint8)


def _shuffled(rng: np.random.Generator, size: int, element: int) -> tuple[Bytes, Bytes]:
    raw = _raw(rng, size)
    whole = size // element * element
    planes = raw[:whole].reshape(-1, element).T.reshape(-1)
    return np.concatenate([planes, raw[whole:]]), raw


def _bit_shuffled(rng: np.random.Generator, size: int, element: int) -> tuple[Bytes, Bytes]:
    raw = _raw(rng, size)
    whole = size // element // 8 * 8 * element
    bits = np.unpackbits(raw[:whole].reshape(-1, element), axis=1, bitorder="little")
    rows = np.packbits(bits.T.reshape(-1), bitorder="little")
    return np.concatenate([rows, raw[whole:]]), raw


def _swapped(rng: np.random.Generator, size: int, element: int) -> tuple[Bytes, Bytes]:
    raw = _raw(rng, size)
    whole = size // element * element
    reverse = raw[:whole].reshape(-1, element)[:, ::-1].reshape(-1)
    return np.concatenate([reverse, raw[whole:]]), raw


def _packed(rng: np.random.Generator, size: int) -> tuple[Bytes, Bytes]:
    raw = rng.integers(0, 2, size, np.uint8)
    unused = np.array([-size % 8], np.uint8)
    return np.concatenate([unused, np.packbits(raw)]), raw


def _differences(rng: np.random.Generator, size: int, step: Delta) -> tuple[Bytes, Bytes]:
    stored = _raw(rng, size // step.astype.itemsize * step.astype.itemsize).view(step.astype)
    mask, total, raw = (1 << 8 * step.dtype.itemsize) - 1, 0, []
    for each in stored.tolist():
        total = total + each & mask
        raw.append(total)
    unsigned = np.array(raw, np.uint64).astype(f"u{step.dtype.itemsize}")
    return stored.view(np.uint8), unsigned.view(np.uint8)


def _scaled(rng: np.random.Generator, size: int, step: FixedScaleOffset) -> tuple[Bytes, Bytes]:
    count, stored = size // step.astype.itemsize, step.astype
    if stored.kind == "f":
        numbers = (rng.standard_normal(count) * 1e3).astype(stored)
    else:
        numbers = _raw(rng, count * stored.itemsize).view(stored)
    # Python's floats are doubles; of 32-bit floats NumPy computes with such.
    kind = np.float32 if stored == np.float32 else np.float64
    raw = numbers.astype(kind) / kind(step.scale) + kind(step.offset)
    return numbers.view(np.uint8), raw.astype(step.dtype).view(np.uint8)


#: What stands in memory before filters write to it.
BACKGROUND = 0xA5


@dataclass(frozen=True)
class Laid:
    """Units in one piece of memory, and what becomes of them in another one of the same size.

    Attributes
    ----------
    stored, expected : ndarray of uint8
        What goes in; what is in the other one when all is done, where `BACKGROUND` was before.
    src, dst, sizes, decoded : ndarray of int64, shape (n,)
        Where each unit is and goes, and its bytes.
    """

    stored: Bytes
    expected: Bytes
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    decoded: npt.NDArray[np.int64]


def lay_out(step: Filter, rng: np.random.Generator, sizes: list[int], gap: int = 9) -> Laid:
    """Return units of about some sizes, with up to `gap` bytes between each two."""
    pairs = [filtered(step, rng, size) for size in sizes]
    goes_in = np.array([stored.size for stored, _ in pairs], np.int64)
    comes_out = np.array([raw.size for _, raw in pairs], np.int64)
    src = np.cumsum(goes_in + rng.integers(0, gap + 1, len(sizes))) - goes_in
    dst = np.cumsum(comes_out + rng.integers(0, gap + 1, len(sizes))) - comes_out
    room = gap + max(1, *(src + goes_in).tolist(), *(dst + comes_out).tolist())
    stored, expected = _raw(rng, room), np.full(room, BACKGROUND, np.uint8)
    for number, (given, made) in enumerate(pairs):
        stored[src[number] :][: given.size] = given
        expected[dst[number] :][: made.size] = made
    return Laid(stored, expected, src, dst, goes_in, comes_out)
