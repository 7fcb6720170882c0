"""What errors, sizes and names look like."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from gpuload_cli.messages import describe, human_size, json_line, plural, printable

from gpuload.errors import ChunkFailure, FormatError, MissingDependencyError, decompress_error


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain name", "plain name"),
        ("\xe9t\xe9", "\xe9t\xe9"),
        ("a\nb", r"a\nb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        (os.fsdecode(b"\xff\xfe"), r"\xff\xfe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 30, "1.0 GiB"),
        (2**63, "8.0 EiB"),
    ],
)
def test_human_size(size: int, text: str) -> None:
    assert human_size(size) == text


def test_plural() -> None:
    assert [plural(n, "chunk") for n in (0, 1, 2000)] == ["0 chunks", "1 chunk", "2,000 chunks"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOENT, "No such file", "x"), "x: No such file"),
        (OSError(errno.ENOENT, "No such file", b"x\xff"), "x\udcff: No such file"),
        (OSError(errno.ENOSPC, "No space left"), "in: No space left"),
        (OSError("s3: no credentials"), "in: s3: no credentials"),
        (OSError("in: no credentials"), "in: no credentials"),
        (
            FileExistsError(errno.EEXIST, "File exists", "x"),
            "x: File exists; --force overwrites it",
        ),
        (MemoryError(), "in: out of memory; lower --memory-limit or --threads"),
        (FormatError("bad magic", source="in", offset=7), "in: byte 7: bad magic"),
        (
            MissingDependencyError("fsspec", "remote", "reading x"),
            "in: reading x needs fsspec: pip install 'gpuload[remote]'",
        ),
    ],
)
def test_describe(error: BaseException, line: str) -> None:
    assert describe(error, "in") == [line]


def test_describe_failures_shows_five() -> None:
    failures = [ChunkFailure("in", "", n, 10 * n, 5, 9, 8, "9 bytes, not 8") for n in range(7)]
    lines = describe(decompress_error(failures), "in")
    assert lines[0] == "in: chunk 0 at byte 0: 9 bytes, not 8"
    assert lines[4].startswith("in: chunk 4 at byte 40: ")
    assert lines[5:] == ["... and 2 more bad chunks; gpuload verify lists them all"]


def test_json_line_takes_any_name_and_numpy_values() -> None:
    line = json_line({"file": "a\n\udcff\xe9", "size": np.uint64(2**64 - 1), "magic": b"\x04\x22"})
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {"file": "a\n\udcff\xe9", "size": 2**64 - 1, "magic": "0422"}
