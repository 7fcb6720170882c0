"""``gpuload compress``: files that reference decoders read back."""

from __future__ import annotations

import gzip
import io
import json
import os
import re

import lz4.frame
import pytest
import zstandard
from gpuload_cli.options import parse_size

from gpuload.writers import WRITERS

#: A codec in the help text: its chunk sizes, its levels, and the defaults.
HELP = re.compile(r"  +\w+  +(.*?) +\[(\w+)\] +(none|-?\d+ to \d+)(?: +\[(\d+)\])?")
SUFFIXES = {"lz4": ".lz4", "gzip": ".gz", "zstd": ".zst", "snappy": ".sz"}


def unzstd(data: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    return reader.read()


READERS = {"lz4": lz4.frame.decompress, "gzip": gzip.decompress, "zstd": unzstd}


@pytest.fixture
def source(tmp_path, text):
    path = tmp_path / "text"
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("codec", READERS)
def test_default_name(run, source, text, codec: str) -> None:
    result = run("compress", source, "--codec", codec)
    assert (result.exit_code, result.output) == (0, "")
    written = source.with_name("text" + SUFFIXES[codec])
    assert READERS[codec](written.read_bytes()) == text


@pytest.mark.parametrize("codec", SUFFIXES)
def test_round_trip(run, source, tmp_path, text, codec: str) -> None:
    packed = tmp_path / f"packed{SUFFIXES[codec]}"
    assert run("compress", source, "-o", packed).exit_code == 0
    assert run("decompress", packed).exit_code == 0
    assert packed.with_suffix("").read_bytes() == text


@pytest.mark.parametrize(
    ("name", "magic"),
    [
        ("a.lz4", "04224d18"),
        ("a.gz", "1f8b"),
        ("a.bgz", "1f8b"),
        ("a.zst", "28b52ffd"),
        ("a.ZSTD", "28b52ffd"),
        ("a.sz", "ff060000"),
        ("a.snappy", "ff060000"),
    ],
)
def test_codec_by_suffix(run, source, tmp_path, name: str, magic: str) -> None:
    assert run("compress", source, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(bytes.fromhex(magic))


@pytest.mark.parametrize("words", [[], ["-o", "out"], ["-o", "out.txt"], ["-o", "-"]])
def test_codec_must_be_clear(run, source, words: list[str]) -> None:
    result = run("compress", source, *words)
    assert result.exit_code == 2
    assert "--codec lz4|gzip|zstd|snappy" in result.stderr
    assert ".bgz .gz .lz4 .snappy .sz .zst .zstd" in result.stderr


def test_help_states_what_the_writers_allow(run) -> None:
    lines = {
        line.split()[0]: line for line in run("compress", "--help").stdout.splitlines() if line
    }
    for codec, writer in WRITERS.items():
        sizes, default, levels, level = HELP.fullmatch(lines[codec]).groups()
        assert parse_size(default) == writer.default_chunk_size
        numbers = [parse_size(size) for size in re.findall(r"\d+[KMG]?", sizes)]
        ends = [numbers[0], numbers[-1]]
        assert ends == [writer.chunk_sizes[0], writer.chunk_sizes[-1]]
        if levels == "none":
            assert not writer.levels
        else:
            least, most = map(int, levels.split(" to "))
            assert range(least, most + 1) == writer.levels
            assert int(level) == writer.default_level


def test_chunk_size(run, source, tmp_path) -> None:
    packed = tmp_path / "packed.zst"
    result = run("compress", source, "-o", packed, "--chunk-size", "64K", "--json")
    record = json.loads(result.stdout)
    assert record["chunk_size"] == 65536
    assert record["chunks"] == 5
    assert record["raw_size"] == 300_000
    assert record["stored_size"] == packed.stat().st_size
    assert record["output"] == str(packed)
    assert record["ok"] is True
    assert json.loads(run("inspect", "--json", packed).stdout)["chunk_count"] == 5


def test_level(run, source, tmp_path) -> None:
    sizes = []
    for level in (1, 9):
        run("compress", source, "-o", tmp_path / "a.gz", "-f", "--level", level)
        sizes.append((tmp_path / "a.gz").stat().st_size)
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(
    "words",
    [
        ["--codec", "lz4", "--chunk-size", "3"],
        ["--codec", "gzip", "--level", "77"],
        ["--codec", "snappy", "--level", "1"],
        ["--codec", "brotli"],
        ["--codec", "lz4", "--threads", "0"],
    ],
)
def test_wrong_settings_are_usage_errors(run, source, words: list[str]) -> None:
    result = run("compress", source, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("gpuload: error: ")
    assert os.listdir(source.parent) == ["text"]


def test_existing_file_stays(run, source, tmp_path) -> None:
    (tmp_path / "a.gz").write_bytes(b"old")
    result = run("compress", source, "-o", tmp_path / "a.gz")
    assert result.exit_code == 1
    assert "File exists; --force overwrites it" in result.stderr
    assert (tmp_path / "a.gz").read_bytes() == b"old"
    assert run("compress", source, "-o", tmp_path / "a.gz", "--force").exit_code == 0
    assert (tmp_path / "a.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_output_must_not_be_the_input(run, source, text) -> None:
    result = run("compress", source, "-o", source, "--codec", "lz4", "--force")
    assert result.exit_code == 2
    assert "is the same file as the input" in result.stderr
    assert source.read_bytes() == text


def test_missing_file(run, tmp_path) -> None:
    result = run("compress", tmp_path / "none", "--codec", "lz4")
    assert result.exit_code == 1
    assert result.stderr == f"gpuload: error: {tmp_path}/none: No such file or directory\n"
    assert os.listdir(tmp_path) == []


def test_standard_streams(process, text) -> None:
    result = process("compress", "-", "--codec", "gzip", input=text)
    assert (result.returncode, result.stderr) == (0, b"")
    assert gzip.decompress(result.stdout) == text


def test_json_beside_standard_output(process, source, text) -> None:
    result = process("compress", source, "--codec", "lz4", "-o", "-", "--json")
    assert lz4.frame.decompress(result.stdout) == text
    assert json.loads(result.stderr)["output"] == "-"


def test_empty_file(run, tmp_path) -> None:
    (tmp_path / "empty").touch()
    assert run("compress", tmp_path / "empty", "--codec", "gzip").exit_code == 0
    assert gzip.decompress((tmp_path / "empty.gz").read_bytes()) == b""
