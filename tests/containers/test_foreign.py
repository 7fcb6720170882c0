"""Formats that gpuload does not read are named."""

from __future__ import annotations

import bz2
import io
import lzma
import tarfile
import zipfile
import zlib

import pytest

from gpuload.containers import read_index
from gpuload.errors import FormatError
from gpuload.options import Options
from gpuload.sources import BytesSource


def packed_zip(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return file.getvalue()


def packed_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("name"))
    return file.getvalue()


FILES = {
    "an xz file": lzma.compress(b"content"),
    "a bzip2 file": bz2.compress(b"content"),
    "a zip file": packed_zip("name"),
    "an empty zip file": packed_zip(),
    "a tar file that is not compressed": packed_tar(),
    # No library here writes these: the signatures of their specifications.
    "an lzip file": b"LZIP\x01\x0c",
    "a 7z file": bytes.fromhex("377abcaf271c0004"),
    "an HDF5 file": bytes.fromhex("894844460d0a1a0a"),
    "a Parquet file": b"PAR1\x15\x04",
}


@pytest.mark.parametrize("name", FILES)
def test_is_named(name: str) -> None:
    with pytest.raises(FormatError, match=f"this is {name}, which gpuload does not read; known"):
        read_index(BytesSource(FILES[name]), Options())


@pytest.mark.parametrize("level", [1, 5, 6, 9])
def test_zlib_of_every_level(level: int) -> None:
    with pytest.raises(FormatError, match="this looks like a zlib stream, which"):
        read_index(BytesSource(zlib.compress(b"content", level)), Options())


@pytest.mark.parametrize("data", [b"", b"P", b"PK", b"7zip", b"x", b"text", bytes(300)])
def test_others_are_not(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"unknown format|the file is empty"):
        read_index(BytesSource(data), Options())
