"""How the stored bytes of an array's chunk become its elements: codec pipelines, as data.

A pipeline is a tuple of steps in the order in which decoding takes them: first those that turn
bytes into bytes (`Compression`), then filters. What a step does is done elsewhere: on the host and
on devices alike, by whoever is the fastest at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuload.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = [
    "BitUnshuffle",
    "Compression",
    "Delta",
    "Filter",
    "FixedScaleOffset",
    "PackBits",
    "Pipeline",
    "Skip",
    "Step",
    "Swap",
    "Transpose",
    "Unshuffle",
]


@dataclass(frozen=True)
class Step:
    """A step of decoding."""


@dataclass(frozen=True)
class Compression(Step):
    """Bytes to bytes.

    Attributes
    ----------
    name : str
        "deflate" (RFC 1951), "gzip" (RFC 1952), "zlib" (RFC 1950), "zstd" (RFC 8878), "lz4"
        (numcodecs: the decoded size as 4 bytes, little-endian, and a raw block), "blosc" (Blosc 1)
        or "crc32c" (4 bytes at the end, little-endian: the CRC-32C of the bytes before them).
    """

    name: str


@dataclass(frozen=True)
class Filter(Step):
    """Elements to elements, of a whole chunk."""

    def encoded_size(self, size: int) -> int:
        """Return how many bytes go in where `size` bytes come out."""
        return size


@dataclass(frozen=True)
class Unshuffle(Filter):
    """Undo numcodecs' Shuffle: byte 0 of every element, then byte 1 of every element, and so on.

    Bytes that are no whole element stay at the end.
    """

    element_size: int


@dataclass(frozen=True)
class BitUnshuffle(Filter):
    """Undo Blosc 1's bit-shuffle: bit 0 of byte 0 of every element, then bit 1, and so on.

    Elements beyond a multiple of 8 stay at the end, as they are.
    """

    element_size: int


@dataclass(frozen=True)
class Delta(Filter):
    """Undo numcodecs' Delta: the running sum, in `dtype`, of differences stored as `astype`."""

    dtype: np.dtype[Any]
    astype: np.dtype[Any]

    def encoded_size(self, size: int) -> int:
        """See `Filter.encoded_size`."""
        return size // self.dtype.itemsize * self.astype.itemsize


@dataclass(frozen=True)
class FixedScaleOffset(Filter):
    """Undo numcodecs' FixedScaleOffset: ``stored / scale + offset``, as `dtype`."""

    offset: float
    scale: float
    dtype: np.dtype[Any]
    astype: np.dtype[Any]

    def encoded_size(self, size: int) -> int:
        """See `Filter.encoded_size`."""
        return size // self.dtype.itemsize * self.astype.itemsize


@dataclass(frozen=True)
class PackBits(Filter):
    """Undo numcodecs' PackBits: a byte with the number of padding bits, then 8 booleans a byte."""

    def encoded_size(self, size: int) -> int:
        """See `Filter.encoded_size`."""
        return 1 + -(-size // 8)


@dataclass(frozen=True)
class Swap(Filter):
    """Reverse the bytes of every element of so many bytes."""

    element_size: int


@dataclass(frozen=True)
class Transpose(Filter):
    """Put axes back: axis ``i`` of what is stored is axis ``order[i]`` of the chunk (Zarr v3)."""

    order: tuple[int, ...]
    element_size: int


@dataclass(frozen=True)
class Skip(Filter):
    """Leave out bytes at the start, such as the header of an npy file."""

    size: int

    def encoded_size(self, size: int) -> int:
        """See `Filter.encoded_size`."""
        return size + self.size


@dataclass(frozen=True)
class Pipeline:
    """The codec pipeline of an array.

    Attributes
    ----------
    steps : tuple of Step
        In the order of decoding.
    """

    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        kinds = [isinstance(step, Filter) for step in self.steps]
        if kinds != sorted(kinds):
            raise FormatError("a codec pipeline that compresses before it filters")

    @property
    def compression(self) -> tuple[Compression, ...]:
        """The steps from bytes to bytes."""
        return tuple(step for step in self.steps if isinstance(step, Compression))

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The steps behind them."""
        return tuple(step for step in self.steps if isinstance(step, Filter))

    def filtered_sizes(self, size: int) -> Sequence[int]:
        """Return the bytes that go into each filter, and those that come out of the last.

        Parameters
        ----------
        size : int
            Bytes of the decoded chunk.
        """
        sizes = [size]
        for step in reversed(self.filters):
            sizes.append(step.encoded_size(sizes[-1]))
        return sizes[::-1]
