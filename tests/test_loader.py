"""Opening and loading: sources, destinations and arguments."""

from __future__ import annotations

import array
import gzip
import io
import mmap
import os
import threading
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
import zstandard

import gpuload
from gpuload.errors import (
    FormatError,
)
from gpuload.sources import BytesSource, LocalFile, Source
from tests.helpers import host
from tests.helpers.handmade import skippable
from tests.helpers.loading import NOISE, TEXT

CONTENT = TEXT[:100_000] + NOISE
FILE = lz4.frame.compress(CONTENT, block_linked=False, content_checksum=True, block_size=4)
#: A file that states its decoded size, and two that do not.
EXACT = zstandard.ZstdCompressor().compress(CONTENT)
INEXACT = gzip.compress(CONTENT)
UNSIZED = lz4.frame.compress(CONTENT, store_size=False)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "content.lz4"
    path.write_bytes(FILE)
    return path


class TestSources:
    @pytest.mark.parametrize("kind", [str, Path, os.fspath, LocalFile])
    def test_paths(self, kind, path):
        assert bytes(host.load(kind(path))) == CONTENT

    def test_path_like(self, path):
        class Name:
            def __fspath__(self):
                return str(path)

        assert bytes(host.load(Name())) == CONTENT

    @pytest.mark.parametrize(
        "kind",
        [
            bytes,
            bytearray,
            memoryview,
            BytesSource,
            lambda data: memoryview(b"x" + data + b"x")[1:-1],
            lambda data: np.frombuffer(data, np.uint8),
            lambda data: array.array("b", data),
        ],
    )
    def test_bytes(self, kind):
        assert bytes(host.load(kind(FILE))) == CONTENT

    @pytest.mark.parametrize("dtype", ["i1", "<u2", "f8", "?"])
    @pytest.mark.parametrize("shape", [(-1,), (2, -1), (1, -1, 1)])
    def test_arrays_of_any_shape_and_type(self, shape, dtype):
        """An array's bytes are the content, whatever its elements are."""
        file = FILE + skippable(bytes(-len(FILE + skippable()) % 16))
        assert bytes(host.load(np.frombuffer(file, dtype).reshape(shape))) == CONTENT

    def test_mapped(self, path):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            assert bytes(host.load(data)) == CONTENT

    def test_pipe(self, tmp_path):
        """A named pipe cannot seek: it is copied first."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(FILE,))
        writer.start()
        assert bytes(host.load(pipe)) == CONTENT
        writer.join()

    def test_url(self):
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe_file("/folder/content.lz4", FILE)
        with host.open("memory://folder/content.lz4") as container:
            assert container.name == "memory://folder/content.lz4"
            assert container.stored_size == len(FILE)
            assert bytes(container.load()) == CONTENT

    def test_url_of_nothing(self):
        pytest.importorskip("fsspec")
        with pytest.raises(FileNotFoundError):
            host.load("memory://folder/absent.lz4")

    def test_source_of_ones_own(self):
        """Anything that reads byte ranges; gpuload closes it as its own."""

        class Reversed(Source):
            name, size, closed = "reversed", len(FILE), False
            data = FILE[::-1]

            def readinto(self, offset, view):
                part = self.data[max(0, self.size - offset - len(view)) : self.size - offset]
                view[: len(part)] = part[::-1]
                return len(part)

            def close(self):
                self.closed = True

        source = Reversed()
        with host.open(source) as container:
            assert container.name == "reversed"
            assert bytes(container.load()) == CONTENT
            assert not source.closed
        assert source.closed

    @pytest.mark.parametrize("source", [None, 5, 1.5, ["a"], {}, io.BytesIO(FILE), object()])
    def test_anything_else(self, source):
        with pytest.raises(TypeError, match=r"source must be a path, a URL or bytes-like, not"):
            host.load(source)

    @pytest.mark.parametrize(
        "source", [memoryview(FILE)[::2], np.frombuffer(FILE, np.uint8)[::-1]], ids=type
    )
    def test_not_contiguous(self, source):
        with pytest.raises(TypeError, match="contiguous"):
            host.load(source)

    @pytest.mark.parametrize("source", [b"", b"\0", b"\x1f", TEXT])
    def test_unknown_format(self, source):
        """The message shows the first bytes and lists what is known."""
        with pytest.raises(FormatError, match=r"known formats are LZ4.*gzip.*Zstandard.*Snappy"):
            host.load(source)

    def test_the_name_does_not_matter(self, tmp_path):
        (tmp_path / "content.gz").write_bytes(FILE)
        assert host.open(tmp_path / "content.gz").format == "lz4"


class TestOut:
    @pytest.mark.parametrize("file", [EXACT, INEXACT, FILE], ids=["zstd", "gzip", "lz4"])
    @pytest.mark.parametrize(
        "make",
        [
            bytearray,
            lambda size: memoryview(bytearray(size)),
            lambda size: np.empty(size, np.uint8),
            lambda size: np.empty((size // 1_000, 10, 100), np.uint8),
            lambda size: np.empty(size + 9, np.uint8)[5:-4],
            lambda size: mmap.mmap(-1, size),
            lambda size: array.array("B", bytes(size)),
        ],
    )
    def test_buffers(self, make, file):
        out = make(len(CONTENT))
        result = host.load(file, out=out)
        assert (
            bytes(memoryview(out).cast("B") if not isinstance(out, bytearray) else out) == CONTENT
        )
        assert bytes(result) == CONTENT
        assert np.shares_memory(result, np.asarray(out))

    def test_array_of_another_load(self):
        first = host.load(EXACT)
        assert np.shares_memory(host.load(FILE, out=first), first)
        assert bytes(first) == CONTENT

    @pytest.mark.parametrize("change", [-1, 1, -len(CONTENT)])
    def test_of_the_wrong_size(self, change):
        """Where the size is known, nothing is written."""
        out = np.full(len(CONTENT) + change, 0xAA, np.uint8)
        with pytest.raises(ValueError, match=f"out holds {out.size} bytes.*{len(CONTENT)}"):
            host.load(EXACT, out=out)
        assert (out == 0xAA).all()

    @pytest.mark.parametrize("change", [-1, 1, -len(CONTENT)])
    @pytest.mark.parametrize("file", [INEXACT, UNSIZED], ids=["gzip", "lz4"])
    def test_of_the_wrong_size_found_late(self, file, change):
        """Where it is not, nothing is written behind the end."""
        memory = np.full(len(CONTENT) + 2, 0xAA, np.uint8)
        out = memory[: len(CONTENT) + change]
        with pytest.raises(ValueError, match=f"out holds {out.size} bytes, .* decodes to"):
            host.load(file, out=out)
        assert (memory[out.size :] == 0xAA).all()

    @pytest.mark.parametrize("dtype", ["int8", ">u2", "float32", "bool", "U1"])
    def test_of_another_type(self, dtype):
        with pytest.raises(ValueError, match=r"out has elements of type .*, the asset has uint8"):
            host.load(EXACT, out=np.zeros(len(CONTENT), dtype))

    @pytest.mark.parametrize(
        "out",
        [
            np.zeros(2 * len(CONTENT), np.uint8)[::2],
            np.zeros(len(CONTENT), np.uint8)[::-1],
            np.zeros((2, len(CONTENT) // 2), np.uint8).T,
        ],
    )
    def test_not_contiguous(self, out):
        with pytest.raises(ValueError, match=r"out is not contiguous"):
            host.load(EXACT, out=out)

    @pytest.mark.parametrize("make", [bytes, lambda size: np.frombuffer(bytes(size), np.uint8)])
    def test_read_only(self, make):
        with pytest.raises(ValueError, match="out is read-only"):
            host.load(EXACT, out=make(len(CONTENT)))

    @pytest.mark.parametrize(
        "out", [5, "text", [np.uint8(0)] * len(CONTENT), (0,) * len(CONTENT), object()]
    )
    def test_no_buffer(self, out):
        """What would only be copied cannot be decoded into."""
        with pytest.raises((TypeError, ValueError), match="out"):
            host.load(EXACT, out=out)

    def test_holds_nothing_from_before(self):
        out = np.full(5, 0xAA, np.uint8)
        host.load(zstandard.ZstdCompressor().compress(b"hello"), out=out)
        assert out.tobytes() == b"hello"

    def test_empty(self):
        for file in (gzip.compress(b""), lz4.frame.compress(b"")):
            assert len(host.load(file, out=bytearray())) == 0


class TestArguments:
    @pytest.mark.parametrize("device", ["", "tpu", "cuda:x", "cpu:0", 1.5, True, b"cpu"])
    @pytest.mark.parametrize("call", [gpuload.load, lambda *a, **o: gpuload.open(*a, **o).load()])
    def test_device(self, call, device):
        with pytest.raises(ValueError, match="device must be"):
            call(FILE, device=device)

    def test_host(self):
        assert gpuload.load(FILE, device="cpu").device == "cpu"
        with gpuload.open(FILE, device="cpu") as container:
            assert container.load().device == "cpu"
        with gpuload.open(FILE) as container:
            assert container.load(device="cpu").device == "cpu"

    @pytest.mark.parametrize("call", [host.open, host.load])
    def test_unknown_option(self, call):
        with pytest.raises(TypeError, match="colour"):
            call(FILE, colour="blue")

    @pytest.mark.parametrize("call", [host.open, host.load])
    def test_options_are_checked(self, call):
        with pytest.raises(ValueError, match="threads"):
            call(FILE, threads=0)

    def test_name(self):
        assert bytes(host.load(FILE, "")) == CONTENT
        with pytest.raises(KeyError, match=r"no asset 'weights'"):
            host.load(FILE, "weights")

    def test_options_are_keywords(self):
        with pytest.raises(TypeError):
            host.load(FILE, "", bytearray(len(CONTENT)))


def test_results_outlive_everything(path):
    loaded = host.load(path)
    path.unlink()
    view = np.asarray(loaded)
    del loaded
    assert view.tobytes() == CONTENT
    view[0] ^= 1  # it is the caller's to change
