"""Arrays decoded by zarr-python, for codecs that gpuload does not have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.containers.zarr_types import quiet
from gpuload.errors import FormatError, GpuloadError, MissingDependencyError, UnsupportedCodecError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuload.sources.stores import Store

__all__ = ["load_with_zarr", "zarr_array"]

#: numcodecs that run whatever the file holds.
_PICKLES = ("pickle", "numcodecs.pickle")


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


def load_with_zarr(
    source: Store | str | os.PathLike[str], name: str = "", index: Any = ...
) -> npt.NDArray[Any]:
    """Return an array, or what zarr-python's own indexing gives of it, in the host's byte order.

    Raises
    ------
    FormatError
        If it does not decode.
    OSError, GpuloadError
        As `zarr_array` does.
    """
    array = zarr_array(source, name)
    try:
        with quiet():
            found = np.asarray(array[index])
    except (OSError, GpuloadError, MemoryError, IndexError):
        raise
    except Exception as error:
        raise FormatError(f"zarr-python: {_reason(error)}", source=f"{array.store}") from error
    return np.ascontiguousarray(found, found.dtype.newbyteorder("=")).reshape(found.shape)


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
