"""What is checked before anything is read of arrays: sizes, and memory of the caller's."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.arrays import Array
from gpuload.errors import MemoryLimitError
from gpuload.host_memory import available

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuload.array_foreign import ForeignArray
    from gpuload.containers.array import ArrayAsset
    from gpuload.options import Options
    from gpuload.selection import Selection

__all__ = ["Selected", "check_size", "list_chunks", "on_device", "on_host"]

#: Of the list of chunks that are needed, with where each of them is.
_BYTES_A_CHUNK = 256
#: Of the list of points that are selected, of which those that follow one another are one.
_BYTES_A_RUN = 64


@dataclass(frozen=True)
class Selected:
    """What is selected of an array.

    Attributes
    ----------
    name : str
        What messages call the array.
    dtype : numpy.dtype
        Its elements.
    selection : Selection
        What of it.
    asset : ArrayAsset
        The array.
    foreign : ForeignArray or None
        The array as zarr-python has it, which is to decode it.
    """

    name: str
    dtype: np.dtype[Any]
    selection: Selection
    asset: ArrayAsset
    foreign: ForeignArray | None = None

    @property
    def size(self) -> int:
        """Bytes of the result."""
        return prod(self.selection.shape) * self.dtype.itemsize

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Elements of a chunk along each axis."""
        return (self.foreign or self.asset).chunk_shape


def check_size(selected: Sequence[Selected], options: Options, *, new: bool) -> None:
    """Refuse what is too large, before anything is made for it.

    Parameters
    ----------
    selected : sequence of Selected
        All that is loaded together.
    options : Options
        `max_output` matters here.
    new : bool
        Whether host memory is taken for it.

    Raises
    ------
    MemoryLimitError
        If it is larger than `max_output`, or than the memory that there is.
    """
    size, limit = sum(each.size for each in selected), options.max_output
    names = [each.name for each in selected]
    what = names[0] if len(names) == 1 else f"{len(names)} selections together"
    if limit is not None and size > limit:
        raise MemoryLimitError(
            f"{what}: {size} bytes are selected, over the limit of {limit}; raise max_output "
            "(--max-output) if you trust it"
        )
    there = available() if new else None
    if there is not None and size > there:
        raise MemoryLimitError(
            f"{what}: {size} bytes are selected, there are {there} bytes of memory; select less of "
            "it at a time"
        )


def list_chunks(selected: Selected, options: Options, *, new: bool) -> None:
    """Find the chunks that are needed.

    The list of them is scratch memory. That of points, which the caller has listed, too, may take
    the memory that there is.

    Parameters
    ----------
    selected : Selected
        What is selected; its chunks are kept there.
    options : Options
        `memory_limit` matters here.
    new : bool
        Whether host memory will be taken for the result.

    Raises
    ------
    MemoryLimitError
        If there is less memory than the lists take.
    """
    limit, name = options.memory_limit, selected.name
    there = available() if selected.selection.points else None
    room = limit if there is None else max(limit, there - selected.size * new)

    def check(chunks: int, runs: int) -> None:
        if chunks * _BYTES_A_CHUNK > limit:
            raise MemoryLimitError(
                f"{name}: the list of the {chunks} chunks that are needed takes "
                f"{chunks * _BYTES_A_CHUNK} bytes, memory_limit is {limit}; raise it "
                "(--memory-limit), or select less of it at a time"
            )
        if runs * _BYTES_A_RUN > room:
            raise MemoryLimitError(
                f"{name}: the list of the points that are selected takes over {room} bytes, which "
                f"is all memory that there is for it; select less of it at a time"
            )

    selected.selection.boxes(selected.chunk_shape, check)


def on_host(out: Any, selected: Selected) -> npt.NDArray[Any]:
    """Return memory of the caller's as an array, if a selection fits there exactly.

    Raises
    ------
    ValueError
        If it has another shape or type, or is not contiguous or writable.
    TypeError
        If it is no array and no buffer: NumPy would make a copy, and what is loaded there is lost.
    """
    array = np.asarray(out if isinstance(out, np.ndarray | Array) else _buffer_of(out))
    if array.dtype != selected.dtype:
        raise ValueError(
            f"out has elements of type {array.dtype}, {selected.name} {selected.dtype}"
        )
    if array.shape != selected.selection.shape:
        raise ValueError(
            f"out has the shape {array.shape}, what is selected {selected.selection.shape}"
        )
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("out must be writable and C-contiguous")
    return array


def _buffer_of(out: Any) -> memoryview:
    try:
        return memoryview(out)
    except (TypeError, ValueError, BufferError):
        raise TypeError(
            f"out must be a NumPy array or a writable buffer, not {type(out).__name__}, of which "
            "NumPy makes a copy"
        ) from None


class _Typed:
    """An array on a device, with an element type that its interface has no word for."""

    def __init__(self, out: Any, dtype: np.dtype[Any]) -> None:
        self._out = out
        self.__cuda_array_interface__ = {**out.__cuda_array_interface__, "typestr": dtype}


def on_device(out: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array with ``__cuda_array_interface__``; of ml_dtypes' types, with these.

    The interface knows them as raw bytes only, so the array's own name for its type decides.
    """
    stated = np.dtype(out.__cuda_array_interface__["typestr"])
    raw = stated.kind == "V" and stated.names is None and stated.itemsize == dtype.itemsize
    own = f"{getattr(out, 'dtype', '')}".rpartition(".")[2]
    return _Typed(out, dtype) if raw and stated != dtype and own == dtype.name else out
