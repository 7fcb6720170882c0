"""Folders as stores."""

from __future__ import annotations

import os
import sys

import pytest

from gpuload.errors import FormatError
from gpuload.sources.folder_store import FolderStore


@pytest.fixture
def store(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "c").mkdir()
    (tmp_path / "a" / "0").write_bytes(b"0123456789")
    (tmp_path / "empty").touch()
    with FolderStore(tmp_path) as store:
        yield store


def read(store, key, offset, size):
    buffer = bytearray(size)
    store.readinto(key, offset, memoryview(buffer))
    return bytes(buffer)


def test_sizes(store):
    keys = ["a/0", "empty", "a", "a/1", "a/0/1", "none/at/all", "x" * 300, "y/" * 3_000 + "0"]
    assert store.sizes(keys).tolist() == [10, 0, -1, -1, -1, -1, -1, -1]
    assert store.sizes([]).tolist() == []


def test_reading(store):
    assert read(store, "a/0", 0, 10) == b"0123456789"
    assert read(store, "a/0", 3, 4) == b"3456"
    assert read(store, "empty", 0, 0) == b""


@pytest.mark.parametrize(("offset", "size"), [(0, 11), (10, 1), (8, 3), (100, 1)])
def test_what_is_not_there(store, offset, size):
    with pytest.raises(FormatError, match=r"a/0: byte \d+: the file ends") as caught:
        read(store, "a/0", offset, size)
    assert caught.value.offset == max(offset, 10)


def test_files_that_are_gone(store):
    for key in ("a/1", "a/0/1", "x" * 5_000):
        with pytest.raises(FormatError, match=rf"{key}: byte 5: .*not there"):
            read(store, key, 5, 1)


def test_folders_are_no_objects(store):
    with pytest.raises(OSError, match="a/b"):
        read(store, "a/b", 0, 1)


OUTSIDE = ["", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//0", "a/", "a/./0", "a\0"]


@pytest.mark.parametrize("key", [*OUTSIDE, "\ud800"])
def test_keys_stay_inside(store, key):
    with pytest.raises(FormatError, match="points out"):
        store.sizes([key])
    with pytest.raises(FormatError, match="points out"):
        read(store, key, 0, 1)


def test_long_keys_are_shortened(store):
    with pytest.raises(FormatError, match=r"'\.\.\. points out") as caught:
        store.sizes(["a../" + "../" * 9_000])
    assert len(f"{caught.value}") < 500 + len(store.name)


@pytest.mark.parametrize("key", ["..a", "a..b", ".zarray", "a/.b", "ä/ö", "a b", "...", "c/.../0"])
def test_keys_that_only_look_odd(store, key):
    assert store.sizes([key]).tolist() == [-1]


def test_links_are_followed(store, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert store.sizes(["link/0", "broken"]).tolist() == [10, -1]
    assert read(store, "link/0", 0, 2) == b"01"
    assert store.folders("") == ["a", "link"]
    with pytest.raises(OSError, match="circle"):
        store.sizes(["circle"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_do_not_block(store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="pipe: is no regular file"):
        store.sizes(["pipe"])
    with pytest.raises(OSError, match="pipe"):
        read(store, "pipe", 0, 1)


def test_listing(store):
    assert store.folders("") == ["a"]
    assert store.folders("a") == ["b", "c"]
    assert store.folders("a/b") == []
    with pytest.raises(FileNotFoundError):
        store.folders("none")
    with pytest.raises(FormatError, match="points out"):
        store.folders("..")


def test_files_that_cannot_be_read(store, tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("needs a user who may not read everything")
    (tmp_path / "empty").chmod(0)
    with pytest.raises(PermissionError, match="empty"):
        read(store, "empty", 0, 1)


def test_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "none"):
        with pytest.raises(NotADirectoryError, match=name):
            FolderStore(tmp_path / name)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_file_stays_open(store):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        read(store, "a/0", 0, 1)
        with pytest.raises(FormatError):
            read(store, "a/0", 0, 11)
    assert len(os.listdir("/proc/self/fd")) == before
