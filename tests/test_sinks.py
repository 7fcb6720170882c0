"""Where decoded bytes go."""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import pytest

from gpuload import sinks
from gpuload.sinks import DescriptorSink, MemorySink, NullSink

DATA = np.arange(100_000, dtype=np.uint32).view(np.uint8)


@pytest.fixture
def file(tmp_path):
    """Return a descriptor of an empty file, and what reads the file."""
    path = tmp_path / "out"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    yield fd, path.read_bytes
    os.close(fd)


class TestMemorySink:
    def test_slot_is_the_memory(self):
        memory = np.zeros(100, np.uint8)
        sink = MemorySink(memory)
        sink.slot(10, 5)[:] = 7
        assert memory.nonzero()[0].tolist() == [10, 11, 12, 13, 14]

    @pytest.mark.parametrize(("offset", "size"), [(0, 0), (0, 100), (99, 1), (100, 0)])
    def test_slot_sizes(self, offset, size):
        assert MemorySink(np.zeros(100, np.uint8)).slot(offset, size).size == size

    def test_write(self):
        memory = np.zeros(10, np.uint8)
        sink = MemorySink(memory)
        sink.write(7, DATA[1:1].copy())
        sink.write(2, np.array([1, 2, 3], np.uint8))
        sink.write(8, np.array([4, 5], np.uint8))
        assert memory.tolist() == [0, 0, 1, 2, 3, 0, 0, 0, 4, 5]

    @pytest.mark.parametrize("offset", [8, 10, 11, 1 << 40])
    def test_write_beyond_the_end(self, offset):
        memory = np.zeros(10, np.uint8)
        with pytest.raises(ValueError, match="out holds 10 bytes, the file decodes to more"):
            MemorySink(memory).write(offset, np.ones(3, np.uint8))
        assert not memory.any()

    def test_order_does_not_matter(self):
        assert not MemorySink(np.zeros(1, np.uint8)).ordered


class TestPositional:
    def test_writes_in_any_order(self, file):
        fd, content = file
        sink = DescriptorSink(fd, positional=True)
        assert not sink.ordered
        for start in (300_000, 0, 200_000, 100_000):
            sink.write(start, DATA[start : start + 100_000])
        assert content() == DATA.tobytes()

    def test_writes_from_several_threads(self, file):
        fd, content = file
        sink = DescriptorSink(fd, positional=True)
        threads = [
            threading.Thread(target=sink.write, args=(start, DATA[start : start + 25_000]))
            for start in range(0, DATA.size, 25_000)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert content() == DATA.tobytes()

    def test_the_position_of_the_descriptor_stays(self, file):
        fd, _ = file
        DescriptorSink(fd, positional=True).write(5, DATA[:10])
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0

    def test_short_writes(self, file, monkeypatch):
        fd, content = file
        monkeypatch.setattr(sinks.os, "pwrite", cut(os.pwrite))
        sink = DescriptorSink(fd, positional=True)
        sink.write(5, DATA[5:1000])
        sink.write(0, DATA[:5])
        assert content() == DATA[:1000].tobytes()


class TestOrdered:
    def test_writes_behind_one_another(self, file):
        fd, content = file
        sink = DescriptorSink(fd, positional=False)
        assert sink.ordered
        sink.write(0, DATA[:1000])
        sink.write(1000, DATA[1000:5000])
        assert content() == DATA[:5000].tobytes()

    def test_starts_where_the_descriptor_stands(self, file):
        fd, content = file
        os.write(fd, b"before")
        DescriptorSink(fd, positional=False).write(0, DATA[:10])
        assert content() == b"before" + DATA[:10].tobytes()

    def test_short_writes(self, file, monkeypatch):
        fd, content = file
        monkeypatch.setattr(sinks.os, "write", cut(os.write))
        DescriptorSink(fd, positional=False).write(0, DATA[:1000])
        assert content() == DATA[:1000].tobytes()

    def test_pipe_takes_little_at_a_time(self):
        """A pipe holds 64 KiB: a write of more comes back when a signal or a reader lets it."""
        reader, writer = os.pipe()
        got = bytearray()

        def read():
            while piece := os.read(reader, 1000):
                got.extend(piece)

        thread = threading.Thread(target=read)
        thread.start()
        sink = DescriptorSink(writer, positional=False)
        for start in range(0, DATA.size, 130_000):
            sink.write(start, DATA[start : start + 130_000])
        os.close(writer)
        thread.join()
        os.close(reader)
        assert got == DATA.tobytes()

    def test_closed_pipe(self):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            with pytest.raises(BrokenPipeError):
                DescriptorSink(writer, positional=False).write(0, DATA)
        finally:
            os.close(writer)


def cut(write):
    """Return a write that takes at most 7 bytes, as the system may at any time."""

    def short(fd, view, *offset):
        return write(fd, view[:7], *offset)

    return short


@pytest.mark.parametrize("positional", [True, False])
class TestAnyDescriptor:
    def test_has_no_slots(self, file, positional):
        assert DescriptorSink(file[0], positional=positional).slot(0, 10) is None

    def test_no_bytes_are_no_call(self, monkeypatch, positional):
        monkeypatch.setattr(sinks.os, "write", None)
        monkeypatch.setattr(sinks.os, "pwrite", None)
        DescriptorSink(-1, positional=positional).write(0, DATA[:0])

    def test_errors_are_passed_on(self, positional):
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            DescriptorSink(-1, positional=positional).write(0, DATA)
        assert caught.value.errno == errno.EBADF

    def test_read_only_data(self, file, positional):
        fd, content = file
        DescriptorSink(fd, positional=positional).write(0, np.frombuffer(b"abc", np.uint8))
        assert content() == b"abc"

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
    def test_full_disk(self, positional):
        fd = os.open("/dev/full", os.O_WRONLY)
        try:
            with pytest.raises(OSError, match="No space left") as caught:
                DescriptorSink(fd, positional=positional).write(0, DATA)
            assert caught.value.errno == errno.ENOSPC
        finally:
            os.close(fd)


def test_null_sink():
    sink = NullSink()
    assert not sink.ordered
    assert sink.slot(0, 10) is None
    sink.write(1 << 50, DATA)
