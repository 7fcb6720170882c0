"""Folders of fsspec's file systems as stores."""

from __future__ import annotations

import sys
from uuid import uuid4

import numpy as np
import pytest

from gpuload.errors import FormatError, MissingDependencyError, RemoteError
from gpuload.sources import attempts, fsspec_store

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from gpuload.sources.fsspec_store import FsspecStore  # noqa: E402
from tests.helpers.object_server import object_server  # noqa: E402

CONTENT = bytes(range(256)) * 400


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(attempts, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.delenv(attempts.TIMEOUT_VARIABLE, raising=False)


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    root = f"/{uuid4()}.zarr"
    files.pipe({f"{root}/a/b/0": CONTENT, f"{root}/a/1": b"abc", f"{root}/empty": b""})
    with FsspecStore(f"memory:/{root}/") as store:
        yield store
    files.rm(root, recursive=True)


@pytest.fixture
def server():
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    with object_server() as server:
        for key, content in {"a/b/0": CONTENT, "a/1": b"abc", "empty": b""}.items():
            server.put(content, f"/x.zarr/{key}")
        yield server


@pytest.fixture
def remote(server):
    with FsspecStore(f"http://127.0.0.1:{server.server_port}/x.zarr") as store:
        yield store


@pytest.fixture(params=["memory", "remote"])
def store(request):
    return request.getfixturevalue(request.param)


def read(store, key, offset, size):
    buffer = bytearray(size)
    store.readinto(key, offset, memoryview(buffer))
    return bytes(buffer)


def test_sizes(store):
    assert store.remote
    keys = ["a/b/0", "a/1", "a/2", "none/at/all"]
    assert store.sizes(keys).tolist() == [len(CONTENT), 3, -1, -1]
    assert store.sizes([]).dtype == np.int64


def test_many_sizes(store):
    keys = ["a/1", "a/2"] * 150
    assert store.sizes(keys).tolist() == [3, -1] * 150


def test_reading(store):
    assert read(store, "a/b/0", 0, len(CONTENT)) == CONTENT
    assert read(store, "a/b/0", 1000, 300) == CONTENT[1000:1300]
    assert read(store, "a/1", 3, 0) == b""


def test_reading_in_parts(store, monkeypatch):
    monkeypatch.setattr(fsspec_store, "LARGEST_PART", 1000)
    assert read(store, "a/b/0", 123, 50_001) == CONTENT[123:50_124]


def test_what_is_not_there(store):
    with pytest.raises(FormatError, match=r"a/1: byte 3: the object ends here"):
        read(store, "a/1", 1, 3)
    with pytest.raises(FormatError, match=r"a/2: byte 7: .*not there"):
        read(store, "a/2", 7, 1)


def test_objects_that_are_gone(memory):
    memory.sizes(["a/1"])
    fsspec.filesystem("memory").rm(memory._path("a/1"))
    with pytest.raises(FormatError, match=r"a/1: byte 0: .*not there any more"):
        read(memory, "a/1", 0, 3)


@pytest.mark.parametrize("key", ["", "../x", "/a", "a//b", "a/../../x"])
def test_keys_stay_inside(store, key):
    with pytest.raises(FormatError, match="points out"):
        store.sizes(["a/1", key])
    with pytest.raises(FormatError, match="points out"):
        read(store, key, 0, 1)


def test_listing(memory):
    assert memory.folders("") == ["a"]
    assert memory.folders("a") == ["b"]
    assert memory.folders("a/b") == []
    assert memory.folders("none") == []


def test_servers_that_list_nothing(remote):
    assert remote.folders("a") == []
    with pytest.raises(FormatError, match="cannot be listed"):
        remote.folders("")


@pytest.mark.parametrize("fault", ["503", "reset", "cut off"])
def test_requests_are_tried_again(server, remote, fault):
    assert remote.sizes(["a/b/0"]).tolist() == [len(CONTENT)]
    server.fail(fault, 2)
    assert read(remote, "a/b/0", 1000, 300) == CONTENT[1000:1300]


def test_attempts_end(server, remote):
    remote.sizes(["a/1"])
    server.fail("503", 20)
    with pytest.raises(RemoteError, match=r"a/1.*503.*4 attempts"):
        read(remote, "a/1", 0, 3)


def test_objects_that_change(server, remote):
    remote.sizes(["a/b/0"])
    server.put(CONTENT[:-1], "/x.zarr/a/b/0")
    with pytest.raises(RemoteError, match=r"a/b/0: .*changed"):
        read(remote, "a/b/0", 0, 100)


def test_servers_without_ranges(server, remote):
    remote.sizes(["a/b/0"])
    server.fail("whole")
    with pytest.raises(RemoteError, match="a/b/0"):
        read(remote, "a/b/0", 1000, 300)
    server.fail("whole")
    assert read(remote, "a/b/0", 0, len(CONTENT)) == CONTENT


def test_refused(server, remote):
    server.fail("403", method="HEAD")
    server.fail("403", method="GET")
    with pytest.raises(PermissionError, match="a/1"):
        remote.sizes(["a/1"])


def test_without_fsspec(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"gpuload\[remote\]"):
        FsspecStore("s3://bucket/x.zarr")


def test_unknown_protocols():
    with pytest.raises(ValueError, match="nosuch"):
        FsspecStore("nosuch://x.zarr")
