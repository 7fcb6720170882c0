"""The codecs of numcodecs that Zarr arrays have, as steps of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.array_codecs import (
    Compression,
    Delta,
    FixedScaleOffset,
    PackBits,
    Pipeline,
    Step,
    Swap,
    Transpose,
    Unshuffle,
)
from gpuload.containers.zarr_json import Document, shown
from gpuload.containers.zarr_types import quiet
from gpuload.errors import FormatError, UnsupportedCodecError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ARRAY_FILTERS", "COMPRESSIONS", "Encoding", "add_numcodec", "unsupported"]

#: Those that make bytes of bytes, and what they are to `Compression`.
COMPRESSIONS = {"gzip": "gzip", "zlib": "zlib", "zstd": "zstd", "lz4": "lz4", "blosc": "blosc"}
_LARGEST = 2**62


def unsupported(what: str) -> UnsupportedCodecError:
    """Return the error for an array that zarr-python may decode."""
    return UnsupportedCodecError(
        f"{what}, which gpuload does not decode; on_unsupported='host' (--on-unsupported host) "
        "decodes the array through zarr-python"
    )


@dataclass
class Encoding:
    """The steps that encoding took, and what they made of a chunk.

    Attributes
    ----------
    shape : tuple of int
        Of the chunk.
    size : int
        Bytes of it as it is by now; of no meaning any more once they are compressed.
    dtype : numpy.dtype
        Of the elements as they are by now (version 3).
    unit : int
        As for `Elements`, of the elements as they are by now.
    steps : list of Step
        In the order of encoding.
    names : list of str
        For people.
    flat : bool
        Whether the axes are lost.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    unit: int
    size: int = 0
    steps: list[Step] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    flat: bool = False

    def __post_init__(self) -> None:
        self.size = prod(self.shape) * self.dtype.itemsize

    def pipeline(self) -> Pipeline:
        """Return the steps that decoding takes; an UnsupportedCodecError if they mix."""
        try:
            return Pipeline(tuple(reversed(self.steps)))
        except FormatError:
            names = ", ".join(self.names)
            raise unsupported(f"filters behind a compressor ({names})") from None

    def swap(self, unit: int) -> None:
        """Add a swap; two of them are none."""
        if unit < 2:
            return
        if self.steps and self.steps[-1] == Swap(unit):
            self.steps.pop()
        else:
            self.steps.append(Swap(unit))

    def transpose(self, order: tuple[int, ...]) -> None:
        """Add a transposition; two of them are one, that of the axes in their order is none."""
        last = self.steps[-1] if self.steps else None
        if isinstance(last, Transpose):
            self.steps.pop()
            order = tuple(last.order[axis] for axis in order)
        elif any(isinstance(step, Transpose) for step in self.steps) or self.flat:
            raise unsupported("transpositions with a filter in between")
        if order != tuple(range(len(order))):
            self.steps.append(Transpose(order, self.dtype.itemsize))

    def convert(self, step: Delta | FixedScaleOffset, stored: tuple[bool, bool]) -> None:
        """Add a filter between types, of which the one or the other may not be native."""
        decoded, encoded = step.dtype.itemsize, step.astype.itemsize
        self.swap(decoded if stored[0] else 1)
        self.steps.append(step)
        self.swap(encoded if stored[1] else 1)
        self.size = self.size // decoded * encoded
        self.dtype, self.unit = step.astype, encoded


def add_numcodec(encoding: Encoding, name: str, given: Document) -> None:
    """Take a codec of numcodecs."""
    if name in COMPRESSIONS:
        inner = given.data.get("cname") if name == "blosc" else None
        encoding.names.append(f"{name}({inner})" if isinstance(inner, str) else name)
        encoding.steps.append(Compression(COMPRESSIONS[name]))
    elif name == "crc32c":
        if given.data.get("location", "end") != "end":
            raise unsupported("the codec 'crc32c' with its sum at the start")
        encoding.names.append(name)
        encoding.steps.append(Compression("crc32c"))
    elif name in _FILTERS:
        encoding.names.append(name)
        _FILTERS[name](encoding, given)
    else:
        raise unsupported(f"the codec {name!r}")


def _shuffle(encoding: Encoding, given: Document) -> None:
    size = given.data.get("elementsize")
    if size is None:
        # The default of numcodecs, and what zarr-python makes of it in version 3.
        size = 4 if "id" in given.data else encoding.dtype.itemsize
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST:
        raise given.error(f"'elementsize' is {shown(size)}, not a number of bytes")
    encoding.names[-1] = f"shuffle({size})"
    if size > 1:
        encoding.steps.append(Unshuffle(size))


def _delta(encoding: Encoding, given: Document) -> None:
    (dtype, first), (astype, last) = _types(encoding, given)
    encoding.convert(Delta(dtype, astype), (first, last))


def _fixed_scale_offset(encoding: Encoding, given: Document) -> None:
    (dtype, first), (astype, last) = _types(encoding, given)
    offset, scale = _number(given, "offset"), _number(given, "scale")
    if not scale:
        raise given.error("'scale' is 0")
    encoding.convert(FixedScaleOffset(offset, scale, dtype, astype), (first, last))


def _pack_bits(encoding: Encoding, _: Document) -> None:
    encoding.steps.append(PackBits())
    encoding.size = PackBits().encoded_size(encoding.size)
    encoding.dtype, encoding.unit, encoding.flat = np.dtype(np.uint8), 1, True


def _quantize(encoding: Encoding, given: Document) -> None:
    """Take a codec that rounds: nothing is to be undone, unless it stores another type."""
    (dtype, first), (astype, last) = _types(encoding, given)
    if dtype != astype or first != last:
        raise unsupported(f"the codec 'quantize' from {dtype} to {astype}")


def _round(_: Encoding, __: Document) -> None:
    """Take a codec that rounds: nothing is to be undone."""


ARRAY_FILTERS: dict[str, Callable[[Encoding, Document], None]] = {
    "delta": _delta,
    "fixedscaleoffset": _fixed_scale_offset,
    "packbits": _pack_bits,
    "quantize": _quantize,
    "bitround": _round,
}
_FILTERS = {**ARRAY_FILTERS, "shuffle": _shuffle}


def _types(
    encoding: Encoding, given: Document
) -> tuple[tuple[np.dtype[Any], bool], tuple[np.dtype[Any], bool]]:
    """Return the types that a filter decodes to and from, and whether they are to be swapped."""
    dtype = _type(given, "dtype", encoding.dtype)
    astype = _type(given, "astype", dtype)
    if encoding.size % dtype.itemsize:
        raise given.error(f"a chunk of {encoding.size} bytes is no array of {dtype}")
    native = (dtype.newbyteorder("="), astype.newbyteorder("="))
    return (native[0], not dtype.isnative), (native[1], not astype.isnative)


def _type(given: Document, key: str, default: np.dtype[Any]) -> np.dtype[Any]:
    name = given.data.get(key)
    if name is None:
        dtype = default
    elif not isinstance(name, str) or not name.isascii():
        raise given.error(f"{key!r} is {shown(name)}, no type")
    else:
        try:
            with quiet():
                dtype = np.dtype(name)
        except (TypeError, ValueError, SyntaxError, OverflowError) as error:
            raise given.error(f"{key!r} is {shown(name)}, no type") from error
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise unsupported(f"{given.where.rpartition(': ')[2]} of elements of type {dtype}")
    return dtype


def _number(given: Document, key: str) -> float:
    value = given.require(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise given.error(f"{key!r} is {shown(value)}, not a number")
    return value
