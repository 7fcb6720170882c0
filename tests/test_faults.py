"""Faults around decoding: files that shrink, disks that fail or fill up, users who give up.

Whatever happens, the error that caused it comes out, no thread stays behind and nothing hangs.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from gpuload.errors import GpuloadError
from gpuload.sources import BytesSource, Source
from tests.helpers import host
from tests.helpers.encoders import ENCODERS
from tests.helpers.fresh import fresh_python
from tests.helpers.loading import Waiting

#: About 6 MiB that compress to about half, so that there are several windows of stored bytes.
_RNG = random.Random(11)
CONTENT = b"".join(_RNG.randbytes(700) + bytes(700) for _ in range(4_500))
PARTS = [CONTENT[at : at + 200_000] for at in range(0, len(CONTENT), 200_000)]

every_format = pytest.mark.parametrize("name", ENCODERS)


@pytest.fixture(scope="module")
def files():
    """Return the encoded content by the encoder's name."""
    return {name: encode(PARTS) for name, encode in ENCODERS.items()}


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def null():
    fd = os.open(os.devnull, os.O_WRONLY)
    yield fd
    os.close(fd)


def fresh_path(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


class TestFiles:
    @every_format
    @pytest.mark.parametrize("left", [0, 9, 1_000, -10_000])
    def test_truncated_after_opening(self, name, left, files, tmp_path):
        """The error says that the file ends too early."""
        path = fresh_path(tmp_path, files[name])
        size = path.stat().st_size
        with host.open(path, threads=3) as container:
            os.truncate(path, left % size)
            with pytest.raises(GpuloadError, match=r"ends (here|inside)") as caught:
                container.load()
            assert str(path) in str(caught.value)

    @every_format
    def test_truncated_while_it_is_verified(self, name, files, tmp_path):
        path = fresh_path(tmp_path, files[name])

        source = Waiting(path)

        def progress(raw, stored):
            os.truncate(path, 2_000)
            source.go_on.set()

        with host.open(source, threads=2) as container:
            source.armed = True
            try:
                failures = container.verify(progress=progress).failures
            except GpuloadError as error:
                failures = [error]
        assert failures

    def test_removed_after_opening(self, tmp_path, files):
        """An open file lives on."""
        path = fresh_path(tmp_path, files["bgzf"])
        with host.open(path) as container:
            path.unlink()
            assert bytes(container.load()) == CONTENT

    def test_grown_after_opening(self, tmp_path, files):
        """What was there when it was opened is the file."""
        path = fresh_path(tmp_path, files["gzip members"])
        with host.open(path) as container:
            with path.open("ab") as file:
                file.write(b"more")
            assert bytes(container.load()) == CONTENT

    @pytest.mark.parametrize("call", [host.open, host.load])
    def test_absent(self, call, tmp_path):
        with pytest.raises(FileNotFoundError, match="absent"):
            call(tmp_path / "absent.gz")

    @pytest.mark.parametrize("call", [host.open, host.load])
    def test_directory(self, call, tmp_path):
        with pytest.raises(IsADirectoryError, match=tmp_path.name):
            call(tmp_path)

    def test_path_through_a_file(self, tmp_path, files):
        path = fresh_path(tmp_path, files["bgzf"])
        with pytest.raises(NotADirectoryError):
            host.open(path / "inside")

    def test_no_permission(self, tmp_path, files):
        path = fresh_path(tmp_path, files["bgzf"])
        path.chmod(0)
        tmp_path.chmod(0o755)
        script = """
            import os, sys, gpuload.loader
            from tests.helpers import host
            if os.geteuid() == 0:
                os.seteuid(65534)  # root may read anything
            try:
                host.open(sys.argv[1])
            except PermissionError as error:
                print(error.filename)
        """
        assert fresh_python(dedented(script), path) == str(path)


def dedented(script: str) -> str:
    return "\n".join(line[12:] for line in script.splitlines())


class Failing(BytesSource):
    """Bytes that cannot be read any more once `left` bytes were read."""

    # Every look is a read.
    peek, resident = Source.peek, Source.resident

    def __init__(self, data: bytes, error: OSError) -> None:
        super().__init__(data)
        self.left = len(data) * 10
        self.error = error

    def readinto(self, offset, view):
        self.left -= len(view)
        if self.left < 0:
            raise self.error
        return super().readinto(offset, view)


class TestReading:
    @every_format
    @pytest.mark.parametrize("threads", [1, 4])
    @pytest.mark.parametrize("left", [0, 50_000, 2_000_000])
    def test_fails_midway(self, name, threads, left, files, null):
        """The error of the source comes out as it is."""
        error = OSError(errno.EIO, "the disk is broken")
        source = Failing(files[name], error)
        with host.open(source, threads=threads) as container:
            ways = (container.load, container.verify, lambda: container.write_to(null))
            for way in ways:
                source.left = left
                with pytest.raises(OSError, match="the disk is broken") as caught:
                    way()
                assert caught.value is error

    @every_format
    def test_fails_while_opening(self, name, files):
        source = Failing(files[name], OSError(errno.EIO, "the disk is broken"))
        source.left = 3
        with pytest.raises(OSError, match="the disk is broken"):
            host.open(source)

    @every_format
    def test_works_again_afterwards(self, name, files):
        source = Failing(files[name], OSError(errno.EIO, "the disk is broken"))
        with host.open(source, threads=3) as container:
            source.left = 1_000
            with pytest.raises(OSError, match="broken"):
                container.load()
            source.left = 1 << 30
            assert bytes(container.load()) == CONTENT

    @every_format
    def test_source_that_gives_too_little(self, name, files):
        """A source that breaks its promise is a file that ends early."""

        class Short(BytesSource):
            armed = False
            peek, resident = Source.peek, Source.resident

            def readinto(self, offset, view):
                return super().readinto(offset, view[:50] if self.armed else view)

        source = Short(files[name])
        with host.open(source, threads=2) as container:
            source.armed = True
            try:
                outcome = bytes(container.load())
            except GpuloadError:
                outcome = CONTENT
        assert outcome == CONTENT


class TestWriting:
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    @pytest.mark.parametrize("threads", [1, 4])
    @every_format
    def test_disk_full(self, name, threads, files):
        fd = os.open("/dev/full", os.O_WRONLY)
        try:
            with (
                host.open(files[name], threads=threads) as container,
                pytest.raises(OSError, match="No space left") as caught,
            ):
                container.write_to(fd)
        finally:
            os.close(fd)
        assert caught.value.errno == errno.ENOSPC

    @pytest.mark.parametrize("name", ["gzip members", "bgzf", "lz4 linked blocks"])
    @pytest.mark.parametrize("positional", [True, False])
    def test_file_that_may_not_grow(self, name, positional, files, tmp_path):
        """RLIMIT_FSIZE; the writes that it cuts short are no success."""
        script = """
            import os, resource, sys, threading
            from tests.helpers import host
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
            fd = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
            with host.open(sys.argv[1], threads=3) as container:
                try:
                    container.write_to(fd, positional=sys.argv[3] == "True")
                except OSError as error:
                    print(error.errno, threading.active_count(), os.fstat(fd).st_size <= 1_000_000)
        """
        path = fresh_path(tmp_path, files[name])
        printed = fresh_python(dedented(script), path, tmp_path / "out", positional)
        assert printed == f"{errno.EFBIG} 1 True"

    @every_format
    def test_reader_of_the_pipe_is_gone(self, name, files):
        readable, writable = os.pipe()
        os.close(readable)
        try:
            with host.open(files[name], threads=3) as container, pytest.raises(BrokenPipeError):
                container.write_to(writable)
        finally:
            os.close(writable)

    @pytest.mark.parametrize("positional", [True, False])
    def test_descriptor_that_cannot_be_written(self, positional, files, tmp_path):
        path = fresh_path(tmp_path, b"")
        fd = os.open(path, os.O_RDONLY)
        try:
            with (
                host.open(files["bgzf"]) as container,
                pytest.raises(OSError, match="Bad file descriptor"),
            ):
                container.write_to(fd, positional=positional)
        finally:
            os.close(fd)

    def test_pipe_written_at_offsets(self, files):
        readable, writable = os.pipe()
        try:
            with (
                host.open(files["bgzf"]) as container,
                pytest.raises(OSError, match="Illegal seek"),
            ):
                container.write_to(writable, positional=True)
        finally:
            os.close(readable)
            os.close(writable)


class TestGivingUp:
    @every_format
    @pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
    def test_from_progress(self, name, error, files, null):
        """What the progress callback raises ends the run; its threads have ended by then."""
        for way in ("verify", "write_to"):
            source = Waiting(files[name])

            def give_up(raw, stored, source=source):
                source.go_on.set()
                raise error

            with host.open(source, threads=3) as container:
                source.armed = True
                arguments = (null,) if way == "write_to" else ()
                with pytest.raises(error):
                    getattr(container, way)(*arguments, progress=give_up)

    @pytest.mark.parametrize("name", ["gzip members", "bgzf", "lz4 linked blocks", "zstd blocks"])
    def test_ctrl_c(self, name, files, tmp_path):
        """A signal while decoding ends the process in good order, with no thread left."""
        script = """
            import os, signal, sys, threading
            from tests.helpers import host
            from tests.helpers.loading import Waiting
            source = Waiting(sys.argv[1])
            with host.open(source, threads=3) as container:
                source.armed = True
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                threading.Timer(0.6, source.go_on.set).start()
                try:
                    container.verify()
                except KeyboardInterrupt:
                    left = [t.name for t in threading.enumerate() if "gpuload" in t.name]
                    print("given up", left)
        """
        path = fresh_path(tmp_path, files[name])
        assert fresh_python(dedented(script), path, timeout=60) == "given up []"

    @pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="needs F_GETPIPE_SZ")
    @pytest.mark.parametrize("name", ["gzip members", "bgzf"])
    def test_ctrl_c_while_the_pipe_is_full(self, name, files, tmp_path):
        """A reader that does not read (a pager, say) must not keep Ctrl-C from working."""
        script = """
            import sys, gpuload
            with gpuload.open(sys.argv[1], threads=3, device="cpu") as container:
                container.write_to(1)
        """
        path = fresh_path(tmp_path, files[name])
        command = [sys.executable, "-c", dedented(script), str(path)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **pipes) as process:
            try:
                wait_until_full(process.stdout)
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=15) != 0
            finally:
                process.kill()


def wait_until_full(pipe) -> None:
    """Return once a pipe holds all that it can."""
    capacity = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    for _ in range(600):
        if array.array("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0] == capacity:
            return
        time.sleep(0.05)
    pytest.fail("nothing more was written, although the pipe is not full")


class TestThreads:
    @every_format
    @pytest.mark.parametrize("allowed", [0, 1, 2])
    def test_that_cannot_be_started(self, name, allowed, files, monkeypatch):
        """A system that gives no more threads: an error or the bytes, but no hang."""
        start, started = threading.Thread.start, []

        def refuse(thread):
            if len(started) >= allowed:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with host.open(files[name], threads=3) as container:
            try:
                outcome = bytes(container.load())
            except (RuntimeError, GpuloadError):
                outcome = CONTENT
        assert outcome == CONTENT


class TestLeaks:
    def test_of_200_loads(self, tmp_path):
        """Neither good nor broken files nor failing opens leave a descriptor or a thread."""
        paths = []
        for number, encode in enumerate(ENCODERS.values()):
            file = encode([part[:20_000] for part in PARTS])
            for kind, data in (("good", file), ("bad", file[:-40])):
                path = tmp_path / f"{kind}{number}"
                path.write_bytes(data)
                paths.append(path)
        (tmp_path / "none").write_bytes(b"nothing that is known")
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        for number in range(200):
            path = [*paths, tmp_path / "none"][number % (len(paths) + 1)]
            with contextlib.suppress(GpuloadError, Warning):
                host.load(path, threads=2, max_output=None if number % 3 else 1_000)
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before

    def test_of_urls(self, files):
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe_file("/leaks.lz4", files["lz4 frames"])
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            host.open("memory://leaks.lz4").close()
        assert len(os.listdir("/proc/self/fd")) == before
