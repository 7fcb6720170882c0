"""Objects of fsspec's file systems: reading in parts, trying again, giving up in time."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import ssl
import sys
import threading
from itertools import pairwise

import pytest

from gpuload.errors import MissingDependencyError, RemoteError
from gpuload.sources import FsspecSource, LocalFile, attempts, open_source, read_ahead, remote

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from tests.helpers.object_files import KINDS, AsyncFiles, Files  # noqa: E402 (they need fsspec)

MIB = 1 << 20
CONTENT = random.Random(1).randbytes(10_000)
LARGE = random.Random(2).randbytes(21 * MIB + 12_345)
URL = "remote://file"

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(attempts, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.delenv(attempts.TIMEOUT_VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def no_thread_stays():
    """Nor one that was left behind, once its file system lets it go."""
    yield
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("gpuload")])


@pytest.fixture
def soon(monkeypatch):
    """Let attempts end soon."""
    monkeypatch.setenv(attempts.TIMEOUT_VARIABLE, "0.1")
    monkeypatch.setattr(remote, "LOWEST_SPEED", 1 << 40)


def source_of(files):
    return FsspecSource(files, "file", len(files.content), URL)


def read(source, offset, size):
    buffer = bytearray(size)
    assert source.readinto(offset, memoryview(buffer)) == size
    return bytes(buffer)


class TestOpening:
    def test_missing_object(self):
        with pytest.raises(FileNotFoundError):
            open_source("memory://test_remote/missing")

    def test_empty_object(self):
        fsspec.filesystem("memory").pipe_file("/test_remote/empty", b"")
        with open_source("memory://test_remote/empty") as source:
            assert source.name == "memory://test_remote/empty"
            assert source.size == 0
            assert source.peek(0, 10) == b""

    def test_that_it_is_remote(self, tmp_path):
        fsspec.filesystem("memory").pipe_file("/test_remote/empty", b"")
        with open_source("memory://test_remote/empty") as source:
            assert source.remote
            assert source.descriptor is None
        (tmp_path / "file").touch()
        with open_source(f"file://{tmp_path}/file") as source:
            assert not source.remote

    def test_local_url(self, tmp_path):
        (tmp_path / "file").write_bytes(CONTENT)
        with open_source(f"file://{tmp_path}/file") as source:
            assert type(source) is LocalFile
            assert source.name == f"file://{tmp_path}/file"
            assert source.peek(0, 20_000) == CONTENT

    def test_without_fsspec(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(MissingDependencyError) as caught:
            open_source("s3://bucket/key.lz4")
        assert "pip install 'gpuload[remote]'" in str(caught.value)
        assert str(caught.value).count("s3://bucket/key.lz4") == 1
        assert isinstance(caught.value, ImportError)
        assert (caught.value.library, caught.value.extra) == ("fsspec", "remote")

    @pytest.mark.parametrize("info", [{"size": None}, {"size": 10_000, "partial": False}])
    def test_object_that_comes_whole_only(self, info, registered):
        """As fsspec's http says where a server states no length, or that it sends no parts."""

        class Streamed(fsspec.AbstractFileSystem):
            def info(self, path, **more):
                return {"name": path, "type": "file", **info}

            def _open(self, path, mode="rb", **more):
                return io.BytesIO(CONTENT)

        url = registered(Streamed)
        with open_source(url) as source:
            assert source.name == url
            assert source.peek(0, 20_000) == CONTENT

    @pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "1e300"])
    def test_timeout_that_is_none(self, text, monkeypatch):
        fsspec.filesystem("memory").pipe_file("/test_remote/empty", b"")
        monkeypatch.setenv("GPULOAD_REMOTE_TIMEOUT", text)
        with pytest.raises(ValueError, match=f"GPULOAD_REMOTE_TIMEOUT .* not '{text}'"):
            open_source("memory://test_remote/empty")


@pytest.fixture
def registered():
    """Return a function that registers a file system and returns the URL of an object in it."""

    def register(kind):
        kind.protocol, kind.cachable = "gpuload-test", False
        fsspec.register_implementation("gpuload-test", kind, clobber=True)
        return "gpuload-test://object"

    return register


class ResponseError(Exception):
    """As aiohttp's ClientResponseError, which is no OSError."""

    def __init__(self, status, message=""):
        super().__init__(f"{status}, message={message!r}, url='x://y'")
        self.status, self.message = status, message


def not_found_because(cause):
    """Return what fsspec's http makes of any error: that the URL was not found."""
    error = FileNotFoundError("x://y")
    error.__cause__ = cause
    return error


MISSING = os.strerror(errno.ENOENT)
#: What a file system raises, then type, number and text of the error that is passed on.
FINAL = [
    (FileNotFoundError("x://y"), FileNotFoundError, errno.ENOENT, MISSING),
    (FileNotFoundError(errno.ENOENT, MISSING, "/y"), FileNotFoundError, errno.ENOENT, MISSING),
    (
        not_found_because(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")),
        ConnectionRefusedError,
        errno.ECONNREFUSED,
        os.strerror(errno.ECONNREFUSED),
    ),
    (
        not_found_because(ResponseError(404, "Not Found")),
        FileNotFoundError,
        errno.ENOENT,
        "the server answers 404 Not Found",
    ),
    (ResponseError(403), PermissionError, errno.EACCES, "the server answers 403"),
    (ResponseError(501), OSError, errno.EIO, "the server answers 501"),
    (PermissionError("no such key"), PermissionError, errno.EACCES, "no such key"),
    (ssl.SSLCertVerificationError(1, "expired"), OSError, errno.EIO, "expired"),
    (NotImplementedError("ranges"), OSError, errno.EIO, "ranges"),
]
#: What a file system raises, then number and text of the error after the last attempt.
PASSING = [
    # Of a name that does not resolve: the number is one of getaddrinfo's.
    (not_found_because(OSError(-3, "no name")), errno.EIO, "[Errno -3] no name"),
    # Its numbers are OpenSSL's.
    (not_found_because(ssl.SSLError(1, "bad record")), errno.EIO, "bad record"),
    (ConnectionResetError(errno.ECONNRESET, "x"), errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
    (ResponseError(503), errno.EIO, "the server answers 503"),
    (ResponseError(429, "Too Many"), errno.EIO, "the server answers 429 Too Many"),
    (RuntimeError("the loop is closed"), errno.EIO, "the loop is closed"),
    (TimeoutError(), errno.ETIMEDOUT, "no answer, or only a part of one"),
]


class TestErrors:
    @pytest.fixture
    def failing(self, registered):
        """Return the URL of an object whose size cannot be told because of an error."""

        def url(error, times=1_000):
            class Failing(fsspec.AbstractFileSystem):
                left = times

                def info(self, path, **more):
                    Failing.left -= 1
                    if Failing.left >= 0:
                        raise error
                    return {"name": path, "size": 7, "type": "file"}

            return registered(Failing)

        return url

    @pytest.mark.parametrize(("error", "kind", "code", "reason"), FINAL)
    def test_final_while_opening(self, error, kind, code, reason, failing):
        url = failing(error)
        with pytest.raises(OSError, match=re.escape(reason)) as caught:
            open_source(url)
        check_final(caught.value, kind, code, reason, url)

    @every_kind
    @pytest.mark.parametrize(("error", "kind_of_error", "code", "reason"), FINAL)
    def test_final_while_reading(self, error, kind_of_error, code, reason, kind):
        files = kind.of(CONTENT)
        files.faults.extend([error] * 100)
        with pytest.raises(OSError, match=re.escape(reason)) as caught:
            source_of(files).peek(0, 5)
        check_final(caught.value, kind_of_error, code, reason, URL)
        assert len(files.ranges) == 1

    @pytest.mark.parametrize(("error", "code", "reason"), PASSING)
    def test_passing_while_opening(self, error, code, reason, failing):
        assert open_source(failing(error, 3)).size == 7
        url = failing(error)
        with pytest.raises(RemoteError, match=re.escape(reason)) as caught:
            open_source(url)
        check_exhausted(caught.value, code, f"{url}: {reason}")

    @every_kind
    @pytest.mark.parametrize(("error", "code", "reason"), PASSING)
    def test_passing_while_reading(self, error, code, reason, kind):
        files = kind.of(LARGE)
        files.faults.extend([error] * 3)
        source = source_of(files)
        assert source.peek(0, 5) == LARGE[:5]
        assert len(files.ranges) == 4
        files.faults.extend([error] * 100)
        with pytest.raises(RemoteError, match=re.escape(reason)) as caught:
            source.peek(7 * MIB + 9, 5)
        check_exhausted(caught.value, code, f"{URL}: byte {7 * MIB}: {reason}")
        assert len(files.ranges) == 8
        files.faults.clear()
        assert source.peek(7 * MIB + 9, 5) == LARGE[7 * MIB + 9 :][:5]

    @pytest.mark.parametrize("error", [MemoryError(), ImportError("needs another package")])
    def test_not_of_the_remote(self, error, failing):
        with pytest.raises(type(error)) as caught:
            open_source(failing(error))
        assert caught.value is error


def check_final(error, kind, code, reason, url):
    assert type(error) is kind
    assert error.errno == code
    assert reason in error.strerror
    assert error.filename == url
    assert str(error).count(url) == 1


def check_exhausted(error, code, start):
    assert isinstance(error, OSError)
    assert error.errno == code
    assert str(error).startswith(start)
    assert re.search(r"\(4 attempts in \d+\.\d s\); (try|if the server)", str(error))


class TestAnswers:
    @every_kind
    @pytest.mark.parametrize("got", [0, 1, 9_999])
    def test_too_short(self, kind, got):
        files = kind.of(CONTENT)
        files.faults.extend([lambda data: data[:got]] * 3)
        source = source_of(files)
        assert source.peek(50, 100) == CONTENT[50:150]
        files.faults.extend([lambda data: data[:got]] * 100)
        with pytest.raises(RemoteError, match=f"only {got} of 10000 bytes came") as caught:
            source_of(files).peek(50, 100)
        check_exhausted(caught.value, errno.EIO, f"{URL}: byte 0: only")

    @every_kind
    def test_too_long(self, kind):
        files = kind.of(LARGE)
        files.faults.extend([lambda data: LARGE] * 100)
        source = source_of(files)
        for size in (4, 2 * MIB):
            start = len(files.ranges)
            with pytest.raises(RemoteError, match=f"{MIB} bytes were asked for") as caught:
                read(source, 9 * MIB, size)
            message = f"{URL}: byte {9 * MIB}: {MIB} bytes were asked for, {len(LARGE)} came"
            assert str(caught.value).startswith(message)
            assert "download the file" in str(caught.value)
            assert len(files.ranges) <= start + 2

    @every_kind
    def test_object_that_shrinks(self, kind):
        files = kind.of(CONTENT)
        source = source_of(files)
        files.content = CONTENT[:4_000]
        with pytest.raises(RemoteError, match="changed while it was read") as caught:
            source.read_exact(3_000, memoryview(bytearray(2_000)))
        assert "10000 bytes long when opened and is 4000 bytes long now" in str(caught.value)
        assert len(files.ranges) == 1

    @every_kind
    def test_object_that_is_removed(self, kind):
        files = kind.of(CONTENT)
        files.faults.append(FileNotFoundError("file"))
        with pytest.raises(FileNotFoundError):
            source_of(files).peek(0, 1)


class TestParts:
    @every_kind
    @pytest.mark.parametrize(
        ("offset", "size"),
        [(0, 21 * MIB + 12_345), (5, 20 * MIB), (7 * MIB - 1, MIB + 1), (21 * MIB, 12_345)],
    )
    def test_bytes(self, kind, offset, size):
        files = kind.of(LARGE)
        assert read(source_of(files), offset, size) == LARGE[offset : offset + size]

    @every_kind
    def test_of_a_large_read(self, kind):
        """They follow one another, and are requested side by side if the file system may."""
        files = kind.of(LARGE)
        read(source_of(files), 100, 20 * MIB)
        ranges = sorted(files.ranges)
        assert (ranges[0][0], ranges[-1][1]) == (100, 100 + 20 * MIB)
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert 1 < len(ranges) <= 20
        assert max(end - start for start, end in ranges) <= remote.LARGEST_PART
        assert files.most == (len(ranges) if kind is AsyncFiles else 1)

    def test_in_flight_are_bounded(self, monkeypatch):
        monkeypatch.setattr(remote, "LARGEST_PART", MIB // 4)
        files = AsyncFiles.of(LARGE)
        source, wrong = source_of(files), []

        def work(offset):
            if read(source, offset, 9 * MIB) != LARGE[offset : offset + 9 * MIB]:
                wrong.append(offset)

        threads = [threading.Thread(target=work, args=(n * MIB,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        assert remote.IN_FLIGHT <= files.most <= remote.IN_FLIGHT + len(threads)
        # All of them were given back.
        files.most = 0
        read(source, 0, len(LARGE))
        assert files.most == remote.IN_FLIGHT + 1

    @every_kind
    def test_that_fails_among_others(self, kind):
        files = kind.of(LARGE)
        source = source_of(files)
        files.faults.extend([None, None, ConnectionResetError(), lambda data: data[:9], None])
        assert read(source, 0, 9 * MIB) == LARGE[: 9 * MIB]
        files.faults.extend([None, *[ResponseError(403)] * 100])
        with pytest.raises(PermissionError):
            read(source, 0, len(LARGE))
        files.faults.clear()
        assert read(source, 0, len(LARGE)) == LARGE


class TestBlocks:
    @every_kind
    def test_small_reads_share_requests(self, kind):
        files = kind.of(LARGE)
        source = source_of(files)
        for offset in range(0, len(LARGE) - 4, 64 << 10):
            assert source.peek(offset, 4) == LARGE[offset : offset + 4]
        assert len(files.ranges) == 22
        assert sorted(files.ranges)[:2] == [(0, MIB), (MIB, 2 * MIB)]

    def test_are_requested_ahead_of_a_walk(self):
        files = AsyncFiles.of(LARGE)
        source = source_of(files)
        source.peek(0, 4)
        assert len(files.ranges) == 1
        source.peek(MIB, 4)
        source.peek(2 * MIB, 4)
        source.peek((2 + read_ahead.AHEAD) * MIB, 4)
        assert files.most > 1

    def test_are_not_requested_where_nobody_walks(self):
        files = AsyncFiles.of(LARGE)
        source = source_of(files)
        for offset in (20 * MIB, 0, 10 * MIB, 4 * MIB):
            source.peek(offset, 100)
        assert len(files.ranges) == 4

    @every_kind
    def test_that_are_there_serve_large_reads(self, kind):
        files = kind.of(LARGE)
        source = source_of(files)
        for block in range(7):
            source.peek(block * MIB, 1)
        assert read(source, 5, 6 * MIB) == LARGE[5 : 5 + 6 * MIB]
        assert sum(start < 7 * MIB for start, _ in files.ranges) == 7

    def test_only_so_many_are_kept(self):
        files = Files.of(LARGE)
        source = source_of(files)
        for _ in range(2):
            for offset in range(0, len(LARGE), MIB):
                source.peek(offset, 1)
        assert len(files.ranges) > 22
        assert len(source._blocks._blocks) == read_ahead.KEPT


class TestStalls:
    @every_kind
    def test_once(self, kind, soon):
        files = kind.of(CONTENT)
        files.faults.append("stall")
        assert source_of(files).peek(0, 20_000) == CONTENT
        files.closing.set()

    @every_kind
    def test_for_good(self, kind, soon):
        files = kind.of(LARGE)
        files.faults.extend(["stall"] * 100)
        for size in (5, 4 * MIB):
            with pytest.raises(RemoteError, match="no answer") as caught:
                read(source_of(files), 3 * MIB, size)
            check_exhausted(caught.value, errno.ETIMEDOUT, f"{URL}: byte {3 * MIB}: no answer")
            assert "GPULOAD_REMOTE_TIMEOUT" in str(caught.value)
        files.closing.set()

    def test_time_by_size(self):
        """At the lowest speed that is no stall, a part takes longer than the time-out."""
        request = source_of(Files.of(LARGE))._request(0, 8 * MIB)
        assert request._seconds == 60 + 128


class TestCancelling:
    @every_kind
    @pytest.mark.parametrize("size", [5, 20 * MIB])
    def test_reads_under_way(self, kind, size):
        files = kind.of(LARGE)
        files.faults.extend(["stall"] * 100)
        source, caught = source_of(files), []

        def work():
            try:
                read(source, 0, size)
            except RemoteError as error:
                caught.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: files.ranges)
        while any(thread.is_alive() for thread in threads):
            source.cancel()
            threads[0].join(0.05)
        for thread in threads:
            thread.join()
        assert len(caught) == 3
        assert all(re.match(rf"{URL}: byte \d+: the read was cancelled", text) for text in caught)
        files.faults.clear()
        files.closing.set()
        assert read(source, 0, size) == LARGE[:size]

    @every_kind
    def test_pauses(self, kind, monkeypatch):
        monkeypatch.setattr(attempts, "PAUSES", (60, 60, 60))
        files = kind.of(CONTENT)
        files.faults.extend([ConnectionResetError()] * 100)
        source = source_of(files)
        timer = threading.Timer(0.1, source.cancel)
        timer.start()
        with pytest.raises(RemoteError, match="cancelled"):
            source.peek(0, 1)
        timer.join()

    @every_kind
    def test_blocks_that_came_are_kept(self, kind):
        files = kind.of(LARGE)
        source = source_of(files)
        source.peek(0, 1)
        source.cancel()
        assert source.peek(0, 5) == LARGE[:5]
        assert len(files.ranges) == 1


def wait_until(condition):
    for _ in range(1_000):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("it does not come to be")
