"""Arrays decoded by zarr-python, for codecs that gpuload does not have."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.containers.zarr_types import quiet
from gpuload.errors import FormatError, GpuloadError, MissingDependencyError, UnsupportedCodecError
from gpuload.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from gpuload.containers.array import ArrayAsset
    from gpuload.sources.stores import Store

__all__ = ["decode", "is_foreign", "load_with_zarr", "stored_shape", "zarr_array"]

#: numcodecs that run whatever the file holds.
_PICKLES = ("pickle", "numcodecs.pickle")
#: What an array has whose metadata is broken (`gpuload.containers.zarr`).
_NOTHING = ((0,), (1,), np.dtype(np.uint8))


def zarr_array(source: Store | str | os.PathLike[str], name: str = "") -> Any:
    """Open an array with zarr-python.

    Parameters
    ----------
    source : Store, str or os.PathLike
        A store as `gpuload.containers.zarr.read` takes it.
    name : str
        The array's path in it.

    Returns
    -------
    zarr.Array
        For reading only; its `store` is zarr-python's own, closed with it.

    Raises
    ------
    UnsupportedCodecError
        If zarr-python does not know it either, or its elements are Python objects: those may be
        pickles, which are never loaded.
    MissingDependencyError
        Without zarr-python.
    OSError
        As it says.
    """
    try:
        import zarr
    except ImportError:
        raise MissingDependencyError("zarr", "zarr", "decoding with zarr-python") from None
    where = _place(source)
    told = f"{where}: {name}" if name else where
    try:
        with quiet():
            array = zarr.open_array(_store(where), path=name, mode="r")
            hazard = array.dtype.hasobject or array.dtype.kind == "T" or _unpickles(array)
    except (OSError, GpuloadError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedCodecError(f"zarr-python: {_reason(error)}", source=told) from error
    if hazard:
        raise UnsupportedCodecError(
            f"elements of type {array.dtype} may be pickles, which gpuload never loads, since they "
            "can run any code",
            source=told,
        )
    return array


def is_foreign(source: Store, asset: ArrayAsset) -> bool:
    """Return whether an array has a codec or a type that gpuload does not know.

    Those whose metadata is broken are not for others to guess at.
    """
    if asset.error and (asset.lengths, asset.chunk_shape, asset.dtype) == _NOTHING:
        # What stands for a broken array, or an empty one whose codec is not known.
        try:
            return bool(zarr_array(source, asset.name).shape == asset.lengths)
        except (GpuloadError, OSError):
            return False
    return bool(asset.error)


def load_with_zarr(
    source: Store | str | os.PathLike[str], name: str = "", index: Any = ...
) -> npt.NDArray[Any]:
    """Return a selection of an array, as NumPy's indexing gives it, in the host's byte order.

    Raises
    ------
    FormatError
        If it does not decode.
    IndexError, OSError, GpuloadError
        As `Selection` and `zarr_array` do.
    """
    array = zarr_array(source, name)
    selection = Selection(index, array.shape)
    found = np.empty(selection.shape, array.dtype.newbyteorder("="))
    decode(array, selection, found.reshape(-1))
    return found


def stored_shape(array: Any) -> tuple[int, ...]:
    """Return the shape of what zarr-python reads at once: of shards where there are any."""
    with _told(array):
        shape: tuple[int, ...] = array.shards or array.chunks
    return shape


def decode(
    array: Any,
    selection: Selection,
    out: npt.NDArray[Any] | None,
    *,
    threads: int = 1,
    check: Callable[[], None] | None = None,
) -> int:
    """Have zarr-python decode the chunks that a selection needs; return how many.

    Parameters
    ----------
    array : zarr.Array
        Of `zarr_array`.
    selection : Selection
        What of it.
    out : ndarray, one axis, or None
        Where to; None keeps nothing.
    threads : int
        That do it; each has one chunk at a time.
    check : callable, optional
        Called before each chunk; may raise.

    Raises
    ------
    FormatError
        If a chunk does not decode.
    OSError, GpuloadError
        As reading does.
    """
    shape = stored_shape(array)
    boxes = selection.boxes(shape)
    chunks, edges = boxes.of_chunks()
    numbers, stopped = iter(range(chunks.shape[0])), threading.Event()

    def work(_: int) -> None:
        for number in takewhile(lambda _: not stopped.is_set(), numbers):
            if check is not None:
                check()
            decoded = _chunk(array, chunks[number].tolist(), shape)
            if out is not None:
                boxes.copy(int(edges[number]), int(edges[number + 1]), decoded, out)

    with ThreadPoolExecutor(threads, "gpuload-zarr") as pool:
        workers = [pool.submit(work, number) for number in range(threads)]
        try:
            wait(workers, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
        for worker in workers:
            worker.result()
    return int(chunks.shape[0])


def _chunk(array: Any, place: list[int], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    region = tuple(
        slice(at * size, min((at + 1) * size, length))
        for at, size, length in zip(place, shape, array.shape, strict=True)
    )
    with _told(array):
        return np.asarray(array[region])


@contextmanager
def _told(array: Any) -> Iterator[None]:
    """Have what zarr-python raises told as an error of the file."""
    try:
        yield
    except (OSError, GpuloadError, MemoryError):
        raise
    except Exception as error:
        raise FormatError(f"zarr-python: {_reason(error)}", source=f"{array.store}") from error


def _reason(error: Exception) -> str:
    return f"{error}".splitlines()[0][:300] if f"{error}" else type(error).__name__


def _place(source: Store | str | os.PathLike[str]) -> str:
    """Return the path or the URL of a store."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return str(getattr(source, "path", source.name))


def _store(where: str) -> Any:
    from zarr import storage

    if "://" in where:
        return storage.FsspecStore.from_url(where, read_only=True)
    if os.path.isfile(where):  # noqa: PTH113
        return storage.ZipStore(where, read_only=True)
    return storage.LocalStore(where, read_only=True)


def _unpickles(array: Any) -> bool:
    told = array.metadata.to_dict()
    entries = [*(told.get("codecs") or ()), *(told.get("filters") or ()), told.get("compressor")]
    return any(
        isinstance(entry, dict) and {entry.get("id"), entry.get("name")} & set(_PICKLES)
        for entry in entries
    )
