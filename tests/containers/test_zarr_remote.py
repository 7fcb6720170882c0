"""Zarr hierarchies in file systems of fsspec."""

from __future__ import annotations

import warnings
from uuid import uuid4

import numpy as np
import pytest

from gpuload.containers import zarr as reader
from gpuload.errors import FormatError
from gpuload.options import Options
from tests.containers.zarr_reading import asset_named, load

zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from tests.helpers.object_server import object_server  # noqa: E402

VALUES = np.arange(40, dtype="i4").reshape(8, 5)


def hierarchy(path, version, *, consolidated):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.create_group(str(path), zarr_format=version)
        how = {"shards": (8, 4)} if version == 3 else {}
        for name in ("a", "g/b"):
            root.create_array(name, shape=(8, 5), chunks=(4, 2), dtype="i4", **how)[...] = VALUES
        if consolidated:
            zarr.consolidate_metadata(str(path))
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


def check(url):
    with reader.open_store(url) as store:
        index = reader.read(store, Options())
        assert [asset.name for asset in index.assets] == ["a", "g/b"]
        for name in ("a", "g/b"):
            assert load(index, asset_named(index, name)).tolist() == VALUES.tolist()


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_in_memory(tmp_path, version, consolidated):
    files, root = fsspec.filesystem("memory"), f"/{uuid4()}.zarr"
    objects = hierarchy(tmp_path / "x", version, consolidated=consolidated)
    files.pipe({f"{root}/{key}": content for key, content in objects.items()})
    check(f"memory:/{root}")
    files.rm(root, recursive=True)


@pytest.mark.parametrize("version", [2, 3])
def test_by_http(tmp_path, version):
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with object_server() as server:
        for key, content in hierarchy(tmp_path / "x", version, consolidated=True).items():
            server.put(content, f"/x.zarr/{key}")
        url = f"http://127.0.0.1:{server.server_port}/x.zarr"
        check(url)
        with reader.open_store(f"{url}/g/b") as store:
            index = reader.read(store, Options())
            assert load(index, asset_named(index, "")).tolist() == VALUES.tolist()
        with pytest.raises(FormatError, match="cannot be listed"):
            reader.read(f"{url}/g", Options())
