"""Disks that are full, directories that are read-only, files that vanish."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

resource = pytest.importorskip("resource", reason="needs resource limits")

#: Less than the content of the file at hand.
SMALL = 100 << 10


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, SMALL))


@pytest.fixture
def tiny_disk(tmp_path) -> Iterator[Path]:
    """A file system of 100 KiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("needs the right to mount a tmpfs")
    place = tmp_path / "disk"
    place.mkdir()
    words = [mount, "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", place]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run([umount, place], check=True)


def check_failed_cleanly(result, target: Path, reason: bytes, *, old: bytes | None) -> None:
    assert result.returncode == 1
    assert result.stderr == b"gpuload: error: %s: %s\n" % (os.fsencode(target), reason)
    left = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    assert left == ({} if old is None else {target.name: old})


@pytest.mark.parametrize("old", [None, b"old"])
def test_file_size_limit(process, lz4_file, tmp_path, old: bytes | None) -> None:
    target = tmp_path / "out" / "data"
    target.parent.mkdir()
    if old is not None:
        target.write_bytes(old)
    result = process("decompress", lz4_file.path, "-f", "-o", target, preexec_fn=limit_file_size)
    check_failed_cleanly(result, target, b"File too large", old=old)


def test_no_room_for_the_copy_of_a_pipe(process, tmp_path) -> None:
    # A copy goes to a temporary file once it is larger than 32 MiB.
    words = ("decompress", "-", "-o", tmp_path / "out")
    result = process(*words, input=bytes(33 << 20), preexec_fn=limit_file_size)
    assert result.returncode == 1
    expected = (
        rb"gpuload: error: <stdin>: byte \d+: its copy in /.* cannot be written: "
        rb"File too large; set TMPDIR to one with more room\n"
    )
    assert re.fullmatch(expected, result.stderr)
    assert os.listdir(tmp_path) == []


def test_full_disk(process, lz4_file, tiny_disk) -> None:
    target = tiny_disk / "data"
    target.write_bytes(b"old")
    result = process("decompress", lz4_file.path, "-f", "-o", target)
    check_failed_cleanly(result, target, b"No space left on device", old=b"old")


def test_full_disk_while_compressing(process, tiny_disk, tmp_path) -> None:
    source = tmp_path / "noise"
    source.write_bytes(os.urandom(200 << 10))
    target = tiny_disk / "noise.lz4"
    result = process("compress", source, "-o", target)
    check_failed_cleanly(result, target, b"No space left on device", old=None)


def test_full_disk_keeps_going(process, lz4_file, tiny_disk, tmp_path) -> None:
    small = tmp_path / "small.lz4"
    small.write_bytes(bytes.fromhex("04224d1860408200000000"))  # a frame without blocks
    result = process("decompress", "-k", lz4_file.path, small, "--output-dir", tiny_disk)
    assert result.returncode == 1
    assert os.listdir(tiny_disk) == ["small"]


def test_read_only_directory(process, lz4_file, tmp_path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    target = tmp_path / "out" / "data"
    target.parent.mkdir(mode=0o555)
    result = process("decompress", lz4_file.path, "-o", target)
    check_failed_cleanly(result, target, b"Permission denied", old=None)


def test_unreadable_file(process, lz4_file) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read anything")
    lz4_file.path.chmod(0)
    result = process("verify", lz4_file.path)
    assert result.returncode == 1
    assert result.stderr == f"gpuload: error: {lz4_file.path}: Permission denied\n".encode()


def test_output_directory_that_is_missing(process, lz4_file, tmp_path) -> None:
    target = tmp_path / "none" / "data"
    result = process("decompress", lz4_file.path, "-o", target)
    assert result.returncode == 1
    assert result.stderr == f"gpuload: error: {target}: No such file or directory\n".encode()


@pytest.mark.parametrize("name", ["inspect", "verify", "decompress"])
def test_vanished_file(process, tmp_path, name: str) -> None:
    link = tmp_path / "gone.gz"
    link.symlink_to("nowhere")
    result = process(name, link)
    assert result.returncode == 1
    assert result.stderr == f"gpuload: error: {link}: No such file or directory\n".encode()
