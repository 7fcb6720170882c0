"""Runs of the command line, in this process and in one of its own, and files to run it on."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lz4.frame
import pytest
from click.testing import CliRunner
from gpuload_cli import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

#: Length of an LZ4 frame's header without content size and dictionary ID.
LZ4_HEADER = 7


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command in this process; what is not an exit of the command is raised."""

    def invoke(*args: object, stdin: bytes | None = None) -> Result:
        words = [os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args]
        return CliRunner().invoke(cli, words, input=stdin, catch_exceptions=False)

    return invoke


@pytest.fixture
def command() -> Callable[..., list[str]]:
    """Return the argument list that runs a command in a process of its own."""

    def build(*args: object) -> list[str]:
        return [sys.executable, "-m", "gpuload", *(os.fspath(arg) for arg in args)]

    return build


@pytest.fixture
def process(command: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run a command in a process of its own, to its end."""

    def execute(*args: object, **options: object) -> subprocess.CompletedProcess[bytes]:
        streams = {} if "stdin" in options or "input" in options else {"stdin": subprocess.DEVNULL}
        for name in ("stdout", "stderr"):
            options.setdefault(name, subprocess.PIPE)
        return subprocess.run(command(*args), timeout=60, check=False, **streams, **options)

    return execute


@pytest.fixture(scope="session")
def text() -> bytes:
    """Return 300,000 bytes of lines that compress a little."""
    lines = (f"line {number} of {number * number % 9973}\n" for number in range(20_000))
    return "".join(lines).encode()[:300_000]


@dataclass
class Lz4File:
    """An LZ4 frame of independent 64 KiB blocks with block checksums, and its bytes."""

    path: Path
    content: bytes

    def blocks(self) -> list[tuple[int, int]]:
        """Return payload offset and size of every block (LZ4 frame format, Data Blocks)."""
        found, at = [], LZ4_HEADER
        while size := struct.unpack_from("<I", self.path.read_bytes(), at)[0] & 0x7FFFFFFF:
            found.append((at + 4, size))
            at += 4 + size + 4
        return found

    def damage(self, *blocks: int) -> None:
        """Flip a bit in the checksums behind these blocks, so that payloads still decode."""
        data = bytearray(self.path.read_bytes())
        for block in blocks:
            offset, size = self.blocks()[block]
            data[offset + size] ^= 1
        self.path.write_bytes(data)


@pytest.fixture
def lz4_file(tmp_path: Path, text: bytes) -> Lz4File:
    path = tmp_path / "data.lz4"
    frame = lz4.frame.compress(
        text,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        block_checksum=True,
        store_size=False,
    )
    path.write_bytes(frame)
    return Lz4File(path, text)


@pytest.fixture
def gzip_file(tmp_path: Path, text: bytes) -> Path:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(text, mtime=0))
    return path
