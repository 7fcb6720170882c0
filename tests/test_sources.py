"""Byte ranges of files, bytes, pipes and fsspec objects."""

from __future__ import annotations

import errno
import io
import mmap
import os
import random
import resource
import tempfile
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import gpuload
from gpuload.errors import FormatError
from gpuload.sources import (
    BytesSource,
    LocalFile,
    SpooledFile,
    open_source,
    spool,
)
from gpuload.sources.local import SpoolError
from tests.helpers.buffers import Buffers

CONTENT = random.Random(1).randbytes(10_000)
LARGE = 33 << 20


@pytest.fixture
def path(tmp_path):
    """Return the path of a file of CONTENT."""
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    return path


@contextmanager
def local_file(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    with LocalFile(path) as source:
        yield source


@contextmanager
def bytes_source(tmp_path):
    yield BytesSource(CONTENT)


@contextmanager
def small_spool(tmp_path):
    with spool(io.BytesIO(CONTENT), "pipe") as source:
        yield source


@contextmanager
def rolled_spool(tmp_path):
    """Return a spool whose copy is in a file."""
    with tempfile.SpooledTemporaryFile(max_size=10) as file:
        file.write(CONTENT)
        yield SpooledFile(file, "pipe")


@contextmanager
def fsspec_object(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/test_sources/object", CONTENT)
    with open_source("memory://test_sources/object") as source:
        yield source
    fs.rm("/test_sources", recursive=True)


ALL = [local_file, bytes_source, small_spool, rolled_spool, fsspec_object]


@pytest.fixture(params=ALL, ids=lambda make: make.__name__)
def source(request, tmp_path):
    """Return a source of CONTENT, of every kind."""
    with request.param(tmp_path) as opened:
        yield opened


class TestEverySource:
    def test_size(self, source):
        assert source.size == len(CONTENT)
        assert isinstance(source.name, str)
        assert source.name

    @pytest.mark.parametrize(
        ("offset", "size"), [(0, 0), (0, 1), (0, 10_000), (5, 300), (9_999, 1), (10_000, 0)]
    )
    def test_read(self, source, offset, size):
        expected = CONTENT[offset : offset + size]
        buffer = bytearray(size)
        assert source.readinto(offset, memoryview(buffer)) == size
        assert buffer == expected
        source.read_exact(offset, memoryview(buffer))
        assert source.peek(offset, size) == expected

    @pytest.mark.parametrize(
        ("offset", "size"), [(9_990, 11), (9_999, 500), (10_000, 1), (20_000, 7), (1 << 40, 3)]
    )
    def test_read_beyond_the_end(self, source, offset, size):
        there = CONTENT[offset:]
        buffer = bytearray(b"\xcd" * size)
        assert source.readinto(offset, memoryview(buffer)) == len(there)
        assert buffer == there + b"\xcd" * (size - len(there))
        assert source.peek(offset, size) == there

    @pytest.mark.parametrize(("offset", "size"), [(9_990, 11), (10_000, 1), (20_000, 7)])
    def test_exact_read_beyond_the_end(self, source, offset, size):
        end = max(offset, len(CONTENT))
        missing = offset + size - end
        with pytest.raises(FormatError) as caught:
            source.read_exact(offset, memoryview(bytearray(size)))
        assert caught.value.offset == end
        assert caught.value.source == source.name
        assert f"{missing} bytes too early" in str(caught.value)
        assert "when opened" not in str(caught.value)

    def test_read_into_part_of_an_array(self, source):
        memory = np.full(30, 0xCD, np.uint8)
        source.read_exact(100, memoryview(memory)[10:20])
        assert memory.tobytes() == b"\xcd" * 10 + CONTENT[100:110] + b"\xcd" * 10

    @pytest.mark.parametrize("offset", [0, 5_000, 9_999, 10_000])
    def test_resident_bytes_are_those_of_the_source(self, source, offset):
        view, start = source.resident(offset)
        assert view == CONTENT[start : start + len(view)]

    def test_peek_of_any_size(self, source):
        assert source.peek(9_995, 1 << 46) == CONTENT[9_995:]

    def test_reads_from_several_threads(self, source):
        wrong = []

        def read(seed):
            rng = random.Random(seed)
            for _ in range(200):
                offset, size = rng.randrange(10_000), rng.randrange(400)
                if source.peek(offset, size) != CONTENT[offset : offset + size]:
                    wrong.append((offset, size))

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_close_twice(self, source):
        source.close()
        source.close()

    def test_errors_name_the_source(self, source):
        error = source.broken(77, "something is wrong")
        assert str(error) == f"{source.name}: byte 77: something is wrong"


class TestLocalFile:
    def test_name_is_the_path(self, path):
        with LocalFile(path) as source:
            assert source.name == str(path)
        with LocalFile(path, "nickname") as source:
            assert source.name == "nickname"

    def test_descriptor(self, path):
        with LocalFile(path) as source:
            assert os.pread(source.descriptor, 20_000, 0) == CONTENT
        assert source.descriptor is None
        assert BytesSource(CONTENT).descriptor is None

    def test_truncated_after_open(self, path):
        with LocalFile(path) as source:
            os.truncate(path, 4000)
            with pytest.raises(FormatError) as caught:
                source.read_exact(3000, memoryview(bytearray(2000)))
        assert caught.value.offset == 4000
        assert "1000 bytes too early" in str(caught.value)
        assert "it was 10000 bytes long when opened" in str(caught.value)

    def test_truncated_to_nothing(self, path):
        with LocalFile(path) as source:
            os.truncate(path, 0)
            # A reader would take nothing for the end of the content.
            with pytest.raises(FormatError, match=r"byte 0: .* 10000 bytes long"):
                source.peek(0, 10)
            with pytest.raises(FormatError, match="byte 0: the file ends here"):
                source.read_exact(0, memoryview(bytearray(1)))

    def test_deleted_after_open(self, path):
        with LocalFile(path) as source:
            path.unlink()
            assert source.peek(0, 10_000) == CONTENT

    def test_closed(self, path):
        source = LocalFile(path)
        source.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            source.peek(0, 1)

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc/self/fd")
    def test_descriptor_is_closed_and_not_inherited(self, path):
        with LocalFile(path):
            [fd] = descriptors(path)
            assert not os.get_inheritable(fd)
        assert descriptors(path) == []

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc/self/fd")
    def test_descriptor_is_closed_after_a_refusal(self, tmp_path):
        with pytest.raises(IsADirectoryError):
            LocalFile(tmp_path)
        assert descriptors(tmp_path) == []

    def test_empty_file(self, tmp_path):
        (tmp_path / "empty").touch()
        with LocalFile(tmp_path / "empty") as source:
            assert source.size == 0
            assert source.peek(0, 5) == b""

    def test_missing_file(self, tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            LocalFile(tmp_path / "missing")
        assert caught.value.filename == str(tmp_path / "missing")

    def test_directory(self, tmp_path):
        with pytest.raises(IsADirectoryError) as caught:
            LocalFile(tmp_path)
        assert str(tmp_path) in str(caught.value)

    def test_fifo(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        keep = os.open(tmp_path / "fifo", os.O_RDWR)
        try:
            with pytest.raises(OSError, match="no regular file") as caught:
                LocalFile(tmp_path / "fifo")
            assert "spool" in str(caught.value)
        finally:
            os.close(keep)

    def test_sparse_file_beyond_32_bits(self, tmp_path):
        with open(tmp_path / "sparse", "wb") as file:
            file.seek(5 << 32)
            file.write(b"end")
        with LocalFile(tmp_path / "sparse") as source:
            assert source.size == (5 << 32) + 3
            assert source.peek((5 << 32) - 2, 100) == b"\0\0end"


def descriptors(path):
    """Return the open descriptors of a file."""
    links = Path("/proc/self/fd")
    return [int(fd) for fd in os.listdir(links) if os.path.realpath(links / fd) == str(path)]


class TestBytesSource:
    @pytest.mark.parametrize(
        "make", [m for _, m in Buffers.contiguous], ids=dict(Buffers.contiguous)
    )
    def test_any_contiguous_buffer(self, make):
        source = open_source(make())
        assert type(source) is BytesSource
        assert source.size == 24
        assert source.peek(0, 100) == Buffers.data
        assert source.peek(5, 7) == Buffers.data[5:12]

    @pytest.mark.parametrize("make", [m for _, m in Buffers.scattered], ids=dict(Buffers.scattered))
    def test_no_other_buffer(self, make):
        with pytest.raises(TypeError):
            open_source(make())

    def test_scattered_buffer_is_told_what_is_wrong(self):
        with pytest.raises(TypeError, match="contiguous"):
            open_source(Buffers.words[::2])

    @pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
    def test_array_of_no_elements(self, shape):
        assert open_source(np.zeros(shape, np.uint16)).size == 0

    @pytest.mark.parametrize("data", [b"", bytearray(), memoryview(b"")])
    def test_no_bytes(self, data):
        source = BytesSource(data)
        assert source.size == 0
        assert source.peek(0, 5) == b""

    def test_anonymous_mapping(self):
        pages = mmap.mmap(-1, 5000)
        pages.write(b"mapped")
        source = BytesSource(pages)
        assert source.size == 5000
        assert source.peek(0, 6) == b"mapped"

    def test_nothing_is_copied(self):
        data = bytearray(b"abc")
        source = BytesSource(data)
        data[1] = ord("x")
        assert source.peek(0, 3) == b"axc"

    def test_name(self):
        assert BytesSource(b"").name == "<bytes>"
        assert BytesSource(b"", "message").name == "message"


class TestSpool:
    def pipe(self, size):
        """Return the reading end of a pipe into which `size` bytes are written in pieces."""
        reader, writer = os.pipe()

        def write():
            with open(writer, "wb", buffering=0) as file:
                for start in range(0, size, 300_000):
                    file.write(pattern(start, min(300_000, size - start)))

        thread = threading.Thread(target=write)
        thread.start()
        return open(reader, "rb", buffering=0), thread

    @pytest.mark.parametrize("size", [0, 1, 300_001, LARGE])
    def test_pipe(self, size):
        stream, thread = self.pipe(size)
        with stream, spool(stream, "<stdin>") as source:
            thread.join()
            assert source.name == "<stdin>"
            assert source.size == size
            for offset in (0, size // 2, max(0, size - 5)):
                assert source.peek(offset, 5) == pattern(offset, min(5, size - offset))

    def test_only_large_copies_go_to_a_file(self):
        for size, rolled in ((LARGE >> 1, False), (LARGE, True)):
            with spool(io.BytesIO(bytes(size)), "pipe") as source:
                assert source._file._rolled == rolled

    def test_buffered_stream(self):
        with spool(io.BufferedReader(io.BytesIO(CONTENT)), "pipe") as source:
            assert source.peek(0, 20_000) == CONTENT

    def test_stream_is_copied_from_where_it_stands(self):
        stream = io.BytesIO(CONTENT)
        stream.seek(100)
        with spool(stream, "pipe") as source:
            assert source.peek(0, 20_000) == CONTENT[100:]

    def test_no_room_for_the_copy(self):
        """A limit of the size of files acts as a full disk does."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(SpoolError, match=r"its copy in /.* cannot be written") as caught:
                spool(io.BytesIO(bytes(LARGE)), "pipe")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert caught.value.filename == "pipe"
        assert "TMPDIR" in str(caught.value)

    def test_closed(self):
        source = spool(io.BytesIO(CONTENT), "pipe")
        source.close()
        with pytest.raises(ValueError, match="closed"):
            source.peek(0, 1)


def pattern(start, size):
    """Return bytes by their place: whole numbers, 4 bytes each."""
    first = start // 4
    words = np.arange(first, first + size // 4 + 2, dtype="<u4").tobytes()
    return words[start - 4 * first :][:size]


class TestOpenSource:
    @pytest.mark.parametrize("kind", [str, Path])
    def test_path(self, path, kind):
        with open_source(kind(path)) as source:
            assert type(source) is LocalFile
            assert source.name == str(path)

    def test_path_like_object(self, path):
        class Like:
            def __fspath__(self):
                return str(path)

        with open_source(Like()) as source:
            assert source.peek(0, 20_000) == CONTENT

    def test_relative_path(self, path, monkeypatch):
        monkeypatch.chdir(path.parent)
        with open_source("file.bin") as source:
            assert source.name == "file.bin"

    def test_bytes_are_the_content(self, path):
        assert open_source(os.fsencode(path)).size == len(os.fsencode(path))

    def test_missing_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            open_source(tmp_path / "missing")

    def test_directory(self, tmp_path):
        with pytest.raises(IsADirectoryError):
            open_source(tmp_path)

    def test_fifo(self, tmp_path):
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        thread = threading.Thread(target=fifo.write_bytes, args=(CONTENT,))
        thread.start()
        with open_source(fifo) as source:
            thread.join()
            assert source.name == str(fifo)
            assert source.peek(0, 20_000) == CONTENT

    def test_fifo_without_a_writer(self, tmp_path):
        """Neither opening it nor waiting for its bytes lasts longer than they are wanted."""
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(OSError, match="the read was cancelled") as caught:
            open_source(tmp_path / "fifo", lambda wait: wait.cancel())
        assert caught.value.errno == errno.ECANCELED
        assert caught.value.filename == str(tmp_path / "fifo")

    def test_fifo_is_read_to_the_end_of_a_late_and_slow_writer(self, tmp_path):
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        written = threading.Event()

        def write():
            written.wait(0.3)
            with open(fifo, "wb", buffering=0) as file:
                file.write(CONTENT[:1000])
                written.wait(0.3)
                file.write(CONTENT[1000:])

        thread = threading.Thread(target=write)
        thread.start()
        with open_source(fifo) as source:
            thread.join()
            assert source.peek(0, 20_000) == CONTENT

    def test_fifo_of_a_load_that_is_cancelled(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        for wait in (0.0, 0.3):  # before it waits, and while it does
            load = gpuload.load_async(tmp_path / "fifo", device="cpu")
            load._thread.join(wait)
            load.cancel()
            with pytest.raises(CancelledError):
                load.result(10)

    def test_device(self):
        with open_source(os.devnull) as source:
            assert source.size == 0

    @pytest.mark.parametrize(
        "thing", [None, 7, 3.5, [b"abc"], {"a": 1}, io.BytesIO(b"abc"), object()]
    )
    def test_anything_else(self, thing):
        with pytest.raises(TypeError, match=f"not {type(thing).__name__}"):
            open_source(thing)

    def test_array_without_a_buffer(self):
        with pytest.raises(TypeError):
            open_source(np.zeros(3, "M8[s]"))


def test_closing_a_file_while_it_is_read(tmp_path, monkeypatch):
    """A read that has begun gets the bytes of its own file, whoever opens the next."""
    (tmp_path / "one").write_bytes(b"1" * 100)
    (tmp_path / "other").write_bytes(b"2" * 100)
    source = open_source(tmp_path / "one")
    begun, closed = threading.Event(), threading.Event()
    preadv = os.preadv

    def slow(*arguments):
        begun.set()
        assert closed.wait(10)
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    buffer = bytearray(100)
    thread = threading.Thread(target=source.readinto, args=(0, memoryview(buffer)))
    thread.start()
    assert begun.wait(10)
    source.close()
    with (tmp_path / "other").open("rb"):
        closed.set()
        thread.join()
    assert buffer == b"1" * 100
    monkeypatch.undo()
    with pytest.raises(OSError, match="closed; open it again"):
        source.readinto(0, memoryview(buffer))
    source.close()
