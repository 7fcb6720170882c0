"""The folder of compiled kernels: where it is, what damage and refusal do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda-core is not installed")

from gpuload.kernels.cache import KernelCache, cache_folder

KEY, CODE = b"key", bytes(range(256)) * 100


@pytest.fixture
def kept(cache: Path) -> Path:
    """Return the file that holds the one entry of a cache."""
    KernelCache(cache).put(KEY, CODE)
    (path,) = (path for path in cache.rglob("*") if path.is_file())
    return path


class TestFolder:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch) -> pytest.MonkeyPatch:
        for name in ("GPULOAD_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "/home/someone")
        return monkeypatch

    @pytest.mark.parametrize(
        ("name", "value", "folder"),
        [
            ("HOME", "/home/other", "/home/other/.cache/gpuload/kernels"),
            ("XDG_CACHE_HOME", "/var/xdg", "/var/xdg/gpuload/kernels"),
            ("XDG_CACHE_HOME", "", "/home/someone/.cache/gpuload/kernels"),
            # XDG Base Directory Specification: relative paths are to be ignored.
            ("XDG_CACHE_HOME", "xdg", "/home/someone/.cache/gpuload/kernels"),
            ("GPULOAD_CACHE_DIR", "/scratch/c", "/scratch/c/kernels"),
            ("GPULOAD_CACHE_DIR", "~/c", "/home/someone/c/kernels"),
            ("GPULOAD_CACHE_DIR", "c", "c/kernels"),
            ("GPULOAD_CACHE_DIR", "", "/home/someone/.cache/gpuload/kernels"),
        ],
    )
    def test_environment(self, environment, name: str, value: str, folder: str) -> None:
        environment.setenv(name, value)
        assert cache_folder() == Path(folder)

    def test_gpuload_comes_first(self, environment) -> None:
        environment.setenv("XDG_CACHE_HOME", "/var/xdg")
        environment.setenv("GPULOAD_CACHE_DIR", "/scratch")
        assert cache_folder() == Path("/scratch/kernels")

    def test_no_home(self, environment) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        environment.setattr(Path, "home", no_home)
        assert cache_folder() is None


def test_keeps(cache: Path, kept: Path) -> None:
    opened = KernelCache(cache)
    assert (opened.get(KEY), opened.problem) == (CODE, "")
    assert opened.get(b"another key") is None


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 1000, len(CODE), len(CODE) + 31])
def test_truncated(cache: Path, kept: Path, length: int) -> None:
    kept.write_bytes(kept.read_bytes()[:length])
    assert KernelCache(cache).get(KEY) is None


@pytest.mark.parametrize("at", [0, 1000, len(CODE), -1])
def test_flipped(cache: Path, kept: Path, at: int) -> None:
    damaged = bytearray(kept.read_bytes())
    damaged[at] ^= 1
    kept.write_bytes(damaged)
    opened = KernelCache(cache)
    assert (opened.get(KEY), opened.problem) == (None, "")
    opened.put(KEY, CODE)
    assert KernelCache(cache).get(KEY) == CODE


def test_entry_that_is_a_folder(cache: Path, kept: Path) -> None:
    kept.unlink()
    kept.mkdir()
    opened = KernelCache(cache)
    assert opened.get(KEY) is None
    opened.put(KEY, CODE)
    assert kept.name in opened.problem


def test_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    opened = KernelCache(tmp_path / "file" / "kernels")
    opened.put(KEY, CODE)
    assert opened.get(KEY) is None
    assert "Not a directory" in opened.problem


def test_folder_that_cannot_be_written(cache: Path, kept: Path) -> None:
    """What is in it can be read nevertheless; permissions would not keep root from writing."""
    (cache / "tmp").rmdir()
    (cache / "tmp").touch()
    (cache / "tmp").chmod(0o400)
    opened = KernelCache(cache)
    assert opened.get(b"another key") is None
    opened.put(b"another key", CODE)
    assert opened.problem


def test_no_folder() -> None:
    opened = KernelCache(None)
    opened.put(KEY, CODE)
    assert opened.get(KEY) is None
    assert opened.problem == "there is no home folder; set GPULOAD_CACHE_DIR"


class TestOthers:
    """What is in the folder runs on the device: nobody else may put anything there."""

    @staticmethod
    def _refused(folder: Path, match: str) -> None:
        cache = KernelCache(folder)
        assert match in cache.problem
        assert cache.get(KEY) is None

    def test_a_new_folder_is_private(self, tmp_path: Path) -> None:
        KernelCache(tmp_path / "new" / "kernels")
        assert (tmp_path / "new" / "kernels").stat().st_mode & 0o777 == 0o700

    def test_of_another_user(self, kept: Path, cache: Path, monkeypatch) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        self._refused(cache, "belongs to another user")

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
    def test_written_by_others(self, kept: Path, cache: Path, mode: int) -> None:
        cache.chmod(mode)
        self._refused(cache, "may be written by other users")

    def test_written_by_others_where_they_cannot_go(self, kept: Path, cache: Path) -> None:
        kept.parent.chmod(0o777)
        cache.chmod(0o700)
        assert KernelCache(cache).get(KEY) == CODE
        cache.chmod(0o755)
        self._refused(cache, "may be written by other users")

    def test_a_pipe(self, kept: Path, cache: Path) -> None:
        kept.unlink()
        os.mkfifo(kept)
        self._refused(cache, "is no file")

    def test_an_entry_of_a_terabyte(self, kept: Path, cache: Path) -> None:
        os.truncate(kept, 1 << 40)
        self._refused(cache, "is larger than any kernel")

    def test_a_home_that_is_no_absolute_path(self, monkeypatch) -> None:
        for name in ("GPULOAD_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "relative")
        assert cache_folder() is None
