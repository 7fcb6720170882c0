"""Filters undone by NumPy, in memory of the host.

All of them take the bytes that go in, and give those that come out in memory of their own or in
`out`, never in the same.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    Filter,
    FixedScaleOffset,
    PackBits,
    Skip,
    Swap,
    Transpose,
    Unshuffle,
)
from gpuload.codecs.base import CorruptChunkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuload.codecs.base import Bytes

__all__ = ["blosc_unshuffle", "undo", "undo_all"]

#: Bytes that are worked on at a time, where there are several passes over them.
_PIECE = 256 << 10
#: Elements up to this size are put together byte by byte of all of them: 3.5 GB/s on a core, which
#: is what the compiled loop of numcodecs reaches.
_COLUMNS = 64


def undo(step: Filter, data: Bytes, shape: tuple[int, ...], out: Bytes | None = None) -> Bytes:
    """Undo one filter.

    Parameters
    ----------
    step : Filter
        What is undone.
    data : ndarray of uint8
        What goes in.
    shape : tuple of int
        Elements of the decoded chunk along each axis.
    out : ndarray of uint8, optional
        Where to; by default, new memory, or a part of `data` where nothing needs to be done.

    Returns
    -------
    ndarray of uint8
        What comes out: `out`, if that is given.

    Raises
    ------
    CorruptChunkError
        If the bytes are not as many as the filter needs, or as there is room for.
    """
    match step:
        case Unshuffle() | BitUnshuffle():
            return _unshuffle(step, data, out)
        case Delta():
            return _delta(step, data, out)
        case FixedScaleOffset():
            return _scale(step, data, out)
        case PackBits():
            return _unpack(step, data, prod(shape), out)
        case Swap():
            return _swap(step.element_size, data, out)
        case Transpose():
            return _transpose(step, data, shape, out)
        case Skip():
            return _skip(step.size, data, prod(shape), out)
    raise CorruptChunkError(f"nothing is known of the filter {type(step).__name__}")


def undo_all(
    filters: Sequence[Filter], data: Bytes, shape: tuple[int, ...], out: Bytes | None = None
) -> Bytes:
    """Undo filters one after the other; see `undo`."""
    for step in filters[:-1]:
        data = undo(step, data, shape)
    if filters:
        return undo(filters[-1], data, shape, out)
    return data if out is None else _copied(data, out)


def blosc_unshuffle(
    data: Bytes, element_size: int, block_size: int, *, bit: bool, out: Bytes | None = None
) -> Bytes:
    """Undo the shuffle of a chunk of Blosc 1, each block of which was shuffled on its own.

    Parameters
    ----------
    data : ndarray of uint8
        The decoded blocks, one behind the other.
    element_size : int
        Bytes of an element, as Blosc was told (``typesize``).
    block_size : int
        Bytes of a block; the last one may have less.
    bit : bool
        Whether bits were shuffled, and not bytes. Then a block whose number of elements is not a
        multiple of 8 is as it was.
    out : ndarray of uint8, optional
        Where to.
    """
    out = _place(out, data.size)
    if block_size <= 0:
        raise CorruptChunkError(f"Blosc blocks of {block_size} bytes")
    for first in range(0, data.size, block_size):
        block, to = data[first : first + block_size], out[first : first + block_size]
        if bit and block.size // max(1, element_size) % 8:
            to[:] = block
        elif bit:
            _join_bits(block, to, element_size)
        else:
            _join_bytes(block, to, element_size)
    return out


def _place(out: Bytes | None, size: int) -> Bytes:
    """Return memory for as many bytes."""
    if out is None:
        return np.empty(size, np.uint8)
    if out.size != size:
        reason = f"{size} bytes come out of the filters, expected {out.size}"
        raise CorruptChunkError(reason, actual=size)
    return out


def _copied(data: Bytes, out: Bytes) -> Bytes:
    _place(out, data.size)[:] = data
    return out


def _elements(data: Bytes, dtype: np.dtype[Any], name: str) -> npt.NDArray[Any]:
    """Return bytes as elements."""
    if data.size % dtype.itemsize:
        raise CorruptChunkError(
            f"{name}: {data.size} bytes, expected a multiple of the {dtype.itemsize} of {dtype}"
        )
    return data.view(dtype)


def _unshuffle(step: Unshuffle | BitUnshuffle, data: Bytes, out: Bytes | None) -> Bytes:
    out = _place(out, data.size)
    join = _join_bits if isinstance(step, BitUnshuffle) else _join_bytes
    join(data, out, step.element_size)
    return out


def _delta(step: Delta, data: Bytes, out: Bytes | None) -> Bytes:
    stored = _elements(data, step.astype, "delta")
    out = _place(out, stored.size * step.dtype.itemsize)
    with np.errstate(all="ignore"):
        np.cumsum(stored, out=out.view(step.dtype))
    return out


def _scale(step: FixedScaleOffset, data: Bytes, out: Bytes | None) -> Bytes:
    stored = _elements(data, step.astype, "fixed scale-offset")
    out = _place(out, stored.size * step.dtype.itemsize)
    decoded, each = out.view(step.dtype), _PIECE // 8
    with np.errstate(all="ignore"):
        for first in range(0, stored.size, each):
            some = stored[first : first + each] / step.scale
            some += step.offset
            np.copyto(decoded[first : first + each], some, casting="unsafe")
    return out


def _unpack(step: PackBits, data: Bytes, count: int, out: Bytes | None) -> Bytes:
    if not data.size and not count:
        return _place(out, 0)
    if data.size != step.encoded_size(count):
        raise CorruptChunkError(
            f"packed bits: {data.size} bytes, expected {step.encoded_size(count)} for {count} bits"
        )
    unused = 8 * (data.size - 1) - count
    if data[0] != unused:
        raise CorruptChunkError(
            f"packed bits: the first byte says that {data[0]} bits are of no meaning, {unused} are"
        )
    bits = np.unpackbits(data[1:], count=count)
    return bits if out is None else _copied(bits, out)


def _swap(size: int, data: Bytes, out: Bytes | None) -> Bytes:
    out, size = _place(out, data.size), max(1, size)
    whole = data.size // size * size
    stored, decoded = data[:whole], out[:whole]
    if size in (2, 4, 8):
        np.copyto(decoded.view(f"u{size}"), stored.view(f"u{size}").byteswap())
    else:
        decoded.reshape(-1, size)[...] = stored.reshape(-1, size)[:, ::-1]
    out[whole:] = data[whole:]
    return out


def _transpose(step: Transpose, data: Bytes, shape: tuple[int, ...], out: Bytes | None) -> Bytes:
    expected = prod(shape) * step.element_size
    if sorted(step.order) != list(range(len(shape))):
        raise CorruptChunkError(f"transpose: the order {step.order} of a chunk of shape {shape}")
    if data.size != expected:
        raise CorruptChunkError(
            f"transpose: {data.size} bytes, expected {expected} for the shape {shape}"
        )
    dtype, out = _of_size(step.element_size), _place(out, data.size)
    stored = data.view(dtype).reshape([shape[axis] for axis in step.order])
    back = np.argsort(step.order).astype(np.intp)
    out.view(dtype).reshape(shape)[...] = stored.transpose(back.tolist())
    return out


def _skip(size: int, data: Bytes, count: int, out: Bytes | None) -> Bytes:
    if not data.size and not count:
        return _place(out, 0)
    if data.size < size:
        raise CorruptChunkError(f"{data.size} bytes, expected at least the {size} of a header")
    rest = data[size:]
    return rest if out is None else _copied(rest, out)


def _of_size(size: int) -> np.dtype[Any]:
    return np.dtype(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")


def _join_bytes(data: Bytes, out: Bytes, size: int) -> None:
    """Undo a shuffle of bytes; those that are no whole element stay at the end."""
    if size <= 1:
        out[:] = data
        return
    count = data.size // size
    planes, elements = data[: count * size].reshape(size, count), out[: count * size]
    if size <= _COLUMNS:
        for number, plane in enumerate(planes):
            elements[number::size] = plane
    else:
        elements.reshape(count, size)[...] = planes.T
    out[count * size :] = data[count * size :]


def _join_bits(data: Bytes, out: Bytes, size: int) -> None:
    """Undo a shuffle of bits; elements behind a multiple of 8 of them stay at the end."""
    size = max(1, size)
    count = data.size // size // 8 * 8
    whole = count * size
    planes = out[:whole] if size == 1 else np.empty(whole, np.uint8)
    eighth = count // 8
    for rows, plane in zip(
        data[:whole].reshape(size, count), planes.reshape(size, count), strict=True
    ):
        # Rows of bits of one byte of all elements, 8 of them in as many bytes as the plane has.
        for first in range(0, eighth, _PIECE // 8):
            some = rows.reshape(8, eighth)[:, first : first + _PIECE // 8]
            plane[8 * first : 8 * (first + some.shape[1])] = _turned(some)
    if size > 1:
        _join_bytes(planes, out[:whole], size)
    out[whole:] = data[whole:]


def _turned(rows: npt.NDArray[np.uint8]) -> Bytes:
    """Return bytes of which byte i has bit i of each of 8 rows."""
    squares = np.empty((rows.shape[1], 8), np.uint8)
    for number, row in enumerate(rows):
        squares[:, number] = row
    words = squares.reshape(-1).view("<u8")
    part = np.empty_like(words)
    for distance, mask in _TURNS:
        np.right_shift(words, distance, out=part)
        part ^= words
        part &= mask
        words ^= part
        part <<= distance
        words ^= part
    return squares.reshape(-1)


#: A square of 8 by 8 bits in a word turns in three steps: single bits, then squares of 2 by 2 and
#: 4 by 4 change places with those this many bits away.
_TURNS = [
    (np.uint64(7), np.uint64(0x00AA00AA00AA00AA)),
    (np.uint64(14), np.uint64(0x0000CCCC0000CCCC)),
    (np.uint64(28), np.uint64(0x00000000F0F0F0F0)),
]
