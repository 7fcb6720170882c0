"""Objects of a web server that fails in every way: the right bytes, or an error that says why."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import lz4.frame
import pytest

import gpuload
from gpuload.containers.prospect import prospect
from gpuload.errors import RemoteError
from gpuload.options import Options
from gpuload.sources import attempts, open_source, remote
from tests.helpers.object_server import FAULTS, object_server

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")

MIB = 1 << 20
_RNG = random.Random(5)
CONTENT = b"".join(_RNG.randbytes(700) + bytes(700) for _ in range(4_500))
#: More than three blocks of a megabyte.
FILE = lz4.frame.compress(CONTENT, block_linked=False, block_size=4, content_checksum=True)
#: Faults that another attempt may not meet again.
PASSING = [
    "stall",
    "stall midway",
    "reset",
    "reset midway",
    "cut off",
    "short",
    "408",
    "429",
    "500",
    "503",
]
TIMED_OUT = ("stall", "stall midway", "trickle")
#: Answers that are not what was asked for.
WRONG = ("whole", "shifted", "unnamed", "encoded", "endless")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Let pauses and attempts be short."""
    monkeypatch.setattr(attempts, "PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(remote, "LOWEST_SPEED", 16 * MIB)
    monkeypatch.setenv("GPULOAD_REMOTE_TIMEOUT", "0.4")


@pytest.fixture(scope="module")
def whole_module_server():
    with object_server() as server:
        yield server
    # The file system, which fsspec keeps, has connections to it.
    files = fsspec.filesystem("http")
    fsspec.asyn.sync(files.loop, files._session.close)
    type(files).clear_instance_cache()


@pytest.fixture
def server(whole_module_server):
    """Return the server, with no faults and no requests counted."""
    server = whole_module_server
    for part in (server.objects, server.etags, server.headers, server.requests, server.faults):
        part.clear()
    server.closing.clear()
    server.stated = None
    yield server
    server.closing.set()


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("gpuload")] == []


def load(url, **options):
    return bytes(gpuload.load(url, device="cpu", **options))


def opened(url, **options):
    return gpuload.open(url, device="cpu", **options)


class TestPassingFaults:
    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("fault", PASSING)
    def test_while_opening(self, fault, times, server):
        url = server.put(FILE)
        server.fail(fault, times)
        assert load(url) == CONTENT
        assert not server.faults

    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("fault", PASSING)
    def test_while_loading(self, fault, times, server, monkeypatch):
        url = server.put(FILE)
        with opened(url, threads=3) as container:
            forget(container)
            server.fail(fault, times)
            assert bytes(container.load()) == CONTENT
        assert not server.faults

    @pytest.mark.parametrize("fault", ["stall", "reset", "500"])
    def test_of_the_size(self, fault, server):
        """The first request is HEAD; of its failure fsspec makes a GET of no range."""
        url = server.put(FILE)
        server.fail(fault, method="HEAD")
        server.fail(fault, method="GET")
        assert load(url) == CONTENT
        assert not server.faults


def forget(container):
    """Let a container read anew what opening it read."""
    container._index.source._blocks.clear()


class TestLastingFaults:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        """Let there be two attempts only, since the tests wait for all of them."""
        monkeypatch.setattr(attempts, "PAUSES", (0.01,))

    @pytest.mark.parametrize("fault", [*PASSING, "trickle"])
    def test_while_opening(self, fault, server):
        url = server.put(FILE)
        server.fail(fault, 100)
        for call in (load, opened):
            with pytest.raises(RemoteError) as caught:
                call(url)
            self.check(caught.value, fault, url)
        server.faults.clear()
        server.closing.set()
        assert load(url) == CONTENT

    @pytest.mark.parametrize("fault", [*PASSING, "trickle"])
    def test_while_loading(self, fault, server):
        url = server.put(FILE)
        with opened(url, threads=3) as container:
            forget(container)
            server.fail(fault, 100)
            with pytest.raises(RemoteError) as caught:
                container.load()
            self.check(caught.value, fault, url)
            server.faults.clear()
            server.closing.set()
            assert bytes(container.load()) == CONTENT

    def check(self, error, fault, url):
        text = str(error)
        assert re.match(rf"{url}: byte \d+: ", text)
        assert re.search(r"\(2 attempts in \d+\.\d s\); ", text)
        reason = {"short": r"only \d+ of \d+ bytes came"}.get(fault, "")
        reason = f"the server answers {fault}" if fault.isdecimal() else reason
        assert re.search("no answer" if fault in TIMED_OUT else reason, text)
        assert ("GPULOAD_REMOTE_TIMEOUT" in text) == (fault in TIMED_OUT)

    def test_of_the_size(self, server):
        url = server.put(FILE)
        for _ in range(10):
            server.fail("503", method="HEAD")
            server.fail("503", method="GET")
        with pytest.raises(RemoteError, match=f"{url}: the server answers 503 .*2 attempts"):
            load(url)


class TestFinalFaults:
    @pytest.mark.parametrize(
        ("status", "kind"), [(404, FileNotFoundError), (403, PermissionError), (400, OSError)]
    )
    def test_status(self, status, kind, server):
        url = server.put(FILE)
        server.fail(str(status), 10)
        with pytest.raises(kind, match=f"the server answers {status}|No such file") as caught:
            load(url)
        assert type(caught.value) is kind
        assert caught.value.filename == url
        assert len(server.ranges) == 1

    def test_ranges_that_are_ignored(self, server):
        url = server.put(FILE)
        server.fail("whole", 100)
        with pytest.raises(RemoteError) as caught:
            load(url)
        message = f"{url}: byte 0: {MIB} bytes were asked for, {len(FILE)} came"
        assert str(caught.value).startswith(message)
        assert "download the file" in str(caught.value)
        assert len(server.ranges) == 1

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("shifted", f"the bytes 0-{MIB - 1} were asked for, 1-{MIB} came"),
            ("unnamed", "no range that the server names came"),
            ("encoded", r"encoded \(gzip\), although that was not asked for"),
        ],
    )
    def test_parts_that_were_not_asked_for(self, fault, message, server):
        """The range, and how it is sent (RFC 9110, sections 14.4 and 15.3.7)."""
        url = server.put(FILE)
        server.fail(fault, 100)
        with pytest.raises(RemoteError, match=message) as caught:
            load(url)
        assert "download the file" in str(caught.value)
        assert len(server.ranges) == 1

    def test_a_part_without_an_end(self, server):
        """No more of it is read than the part has, and one byte."""
        url = server.put(FILE)
        server.fail("endless", 100)
        with pytest.raises(RemoteError, match=f"{MIB} bytes were asked for, more came"):
            load(url)
        assert len(server.ranges) == 1

    def test_small_object_needs_no_ranges(self, server):
        url = server.put(lz4.frame.compress(b"small"))
        server.fail("whole", 100)
        assert load(url) == b"small"

    def test_ranges_that_are_refused_beforehand(self, server):
        """Accept-Ranges: none (RFC 9110, section 14.3); the object is copied first."""
        url = server.put(FILE)
        server.headers["Accept-Ranges"] = "none"
        server.fail("whole", 100)
        assert load(url) == CONTENT
        assert server.ranges == []

    @pytest.mark.parametrize("fault", ["stall", "stall midway", "reset midway", "cut off", "500"])
    def test_faults_of_a_copy(self, fault, server):
        url = server.put(FILE)
        server.headers["Accept-Ranges"] = "none"
        server.fail(fault, 100)
        with pytest.raises(OSError, match=url):
            load(url)

    @pytest.mark.parametrize("more", [5, 1, -9, 100 - len(FILE), -len(FILE)])
    def test_object_of_another_size(self, more, server):
        change = (FILE + b"bytes")[: len(FILE) + more]
        url = server.put(FILE)
        with opened(url, threads=1) as container:
            forget(container)
            server.put(change)
            with pytest.raises(RemoteError, match="changed while it was read") as caught:
                container.load()
        sizes = f"{len(FILE)} bytes long when opened and is {len(change)} bytes long now"
        assert sizes in str(caught.value)
        assert "load it again" in str(caught.value)

    @pytest.mark.parametrize(
        "tags", [('"one"', '"two"'), ('W/"one"', 'W/"two"'), ('W/"one"', '"two"')]
    )
    def test_object_of_another_etag(self, tags, server):
        """Weak ones that differ are of other content, too (RFC 9110, section 8.8.3.2)."""
        url = server.put(FILE)
        server.etags["/object"] = tags[0]
        with opened(url) as container:
            forget(container)
            server.etags["/object"] = tags[1]
            with pytest.raises(RemoteError, match="changed while it was read") as caught:
                container.load()
        assert f"ETag was {tags[0]} when it was opened and is {tags[1]} now" in str(caught.value)

    @pytest.mark.parametrize(
        "tags", [("", '"two"'), ('"one"', '"one"'), ('W/"one"', 'W/"one"'), ('"one"', 'W/"one"')]
    )
    def test_etags_that_tell_nothing(self, tags, server):
        """A weak one and a strong one with the same text are no different objects."""
        url = server.put(FILE)
        server.etags["/object"] = tags[0]
        with opened(url) as container:
            forget(container)
            server.etags["/object"] = tags[1]
            assert bytes(container.load()) == CONTENT


class TestRequests:
    def test_of_an_index(self, server):
        """About one a megabyte, and not one a block."""
        url = server.put(FILE)
        with opened(url) as container:
            assert container.chunks.size > 90
            assert len(server.ranges) == -(-len(FILE) // MIB)
            # What is kept need not be read again.
            assert bytes(container.load()) == CONTENT
            assert len(server.ranges) == -(-len(FILE) // MIB)

    def test_of_a_large_read(self, server):
        content = random.Random(6).randbytes(20 * MIB)
        with open_source(server.put(content)) as source:
            buffer = bytearray(20 * MIB - 7)
            source.read_exact(5, memoryview(buffer))
        assert buffer == content[5:-2]
        assert 2 <= len(server.ranges) <= 20


class TestGivingUp:
    def test_cancelled_load(self, server, monkeypatch):
        monkeypatch.setenv("GPULOAD_REMOTE_TIMEOUT", "60")
        url, caught = server.put(FILE), []
        with opened(url, threads=3) as container:
            forget(container)
            server.fail("stall", 100)

            def work():
                try:
                    container.load()
                except RemoteError as error:
                    caught.append(str(error))

            thread = threading.Thread(target=work)
            thread.start()
            while thread.is_alive():
                container._index.source.cancel()
                thread.join(0.05)
            assert "the read was cancelled" in caught[0]
            server.faults.clear()
            assert bytes(container.load()) == CONTENT

    def test_ctrl_c_while_opening(self, server):
        """It does not wait for an answer."""
        url = server.put(FILE)
        server.fail("stall", 100)
        script = "import sys, gpuload; gpuload.open(sys.argv[1], device='cpu')"
        environment = os.environ | {"GPULOAD_REMOTE_TIMEOUT": "600"}
        command = [sys.executable, "-c", script, url]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            try:
                while not server.ranges and process.poll() is None:
                    server.closing.wait(0.02)
                process.send_signal(signal.SIGINT)
                _, text = process.communicate(timeout=30)
            finally:
                process.kill()
        assert text.decode().splitlines()[-1] == "KeyboardInterrupt"


def test_every_fault_is_tested():
    assert set(FAULTS) <= {*PASSING, *TIMED_OUT, *WRONG}


def test_cancelled_while_it_is_opened(server, monkeypatch):
    monkeypatch.setenv("GPULOAD_REMOTE_TIMEOUT", "30")
    url = server.put(FILE)
    server.fail("stall", 100, "HEAD")
    load = gpuload.load_async(url, device="cpu")
    while not server.requests:
        time.sleep(0.01)
    load.cancel()
    with pytest.raises(CancelledError):
        load.result(10)


class TestCancelledCopies:
    """Objects that the server sends whole only are copied first."""

    def test_that_stall(self, server, monkeypatch):
        monkeypatch.setenv("GPULOAD_REMOTE_TIMEOUT", "30")
        url = server.put(FILE)
        server.headers["Accept-Ranges"] = "none"
        server.fail("stall midway", 100)
        load = gpuload.load_async(url, device="cpu")
        while ("GET", "") not in server.requests:
            time.sleep(0.01)
        load.cancel()
        with pytest.raises(CancelledError):
            load.result(10)
        server.closing.set()
        for thread in threading.enumerate():
            if thread.name == "gpuload-remote":  # which was left behind
                thread.join(10)

    def test_said_without_a_load(self, server):
        """What the reads of a source that is not there yet say."""
        url = server.put(FILE)
        server.headers["Accept-Ranges"] = "none"
        with pytest.raises(RemoteError, match=f"{url}: the read was cancelled"):
            open_source(url, lambda waiting: waiting.cancel())


def test_abandoned_source_reads_no_more(server):
    """Cancelling ends the reads under way, abandoning those that begin later, too."""
    with open_source(server.put(FILE)) as source:
        source.cancel()
        assert source.peek(0, 4) == FILE[:4]
        source.abandon()
        with pytest.raises(RemoteError, match="the read was cancelled"):
            source.peek(MIB, 4)
    assert server.ranges[0] == f"bytes=0-{MIB - 1}"


def test_dead_server_is_waited_for_once(server, monkeypatch):
    """What looks at the first bytes leaves it to nobody to find again that they do not come."""
    monkeypatch.setattr(attempts, "PAUSES", (0.01,))
    with open_source(server.put(FILE)) as source:
        server.fail("503", 100)
        with pytest.raises(RemoteError, match="2 attempts"):
            prospect(source, Options())
    assert server.ranges.count(f"bytes=0-{MIB - 1}") == 2


@pytest.mark.parametrize("size", [10**18, 2**63, 10**19, 10**30])
def test_size_that_no_object_has(size, server):
    """Whatever a server states is a number that an error can speak of."""
    url = server.put(FILE)
    server.stated = size
    with pytest.raises(OSError, match=url):
        load(url)
