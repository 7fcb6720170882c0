"""Stores over one file, and over several local ones."""

from __future__ import annotations

import os
import threading

import pytest

from gpuload.errors import FormatError
from gpuload.sources import BytesSource, LocalFile
from gpuload.sources.single_store import FilesStore, SourceStore


def filled(store, key: str, offset: int, size: int) -> bytes:
    buffer = bytearray(size)
    store.readinto(key, offset, memoryview(buffer))
    return bytes(buffer)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class TestOneFile:
    def test_reading(self):
        with SourceStore(BytesSource(b"0123456789", "a")) as store:
            assert filled(store, "", 3, 4) == b"3456"
            assert store.sizes(["", "other"]).tolist() == [10, -1]
            assert (store.name, store.location(""), store.remote) == ("a", "a", False)

    def test_beyond_its_end(self):
        with pytest.raises(FormatError, match="a: byte 10: the file ends here, 1 bytes"):
            filled(SourceStore(BytesSource(b"0123456789", "a")), "", 8, 3)

    def test_other_keys(self):
        with pytest.raises(FormatError, match="a/b: is not there"):
            filled(SourceStore(BytesSource(b"0123456789", "a")), "b", 0, 3)

    def test_it_closes_the_file(self, tmp_path):
        (tmp_path / "a").write_bytes(b"abc")
        source = LocalFile(tmp_path / "a")
        SourceStore(source).close()
        assert source.descriptor is None


class TestSeveralFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        for n in range(20):
            (tmp_path / f"{n}").write_bytes(b"content of %02d" % n)
        return tmp_path

    def test_reading(self, folder):
        with FilesStore(folder) as store:
            assert filled(store, "7", 8, 5) == b"of 07"
            assert store.peek("7", 8, 99) == b"of 07"
            assert store.sizes(["7", "none", "7/none"]).tolist() == [13, -1, -1]
            assert store.location("7") == str(folder / "7")

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc/self/fd")
    def test_few_stay_open(self, folder):
        before = open_files()
        with FilesStore(folder, kept_open=3) as store:
            assert open_files() == before
            for n in [*range(20), *range(20)]:
                assert filled(store, f"{n}", 11, 2) == b"%02d" % n
                assert open_files() <= before + 3
        assert open_files() == before

    def test_beyond_the_end(self, folder):
        with FilesStore(folder) as store, pytest.raises(FormatError, match=r"7: byte 13: .*ends"):
            filled(store, "7", 8, 6)

    def test_a_file_that_is_gone(self, folder):
        with FilesStore(folder) as store, pytest.raises(FormatError, match="none: is not there"):
            filled(store, "none", 0, 1)

    def test_reading_after_it_is_closed(self, folder):
        store = FilesStore(folder)
        store.close()
        with pytest.raises(ValueError, match="closed"):
            filled(store, "7", 0, 1)

    def test_threads(self, folder):
        wrong = []

        def work(first: int) -> None:
            for n in range(400):
                key = (first * 7 + n) % 20
                if filled(store, f"{key}", 11, 2) != b"%02d" % key:
                    wrong.append(key)

        with FilesStore(folder, kept_open=2) as store:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong
