"""A reference loader of arrays: as slow and as simple as can be, by zlib and NumPy alone."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.array_codecs import Compression, Skip, Swap, Transpose

if TYPE_CHECKING:
    from gpuload.array_codecs import Filter
    from gpuload.containers.array import ArrayAsset, ArrayIndex

__all__ = ["DamagedError", "all_chunks", "asset_named", "digest", "load"]


class DamagedError(Exception):
    """A chunk that does not decode to what the index says, or an asset with an error."""


def all_chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> np.ndarray:
    """Return the places of all chunks in the grid, shape (n, axes)."""
    grid = [range(-(-n // c)) for n, c in zip(shape, chunks, strict=True)]
    found = list(itertools.product(*grid))
    return np.array(found, np.int64).reshape(len(found), len(shape))


def asset_named(index: ArrayIndex, name: str) -> ArrayAsset:
    (found,) = [asset for asset in index.assets if asset.name == name]
    return found


def digest(index: ArrayIndex, name: str) -> str:
    """Return the SHA-256 of an array's elements in C order."""
    return hashlib.sha256(load(index, asset_named(index, name)).tobytes()).hexdigest()


def load(index: ArrayIndex, asset: ArrayAsset) -> np.ndarray:
    """Return all elements of an array; a DamagedError if they are not what the index says."""
    if asset.error:
        raise DamagedError(asset.error)
    assert asset.grid is not None
    assert asset.dtype.isnative
    assert len(asset.chunk_shape) == len(asset.shape)
    result = np.full(asset.shape, np.zeros((), asset.dtype))
    chunks = all_chunks(asset.shape, asset.chunk_shape)
    places = asset.grid.locate(chunks)
    for number, chunk in enumerate(chunks.tolist()):
        decoded = _chunk(index, asset, places, number, _chunk_shape(asset, chunk))
        starts = [c * n for c, n in zip(chunk, asset.chunk_shape, strict=True)]
        box = tuple(slice(a, a + n) for a, n in zip(starts, decoded.shape, strict=True))
        inside = result[box].shape
        result[box] = decoded[tuple(slice(0, n) for n in inside)]
    return result


def _chunk_shape(asset: ArrayAsset, chunk: list[int]) -> tuple[int, ...]:
    shape = list(asset.chunk_shape)
    if asset.clipped and shape:
        shape[0] = min(shape[0], asset.shape[0] - chunk[0] * shape[0])
    return tuple(shape)


def _chunk(
    index: ArrayIndex, asset: ArrayAsset, places: Any, number: int, shape: tuple[int, ...]
) -> np.ndarray:
    stored = bytearray(int(places.sizes[number]))
    key = places.keys[int(places.objects[number])]
    index.store.readinto(key, int(places.offsets[number]), memoryview(stored))
    data = _decompressed(asset, bytes(stored))
    size = asset.pipeline.filtered_sizes(int(np.prod(shape)) * asset.dtype.itemsize)[0]
    if places.raw_sizes is not None and places.raw_sizes[number] not in (-1, len(data)):
        raise DamagedError(f"{len(data)} bytes, told were {places.raw_sizes[number]}")
    if len(data) != size:
        raise DamagedError(f"{len(data)} bytes, wanted {size}")
    if places.checksums is not None and places.checksums[number] not in (-1, zlib.crc32(data)):
        raise DamagedError("CRC-32")
    for step in asset.pipeline.filters:
        data = _undone(step, data, shape)
    return np.frombuffer(data, asset.dtype).reshape(shape)


def _decompressed(asset: ArrayAsset, data: bytes) -> bytes:
    for step in asset.pipeline.compression:
        assert step == Compression("deflate")
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = decoder.decompress(data)
        except zlib.error as error:
            raise DamagedError(f"{error}") from None
        if not decoder.eof or decoder.unused_data:
            raise DamagedError("the stream does not end where it should")
    return data


def _undone(step: Filter, data: bytes, shape: tuple[int, ...]) -> bytes:
    if isinstance(step, Skip):
        return data[step.size :]
    if isinstance(step, Swap):
        return (
            np.frombuffer(data, f"V{step.element_size}")
            .view(np.uint8)
            .reshape(-1, step.element_size)[:, ::-1]
            .tobytes()
        )
    assert isinstance(step, Transpose)
    stored = np.frombuffer(data, f"V{step.element_size}").reshape([shape[a] for a in step.order])
    back = [step.order.index(axis) for axis in range(len(shape))]
    return stored.transpose(back).tobytes()
