"""Readers of files of arrays: which of them a file or a folder is for.

The format is recognised by the content, never by the name. The readers are imported when a file
needs them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuload.containers import is_stream
from gpuload.errors import FormatError

if TYPE_CHECKING:
    from gpuload.containers.array import ArrayIndex
    from gpuload.options import Options
    from gpuload.sources import Source
    from gpuload.sources.stores import Store

__all__ = ["has_metadata", "read_arrays", "read_folder"]

_ZIP, _NPY = (b"PK\x03\x04", b"PK\x05\x06"), b"\x93NUMPY"
#: Where the header of a safetensors file starts, and the most bytes that it has.
_HEADER, _HEADER_LIMIT = 8, 100 << 20
#: Bytes of the record at the end of a zip file.
_END = 22
_ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def read_arrays(source: Source, options: Options) -> ArrayIndex | None:
    """Read the index of a file of arrays; None if it is none.

    Parameters
    ----------
    source : Source
        The file; belongs to the index from now on, if there is one.
    options : Options
        As for `gpuload.containers.read_index`.

    Raises
    ------
    FormatError, UnsupportedCodecError
        If it is broken.
    MissingDependencyError
        If it takes a library that is not here.
    """
    first = source.peek(0, 16)
    if first.startswith(_NPY):
        from gpuload.containers import npy

        return npy.read(source, options)
    if first.startswith(_ZIP) or _ends_as_zip(source, first):
        return _read_zip(source, options)
    if _is_safetensors(source, first):
        from gpuload.containers import safetensors

        return safetensors.read(source, options)
    if first[:1] in b"{ \n" and first and _is_index(source):
        from gpuload.containers import safetensors

        with source:  # the store opens what it needs by its name
            return safetensors.read_many(source.name, options)
    return None


def read_folder(store: Store, options: Options) -> ArrayIndex:
    """Read the index of a folder, which is a Zarr group or array.

    Raises
    ------
    FormatError
        If it is not.
    """
    from gpuload.containers.zarr import is_zarr, read

    if not is_zarr(store):
        raise FormatError(
            f"is a directory, without {', '.join(_ZARR_METADATA)}: no Zarr group or array",
            source=store.name,
        )
    return read(store, options)


def has_metadata(folder: str | bytes) -> bool:
    """Return whether a local folder has the metadata of a Zarr group or array."""
    return any((Path(os.fsdecode(folder)) / name).exists() for name in _ZARR_METADATA)


def _read_zip(source: Source, options: Options) -> ArrayIndex:
    from gpuload.containers import npz
    from gpuload.containers import zip as zip_file
    from gpuload.containers.zip_directory import read_directory

    members = read_directory(source, options.memory_limit)
    names = {member.name for member in members}
    if names & set(_ZARR_METADATA):
        from gpuload.containers.zip_store import ZipStore

        return read_folder(ZipStore(source, options), options)
    if names and all(name.endswith(".npy") for name in names):
        return npz.read(source, options, members)
    return zip_file.read(source, options, members)


def _ends_as_zip(source: Source, first: bytes) -> bool:
    """Return whether a file that starts as no stream does ends as a zip file without a comment.

    What a self-extracting archive starts with is a program.
    """
    if source.size < _END or is_stream(first):
        return False
    return source.peek(source.size - _END, 4) == _ZIP[1]


def _is_safetensors(source: Source, first: bytes) -> bool:
    """Return whether a file starts with the length of a JSON object, and that."""
    if len(first) <= _HEADER or first[_HEADER : _HEADER + 1] != b"{":
        return False
    return int.from_bytes(first[:_HEADER], "little") <= max(_HEADER_LIMIT, source.size)


def _is_index(source: Source) -> bool:
    """Return whether a local file is the index of several safetensors files."""
    local = source.descriptor is not None and Path(source.name).exists()
    return local and source.size <= _HEADER_LIMIT and b'"weight_map"' in source.peek(0, source.size)
