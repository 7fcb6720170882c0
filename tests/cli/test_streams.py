"""Standard streams, pipes, terminals and signals, each in a process of its own."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import pytest
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pty = pytest.importorskip("pty", reason="needs pseudo-terminals")


@contextlib.contextmanager
def started(words: list[str], **streams: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process beside the test; at the end it is gone, whatever went wrong."""
    with subprocess.Popen(words, stderr=subprocess.PIPE, **streams) as child:
        try:
            yield child
        finally:
            child.kill()


def end(child: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Wait for a process; return its status and what it said, without the empty line of ^C."""
    timer = threading.Timer(60, child.kill)
    timer.start()
    message = child.stderr.read()
    status = child.wait()
    timer.cancel()
    return status, message.lstrip(b"\n")


def test_stdout(process, lz4_file) -> None:
    result = process("decompress", "-c", lz4_file.path)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == lz4_file.content


def test_stdout_concatenates_in_order(process, lz4_file, tmp_path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"first "))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b" last"))
    result = process("decompress", "-c", tmp_path / "a.gz", lz4_file.path, tmp_path / "b.gz")
    assert result.stdout == b"first " + lz4_file.content + b" last"


def test_stdout_that_is_appended_to(process, lz4_file, tmp_path) -> None:
    (tmp_path / "out").write_bytes(b"old ")
    with (tmp_path / "out").open("ab") as out:
        assert process("decompress", "-c", lz4_file.path, stdout=out).returncode == 0
    assert (tmp_path / "out").read_bytes() == b"old " + lz4_file.content


def test_stdout_that_is_the_input(process, lz4_file) -> None:
    before = lz4_file.path.read_bytes()
    with lz4_file.path.open("ab") as out:
        result = process("decompress", "-c", lz4_file.path, stdout=out)
    assert result.returncode == 2
    assert b"is the same file as the input" in result.stderr
    assert lz4_file.path.read_bytes() == before


def test_json_goes_to_stderr_when_bytes_go_to_stdout(process, lz4_file) -> None:
    result = process("decompress", "-c", "--json", lz4_file.path)
    assert result.stdout == lz4_file.content
    assert json.loads(result.stderr)["raw_size"] == len(lz4_file.content)


def test_pipe_to_pipe(process, lz4_file) -> None:
    result = process("decompress", "-", input=lz4_file.path.read_bytes())
    assert (result.returncode, result.stdout) == (0, lz4_file.content)


def test_redirected_file(process, lz4_file) -> None:
    with lz4_file.path.open("rb") as file:
        result = process("decompress", "-", stdin=file)
    assert (result.returncode, result.stdout) == (0, lz4_file.content)


def test_redirected_file_that_was_partly_read(process, lz4_file, tmp_path) -> None:
    path = tmp_path / "prefixed"
    path.write_bytes(b"prefix" + lz4_file.path.read_bytes())
    with path.open("rb", buffering=0) as file:
        file.read(6)
        result = process("decompress", "-", stdin=file)
    assert (result.returncode, result.stdout) == (0, lz4_file.content)


def test_closed_stdin(command) -> None:
    words = subprocess.list2cmdline(command("decompress", "-"))
    result = subprocess.run(f"{words} <&-", shell=True, capture_output=True, check=False)
    assert result.returncode == 1
    assert result.stderr == b"gpuload: error: <stdin>: standard input is closed\n"


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    near, far = pty.openpty()
    try:
        yield near, far
    finally:
        os.close(near)
        os.close(far)


def test_terminal_as_stdout_is_refused(process, lz4_file) -> None:
    with terminal() as (_, far):
        result = process("decompress", "-c", lz4_file.path, stdout=far)
    assert result.returncode == 2
    assert b"not writing bytes to a terminal" in result.stderr


def test_terminal_as_stdin_is_refused(process) -> None:
    with terminal() as (_, far):
        result = process("decompress", "-", stdin=far)
    assert result.returncode == 2
    assert b"standard input is a terminal" in result.stderr


def test_terminal_as_stderr(process, lz4_file, tmp_path) -> None:
    with terminal() as (near, far):
        result = process("decompress", lz4_file.path, "-o", tmp_path / "out", stderr=far)
        os.write(far, b"end")
        shown = os.read(near, 1 << 16)
    assert result.returncode == 0
    # Whatever was drawn is wiped.
    assert shown.rsplit(b"\r", 1)[-1] == b"end"


@pytest.mark.parametrize("words", [["decompress", "-c"], ["inspect", "--chunks"]])
def test_broken_pipe_is_quiet(command, tmp_path, words: list[str]) -> None:
    path = tmp_path / "long.lz4"
    lz4frame = pytest.importorskip("lz4.frame")
    path.write_bytes(lz4frame.compress(os.urandom(1 << 25), block_size=4, block_linked=False))
    with started(command(*words, path), stdout=subprocess.PIPE) as child:
        child.stdout.read(10)
        child.stdout.close()
        assert end(child) == (1, b"")


def test_broken_pipe_through_head(command, lz4_file) -> None:
    head = shutil.which("head")
    if head is None:
        pytest.skip("needs head")
    words = subprocess.list2cmdline(command("decompress", "-c", lz4_file.path))
    result = subprocess.run(f"{words} | {head} -n 1", shell=True, capture_output=True, check=True)
    assert result.stdout == lz4_file.content.split(b"\n", 1)[0] + b"\n"
    assert result.stderr == b""


@pytest.fixture
def endless(tmp_path) -> Path:
    """A file that takes minutes to decode: 64 GiB of zeros in frames of 128 MiB."""
    frame = zstandard.compress(bytes(128 << 20))
    path = tmp_path / "zeros.zst"
    path.write_bytes(frame * 512)
    return path


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
@pytest.mark.parametrize("old", [None, b"old"])
def test_signal_leaves_no_partial_file(command, endless, tmp_path, number, status, old) -> None:
    target = tmp_path / "out" / "zeros"
    target.parent.mkdir()
    if old is not None:
        target.write_bytes(old)
    words = command("decompress", endless, "-o", target, "-f", "--max-output", "unlimited")
    with started(words) as child:
        wait_for_output(target.parent, child)
        child.send_signal(number)
        assert end(child) == (status, b"gpuload: aborted\n" if status == 130 else b"")
    assert [path.read_bytes() for path in target.parent.iterdir()] == ([] if old is None else [old])


def wait_for_output(directory: Path, child: subprocess.Popen[bytes]) -> None:
    """Wait until a file with another name or new content is growing in a directory."""
    deadline = time.monotonic() + 30
    while child.poll() is None and time.monotonic() < deadline:
        if any(path.stat().st_size > 1 << 20 for path in directory.iterdir()):
            return
        time.sleep(0.01)
    pytest.fail("no output began to grow")


def test_ctrl_c_while_waiting_for_a_pipe(command, tmp_path) -> None:
    words = command("decompress", "-", "-o", tmp_path / "out")
    with started(words, stdin=subprocess.PIPE) as child:
        child.stdin.write(bytes(1 << 17))
        child.stdin.flush()  # the pipe holds less, so the process is reading by now
        child.send_signal(signal.SIGINT)
        assert end(child) == (130, b"gpuload: aborted\n")
    assert os.listdir(tmp_path) == []


def test_ignored_signal_stays_ignored(command, lz4_file, tmp_path) -> None:
    nohup = shutil.which("nohup")
    if nohup is None:
        pytest.skip("needs nohup")
    words = [nohup, *command("decompress", "-", "-o", tmp_path / "out")]
    with started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        data = lz4_file.path.read_bytes()
        child.stdin.write(data)
        child.stdin.write(b"\x50\x2a\x4d\x18" + (1 << 17).to_bytes(4, "little") + bytes(1 << 17))
        child.stdin.flush()
        child.send_signal(signal.SIGHUP)
        child.stdin.close()
        status, _ = end(child)
    assert status == 0
    assert (tmp_path / "out").read_bytes() == lz4_file.content


class TestSpecialTargets:
    def test_dev_null(self, process, lz4_file) -> None:
        before = os.stat("/dev/null")
        result = process("decompress", lz4_file.path, "-o", "/dev/null")
        assert (result.returncode, result.stderr) == (0, b"")
        after = os.stat("/dev/null")
        assert (after.st_ino, after.st_mode, after.st_rdev) == (
            before.st_ino,
            before.st_mode,
            before.st_rdev,
        )

    def test_fifo(self, process, lz4_file, tmp_path) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
        reader.start()
        result = process("decompress", lz4_file.path, "-o", fifo)
        reader.join()
        assert (result.returncode, result.stderr) == (0, b"")
        assert received == [lz4_file.content]
        assert fifo.is_fifo()

    def test_fifo_as_input(self, process, lz4_file, tmp_path) -> None:
        fifo = tmp_path / "fifo.lz4"
        os.mkfifo(fifo)
        data = lz4_file.path.read_bytes()
        writer = threading.Thread(target=lambda: fifo.write_bytes(data))
        writer.start()
        result = process("decompress", fifo, "-c")
        writer.join()
        assert (result.returncode, result.stdout) == (0, lz4_file.content)
