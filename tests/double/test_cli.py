"""The command line on the double: engines, failures of an engine, and what doctor lists."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import cramjam
import lz4.block
import pytest
import zstandard
from click.testing import CliRunner
from gpuload_cli import cli

from tests.helpers.encoders import ENCODERS
from tests.helpers.fakecuda import Code
from tests.helpers.handmade import (
    BGZF_EOF,
    INDEPENDENT,
    SIZE,
    SNAPPY_IDENTIFIER,
    V1,
    bgzf_block,
    lz4_block,
    lz4_frame,
    snappy_data,
    varint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

#: Three chunks; the second is noise, which no encoder but Snappy's stores as it is.
PARTS = [
    b"".join(b"%d green bottles\n" % number for number in range(2000)),
    random.Random(3).randbytes(20_000) + bytes(20_000),
    b"and nothing at all " * 1000,
]
CONTENT = b"".join(PARTS)
BAD = 1


def _lz4(parts: list[bytes]) -> bytes:
    blocks = (lz4_block(lz4.block.compress(part, store_size=False)) for part in parts)
    return lz4_frame(*blocks, flags=V1 | INDEPENDENT | SIZE, size=len(b"".join(parts)))


def _snappy(parts: list[bytes]) -> bytes:
    def elements(part: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(part))[len(varint(len(part))) :]

    return SNAPPY_IDENTIFIER + b"".join(snappy_data(p, elements=elements(p)) for p in parts)


def _bgzf(parts: list[bytes]) -> bytes:
    return b"".join(map(bgzf_block, parts)) + BGZF_EOF


FORMATS = {"lz4": _lz4, "snappy": _snappy, "bgzf": _bgzf}

every_format = pytest.mark.parametrize("name", FORMATS)


def run(*args: object) -> Result:
    words = [os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


@pytest.fixture
def make(tmp_path: Path):
    """Write a file of one of the formats."""

    def write(name: str, parts: list[bytes] = PARTS) -> Path:
        path = tmp_path / f"data.{name}"
        path.write_bytes(FORMATS[name](parts))
        return path

    return write
