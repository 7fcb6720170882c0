"""What readers of arrays return: arrays, and where their stored chunks are.

The chunks of an array form a grid. Which of them a selection needs is known before anything is
read, and only of those it is asked where they are: a store of a million chunks opens at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuload.array_codecs import Pipeline
from gpuload.containers.base import Asset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from gpuload.sources.stores import Store

    Integers = npt.NDArray[np.int64]

__all__ = ["ArrayAsset", "ArrayIndex", "Grid", "Places"]


@dataclass(frozen=True)
class Places:
    """Where n stored chunks are.

    Attributes
    ----------
    objects : ndarray of int64, shape (n,)
        Which of `keys` each is in; -1 for a chunk that is missing.
    offsets, sizes : ndarray of int64, shape (n,)
        Its first byte there, and how many it has.
    keys : sequence of str
        Objects of the grid's store.
    raw_sizes : ndarray of int64, shape (n,), optional
        Bytes that each decodes to before filters, -1 where the container does not say; None if it
        says so of none.
    checksums : ndarray of int64, shape (n,), optional
        CRC-32 of those bytes; -1 and None likewise.
    """

    objects: Integers
    offsets: Integers
    sizes: Integers
    keys: Sequence[str]
    raw_sizes: Integers | None = None
    checksums: Integers | None = None


class Grid(ABC):
    """Where the stored chunks of one array are."""

    @abstractmethod
    def locate(self, chunks: Integers) -> Places:
        """Return where chunks are.

        Parameters
        ----------
        chunks : ndarray of int64, shape (n, axes)
            Their places in the grid, in rising order of the first axis, then of the second, and so
            on; all of them are inside.

        Raises
        ------
        FormatError
            If an index of a shard is damaged, or points outside of it.
        OSError, GpuloadError
            As reading does.
        """


@dataclass(frozen=True)
class ArrayAsset(Asset):
    """An array.

    `Asset.dtype` is the type of the decoded elements, in the byte order of the host, and `shape` is
    never None (see `lengths`).

    Attributes
    ----------
    chunk_shape : tuple of int
        Elements of a stored chunk along each axis: of the innermost ones, where there are shards.
        Chunks at the edge have as many, and what is outside of the array is of no meaning there,
        unless the array is `clipped`.
    clipped : bool
        Whether the last chunk along the first axis has only what is inside of the array.
    fill : bytes or None
        The element that missing chunks are made of; None where none may be missing.
    pipeline : Pipeline
        How stored bytes become elements.
    codecs : tuple of str
        What people call its codecs, in the order in which they were applied.
    grid : Grid or None
        Where its chunks are; None if it cannot be loaded.
    error : str
        Why it cannot be loaded; empty if it can.
    """

    chunk_shape: tuple[int, ...] = ()
    clipped: bool = False
    fill: bytes | None = None
    pipeline: Pipeline = field(default_factory=Pipeline)
    codecs: tuple[str, ...] = ()
    grid: Grid | None = None
    error: str = ""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.shape or ()


@dataclass
class ArrayIndex:
    """What a reader of arrays returns.

    Attributes
    ----------
    format : str
        "zarr", "npz", "npy", "zip" or "safetensors".
    store : Store
        What the keys of all grids are of; whoever has the index closes it.
    assets : list of ArrayAsset
        The arrays, in the order of the file, or of their names.
    stored_size : int or None
        Bytes of everything, where that is known without asking for every chunk.
    details : dict
        Facts for ``inspect``: plain values under names of the format's specification.
    warnings : list of str
        What deviates from the format without making the elements doubtful.
    """

    format: str
    store: Store
    assets: list[ArrayAsset]
    stored_size: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
