"""A reference loader of Zarr arrays: as slow and as simple as can be, by numcodecs and NumPy."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from gpuload.array_codecs import (
    Compression,
    Delta,
    FixedScaleOffset,
    PackBits,
    Swap,
    Transpose,
    Unshuffle,
)

if TYPE_CHECKING:
    from gpuload.array_codecs import Step
    from gpuload.containers.array import ArrayAsset, ArrayIndex

__all__ = ["DamagedError", "asset_named", "digest", "load"]


class DamagedError(Exception):
    """A chunk that does not decode to what the index says, or an asset with an error."""


def asset_named(index: ArrayIndex, name: str) -> ArrayAsset:
    (found,) = [asset for asset in index.assets if asset.name == name]
    return found


def digest(index: ArrayIndex, name: str) -> str:
    """Return the SHA-256 of an array's elements in C order and the host's byte order."""
    return hashlib.sha256(load(index, asset_named(index, name)).tobytes()).hexdigest()


def load(index: ArrayIndex, asset: ArrayAsset) -> np.ndarray:
    """Return all elements of an array; a DamagedError if they are not what the index says."""
    if asset.error:
        raise DamagedError(asset.error)
    assert asset.grid is not None
    assert asset.dtype.isnative
    assert asset.fill is not None
    assert len(asset.fill) == asset.dtype.itemsize
    fill = np.frombuffer(asset.fill, asset.dtype).reshape(())
    result = np.full(asset.shape, fill)
    grid = [range(-(-n // c)) for n, c in zip(asset.shape, asset.chunk_shape, strict=True)]
    rows = list(itertools.product(*grid))
    chunks = np.array(rows, np.int64).reshape(len(rows), len(asset.shape))
    places = asset.grid.locate(chunks)
    assert places.objects.shape == places.offsets.shape == places.sizes.shape == chunks.shape[:1]
    for number, chunk in enumerate(chunks.tolist()):
        if places.objects[number] < 0:
            continue
        decoded = _chunk(index, asset, places, number)
        starts = [c * n for c, n in zip(chunk, asset.chunk_shape, strict=True)]
        box = tuple(slice(a, a + n) for a, n in zip(starts, decoded.shape, strict=True))
        inside = result[box].shape
        result[box] = decoded[tuple(slice(0, n) for n in inside)]
    return result


def _chunk(index: ArrayIndex, asset: ArrayAsset, places: Any, number: int) -> np.ndarray:
    stored = bytearray(int(places.sizes[number]))
    key = places.keys[int(places.objects[number])]
    index.store.readinto(key, int(places.offsets[number]), memoryview(stored))
    data, shape = bytes(stored), asset.chunk_shape
    sizes = iter(asset.pipeline.filtered_sizes(int(np.prod(shape)) * asset.dtype.itemsize))
    for step in asset.pipeline.compression:
        try:
            data = _decompressed(step.name, data)
        except DamagedError:
            raise
        except Exception as error:
            raise DamagedError(f"{error}") from error
    _check(data, next(sizes))
    for step in asset.pipeline.filters:
        data = _undone(step, data, shape)
        _check(data, next(sizes))
    return np.frombuffer(data, asset.dtype).reshape(shape)


def _check(data: bytes, size: int) -> None:
    if len(data) != size:
        raise DamagedError(f"{len(data)} bytes, wanted {size}")


def _decompressed(name: str, data: bytes) -> bytes:
    import numcodecs

    if name == "gzip":
        return gzip.decompress(data)
    if name == "zlib":
        return zlib.decompress(data)
    if name == "crc32c":
        if int.from_bytes(data[-4:], "little") != google_crc32c.value(data[:-4]):
            raise DamagedError("CRC-32C")
        return data[:-4]
    codecs = {"zstd": numcodecs.Zstd, "lz4": numcodecs.LZ4, "blosc": numcodecs.Blosc}
    return bytes(codecs[name]().decode(data))


def _undone(step: Step, data: bytes, shape: tuple[int, ...]) -> bytes:
    import numcodecs

    assert not isinstance(step, Compression)
    if isinstance(step, Swap):
        units = np.frombuffer(data, np.uint8).reshape(-1, step.element_size)
        return units[:, ::-1].tobytes()
    if isinstance(step, Transpose):
        kept = f"V{step.element_size}"
        stored = np.frombuffer(data, kept).reshape([shape[axis] for axis in step.order])
        back = [step.order.index(axis) for axis in range(len(shape))]
        return stored.transpose(back).tobytes()
    if isinstance(step, Unshuffle):
        return bytes(numcodecs.Shuffle(step.element_size).decode(data))
    if isinstance(step, Delta):
        assert step.dtype.isnative
        assert step.astype.isnative
        return numcodecs.Delta(step.dtype, step.astype).decode(data).tobytes()
    if isinstance(step, FixedScaleOffset):
        assert step.dtype.isnative
        assert step.astype.isnative
        codec = numcodecs.FixedScaleOffset(step.offset, step.scale, step.dtype, step.astype)
        return codec.decode(data).tobytes()
    assert isinstance(step, PackBits)
    return numcodecs.PackBits().decode(np.frombuffer(data, np.uint8)).tobytes()
