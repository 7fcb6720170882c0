"""``gpuload decompress``: outputs, refusals, warnings and reports."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.server
import json
import os
import random
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import lz4.frame
import pytest
import zstandard

from tests.helpers.handmade import BGZF_EOF, bgzf_block

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_output_stands_beside_the_input(run, lz4_file) -> None:
    result = run("decompress", lz4_file.path)
    assert (result.exit_code, result.output) == (0, "")
    assert lz4_file.path.with_suffix("").read_bytes() == lz4_file.content
    assert sorted(os.listdir(lz4_file.path.parent)) == ["data", "data.lz4"]


def test_output_by_name(run, gzip_file, tmp_path, text) -> None:
    assert run("decompress", gzip_file, "-o", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out").read_bytes() == text


def test_several_files_into_a_directory(run, gzip_file, lz4_file, tmp_path, text) -> None:
    out = tmp_path / "out"
    out.mkdir()
    result = run("decompress", gzip_file, lz4_file.path, "--output-dir", out)
    assert result.exit_code == 0
    assert {name: (out / name).read_bytes() for name in os.listdir(out)} == {
        "data": text,
        "text": text,
    }


def test_output_directory_is_created(run, gzip_file, tmp_path, text) -> None:
    out = tmp_path / "new" / "folder"
    assert run("decompress", gzip_file, "--output-dir", out).exit_code == 0
    assert (out / "text").read_bytes() == text


@pytest.mark.parametrize("name", ["none.gz", "bad.gz"])
def test_output_directory_is_not_created_for_nothing(run, tmp_path, name: str) -> None:
    (tmp_path / "bad.gz").write_bytes(b"no gzip file")
    assert run("decompress", tmp_path / name, "--output-dir", tmp_path / "out").exit_code == 1
    assert os.listdir(tmp_path) == ["bad.gz"]


def test_output_directory_that_is_a_file(run, gzip_file) -> None:
    result = run("decompress", gzip_file, "--output-dir", gzip_file)
    assert result.exit_code == 2
    assert "is a file" in result.stderr


def test_nothing_is_written_if_a_later_name_is_unknown(run, gzip_file, tmp_path) -> None:
    (tmp_path / "name.txt").write_bytes(gzip_file.read_bytes())
    result = run("decompress", gzip_file, tmp_path / "name.txt")
    assert result.exit_code == 2
    assert f"{tmp_path}/name.txt: cannot tell the output's name" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["name.txt", "text.gz"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xfd7zXZ\x00\x00\x04", "this is an xz file, which gpuload does not read"),
        (None, "No such file or directory"),
    ],
)
def test_what_a_file_is_matters_more_than_its_suffix(
    run, gzip_file, tmp_path, content, message: str
) -> None:
    path = tmp_path / "data.xz"
    if content is not None:
        path.write_bytes(content)
    result = run("decompress", gzip_file, path, "--json")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "cannot tell" not in result.stderr
    assert message in json.loads(result.stdout)["error"]
    assert not (tmp_path / "text").exists()


def test_format_is_not_told_by_the_name(run, tmp_path, text) -> None:
    path = tmp_path / "really_zstd.gz"
    path.write_bytes(zstandard.compress(text))
    assert run("decompress", path).exit_code == 0
    assert (tmp_path / "really_zstd").read_bytes() == text


def test_existing_file_stays(run, gzip_file, tmp_path) -> None:
    (tmp_path / "text").write_bytes(b"old")
    result = run("decompress", gzip_file)
    assert result.exit_code == 1
    assert result.stderr == (
        f"gpuload: error: {tmp_path}/text: File exists; --force overwrites it\n"
    )
    assert (tmp_path / "text").read_bytes() == b"old"


def test_force_overwrites(run, gzip_file, tmp_path, text) -> None:
    (tmp_path / "text").write_bytes(b"old")
    assert run("decompress", gzip_file, "--force").exit_code == 0
    assert (tmp_path / "text").read_bytes() == text


def test_existing_file_stays_when_decoding_fails(run, lz4_file, tmp_path) -> None:
    lz4_file.damage(3)
    (tmp_path / "data").write_bytes(b"old")
    result = run("decompress", lz4_file.path, "--force")
    assert result.exit_code == 1
    assert (tmp_path / "data").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["data", "data.lz4"]


def test_bad_chunk_is_named(run, lz4_file) -> None:
    lz4_file.damage(2)
    result = run("decompress", lz4_file.path)
    assert result.exit_code == 1
    offset, _ = lz4_file.blocks()[2]
    assert f"gpuload: error: {lz4_file.path}: chunk 2 at byte {offset}: " in result.stderr
    assert not lz4_file.path.with_suffix("").exists()


def test_no_verify_takes_a_wrong_checksum(run, lz4_file) -> None:
    lz4_file.damage(2)
    assert run("decompress", lz4_file.path, "--no-verify").exit_code == 0
    assert lz4_file.path.with_suffix("").read_bytes() == lz4_file.content


@pytest.mark.parametrize("keep_going", [False, True])
def test_keep_going(run, gzip_file, tmp_path, text, keep_going: bool) -> None:
    bad = tmp_path / "bad.gz"
    bad.write_bytes(b"no gzip file")
    result = run("decompress", bad, gzip_file, *(["-k"] if keep_going else []))
    assert result.exit_code == 1
    assert "unknown format" in result.stderr
    assert (tmp_path / "text").exists() is keep_going


def test_missing_file(run, tmp_path) -> None:
    result = run("decompress", tmp_path / "none.gz")
    assert result.exit_code == 1
    assert result.stderr == f"gpuload: error: {tmp_path}/none.gz: No such file or directory\n"


def test_directory_as_input(run, tmp_path) -> None:
    (tmp_path / "d.gz").mkdir()
    result = run("decompress", tmp_path / "d.gz")
    assert result.exit_code == 1
    assert f"{tmp_path}/d.gz: is a directory" in result.stderr


def test_symbolic_link_as_target_is_resolved(run, gzip_file, tmp_path, text) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    assert run("decompress", gzip_file, "-o", tmp_path / "link", "-f").exit_code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == text


def test_same_file_is_refused(run, gzip_file) -> None:
    before = gzip_file.read_bytes()
    result = run("decompress", gzip_file, "-o", gzip_file, "--force")
    assert result.exit_code == 2
    assert "is the same file as the input" in result.stderr
    assert gzip_file.read_bytes() == before


def test_standard_input(run, tmp_path, text) -> None:
    result = run("decompress", "-", "-o", tmp_path / "out", stdin=gzip.compress(text))
    assert result.exit_code == 0
    assert (tmp_path / "out").read_bytes() == text


def test_damage_in_standard_input_names_it(run, tmp_path, text) -> None:
    result = run("decompress", "-", "-o", tmp_path / "out", stdin=gzip.compress(text)[:-3])
    assert result.exit_code == 1
    assert "gpuload: error: <stdin>: " in result.stderr


class TestOnError:
    """BGZF states the size of every block in its trailer (SAM specification, section 4.1)."""

    PARTS = tuple(bytes([65 + number]) * 1000 * (number + 1) for number in range(4))

    @pytest.fixture
    def file(self, tmp_path) -> Path:
        """Four blocks of 1000 to 4000 equal letters; the checksums of the second and third lie."""
        blocks = [bytearray(bgzf_block(part)) for part in self.PARTS]
        for block in blocks[1:3]:
            block[-8] ^= 1
        path = tmp_path / "letters.bgz"
        path.write_bytes(b"".join(blocks) + BGZF_EOF)
        return path

    @property
    def with_zeros(self) -> bytes:
        return self.PARTS[0] + bytes(2000 + 3000) + self.PARTS[3]

    @pytest.mark.parametrize("words", [[], ["--on-error", "raise"], ["--on-error", "retry-host"]])
    def test_no_output(self, run, file, words: list[str]) -> None:
        result = run("decompress", file, *words)
        assert result.exit_code == 1
        assert f"gpuload: error: {file}: chunk 1 at byte " in result.stderr
        assert os.listdir(file.parent) == ["letters.bgz"]

    def test_skip_lists_every_chunk_and_keeps_the_output(self, run, file) -> None:
        result = run("decompress", file, "--on-error", "skip")
        assert (result.exit_code, result.stdout) == (1, "")
        first, second, last = result.stderr.splitlines()
        assert first.startswith(f"gpuload: error: {file}: chunk 1 at byte ")
        assert second.startswith(f"gpuload: error: {file}: chunk 2 at byte ")
        assert last == (
            f"gpuload: error: {file}: 2 of 5 chunks skipped; the output has zeros in their place"
        )
        assert file.with_suffix("").read_bytes() == self.with_zeros

    def test_skip_to_standard_output(self, process, file) -> None:
        result = process("decompress", "-c", file, "--on-error", "skip", "--json")
        assert result.returncode == 1
        assert result.stdout == self.with_zeros
        assert json.loads(result.stderr.splitlines()[0])["ok"] is False

    def test_skip_lists_more_chunks_than_an_error_does(self, run, file) -> None:
        block = bytearray(bgzf_block(b"x"))
        block[-8] ^= 1
        file.write_bytes(block * 9 + BGZF_EOF)
        result = run("decompress", file, "--on-error", "skip")
        assert result.stderr.count(": chunk ") == 9
        assert file.with_suffix("").read_bytes() == bytes(9)

    def test_skip_in_json(self, run, file) -> None:
        result = run("decompress", file, "--on-error", "skip", "--json")
        assert result.exit_code == 1
        record = json.loads(result.stdout)
        assert record["ok"] is False
        assert record["output"] == str(file.with_suffix(""))
        assert record["raw_size"] == 10_000
        assert [failure["chunk"] for failure in record["failures"]] == [1, 2]
        assert [failure["expected_size"] for failure in record["failures"]] == [2000, 3000]

    def test_skip_does_not_stop_the_next_file(self, run, file, gzip_file, text) -> None:
        result = run("decompress", file, gzip_file, "--on-error", "skip")
        assert result.exit_code == 1
        assert file.with_suffix("").read_bytes() == self.with_zeros
        assert gzip_file.with_suffix("").read_bytes() == text

    def test_skip_of_a_good_file(self, run, lz4_file) -> None:
        result = run("decompress", lz4_file.path, "--on-error", "skip")
        assert (result.exit_code, result.output) == (0, "")
        assert lz4_file.path.with_suffix("").read_bytes() == lz4_file.content

    def test_skip_where_the_size_is_not_stated(self, run, lz4_file) -> None:
        lz4_file.damage(2)
        result = run("decompress", lz4_file.path, "--on-error", "skip")
        assert result.exit_code == 1
        assert f"{lz4_file.path}: chunk 2 at byte " in result.stderr
        assert not lz4_file.path.with_suffix("").exists()


class TestLimits:
    def test_max_output(self, run, gzip_file) -> None:
        result = run("decompress", gzip_file, "--max-output", "200K")
        assert result.exit_code == 1
        assert "max" in result.stderr
        assert not gzip_file.with_suffix("").exists()

    def test_max_output_that_fits(self, run, gzip_file, text) -> None:
        assert run("decompress", gzip_file, "--max-output", str(len(text))).exit_code == 0

    def test_max_output_lifted(self, run, gzip_file) -> None:
        assert run("decompress", gzip_file, "--max-output", "unlimited").exit_code == 0

    def test_window(self, run, tmp_path) -> None:
        parameters = zstandard.ZstdCompressionParameters(window_log=24)
        stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        path = tmp_path / "wide.zst"
        path.write_bytes(stream.compress(bytes(1 << 20)) + stream.flush())
        result = run("decompress", path, "--max-window", "8M")
        assert result.exit_code == 1
        assert "window" in result.stderr
        assert run("decompress", path, "--max-window", "16M").exit_code == 0

    def test_threads_and_memory(self, run, lz4_file) -> None:
        result = run("decompress", lz4_file.path, "--threads", "1", "--memory-limit", "64M")
        assert result.exit_code == 0
        assert lz4_file.path.with_suffix("").read_bytes() == lz4_file.content


class TestDictionary:
    @pytest.fixture
    def dictionary(self, tmp_path, text) -> Path:
        path = tmp_path / "words.dict"
        samples = [text[at : at + 500] for at in range(0, 100_000, 500)]
        path.write_bytes(zstandard.train_dictionary(4096, samples).as_bytes())
        return path

    @pytest.fixture
    def file(self, tmp_path, dictionary, text) -> Path:
        path = tmp_path / "with_dictionary.zst"
        words = zstandard.ZstdCompressionDict(dictionary.read_bytes())
        path.write_bytes(zstandard.ZstdCompressor(dict_data=words).compress(text))
        return path

    def test_given(self, run, file, dictionary, text) -> None:
        assert run("decompress", file, "--dictionary", dictionary).exit_code == 0
        assert file.with_suffix("").read_bytes() == text

    @pytest.mark.parametrize("command", ["decompress", "verify"])
    def test_not_given(self, run, file, command: str) -> None:
        result = run(command, file)
        assert result.exit_code == 1
        assert "dictionary" in result.stderr


class TestWarnings:
    @pytest.fixture
    def file(self, gzip_file) -> Path:
        gzip_file.write_bytes(gzip_file.read_bytes() + b"garbage")
        return gzip_file

    def test_shown(self, run, file, text) -> None:
        result = run("decompress", file)
        assert result.exit_code == 0
        assert result.stderr.startswith(f"gpuload: warning: {file}: byte ")
        assert file.with_suffix("").read_bytes() == text

    def test_quiet(self, run, file) -> None:
        assert run("decompress", file, "-q").stderr == ""

    def test_strict(self, run, file) -> None:
        result = run("decompress", file, "--strict")
        assert result.exit_code == 1
        assert "gpuload: error: " in result.stderr
        assert not file.with_suffix("").exists()


class TestJson:
    def test_report(self, run, lz4_file) -> None:
        result = run("decompress", lz4_file.path, "--json")
        record = json.loads(result.stdout)
        assert record["file"] == str(lz4_file.path)
        assert record["output"] == str(lz4_file.path.with_suffix(""))
        assert record["ok"] is True
        assert record["format"] == "lz4"
        assert record["raw_size"] == len(lz4_file.content)
        assert record["chunks"] == 5
        assert record["failures"] == []
        assert record["warnings"] == []
        assert record["engine"] == "host"

    def test_one_line_for_each_file(self, run, gzip_file, lz4_file) -> None:
        result = run("decompress", gzip_file, lz4_file.path, "--json")
        records = [json.loads(line) for line in result.stdout.splitlines()]
        assert [record["format"] for record in records] == ["gzip", "lz4"]

    def test_failure(self, run, lz4_file) -> None:
        lz4_file.damage(1, 4)
        result = run("decompress", lz4_file.path, "--json")
        assert result.exit_code == 1
        record = json.loads(result.stdout)
        assert record["ok"] is False
        assert [failure["chunk"] for failure in record["failures"]][:1] == [1]
        assert f"chunk 1 at byte {lz4_file.blocks()[1][0]}" in record["error"]
        assert "gpuload: error: " in result.stderr

    def test_odd_name(self, run, tmp_path, text) -> None:
        path = tmp_path / os.fsdecode(b"new\nline\xff.gz")
        path.write_bytes(gzip.compress(text))
        record = json.loads(run("decompress", path, "--json").stdout)
        assert record["file"] == str(path)
        assert Path(record["output"]).read_bytes() == text


def test_odd_name_in_an_error(run, tmp_path) -> None:
    path = tmp_path / os.fsdecode(b"new\nline\xff.gz")
    path.write_bytes(b"?")
    result = run("decompress", path)
    assert result.exit_code == 1
    assert result.stderr.startswith(rf"gpuload: error: {tmp_path}/new\nline\xff.gz: ")
    assert result.stderr.count("\n") == 1


def test_empty_content(run, tmp_path) -> None:
    path = tmp_path / "empty.lz4"
    path.write_bytes(lz4.frame.compress(b""))
    assert run("decompress", path).exit_code == 0
    assert (tmp_path / "empty").read_bytes() == b""


def test_fsspec_url(run, tmp_path, text) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("/cli/text.gz", gzip.compress(text))
    result = run("decompress", "memory://cli/text.gz", "--output-dir", tmp_path)
    assert result.exit_code == 0
    assert (
        hashlib.sha256((tmp_path / "text").read_bytes()).digest() == hashlib.sha256(text).digest()
    )


@pytest.mark.parametrize("url", ["nosuch://host/a.gz", "memory://none/a.gz"])
def test_url_that_cannot_be_read(run, tmp_path, url: str) -> None:
    pytest.importorskip("fsspec")
    result = run("decompress", url, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"gpuload: error: {url}: ")
    assert os.listdir(tmp_path) == []


def test_url_without_fsspec(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    result = run("decompress", "https://host/a.gz", "-c")
    assert result.exit_code == 1
    assert result.stderr == (
        "gpuload: error: https://host/a.gz: reading it needs fsspec: "
        "pip install 'gpuload[remote]'\n"
    )


class TestHttp:
    """A server of Python's own, which always answers with the whole file."""

    @pytest.fixture
    def server(self, tmp_path) -> Iterator[str]:
        pytest.importorskip("aiohttp", reason="aiohttp is not installed")
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()
            thread.join()

    @pytest.mark.parametrize("name", ["verify", "inspect"])
    def test_server_that_ignores_ranges(self, process, server, tmp_path, name: str) -> None:
        path = tmp_path / "large.lz4"
        path.write_bytes(lz4.frame.compress(random.Random(8).randbytes(2 << 20)))
        result = process(name, f"{server}/large.lz4")
        assert (result.returncode, result.stdout) == (1, b"")
        (line,) = result.stderr.decode().splitlines()
        assert line.startswith(f"gpuload: error: {server}/large.lz4: byte 0: ")
        assert f" bytes were asked for, {path.stat().st_size} came" in line

    def test_server_that_ignores_ranges_of_a_small_file(self, process, server, lz4_file) -> None:
        """It is read with one request, which is for all of it."""
        assert process("verify", f"{server}/{lz4_file.path.name}").returncode == 0

    def test_missing_file(self, process, server) -> None:
        url = f"{server}/missing.lz4"
        result = process("verify", url)
        assert (result.returncode, result.stdout) == (1, b"")
        text = result.stderr.decode()
        assert text.startswith(f"gpuload: error: {url}: the server answers 404 ")
        assert text.count(url) == 1

    def test_refused_connection(self, process) -> None:
        pytest.importorskip("aiohttp", reason="aiohttp is not installed")
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # and does not listen
            url = f"https://127.0.0.1:{unused.getsockname()[1]}/x.lz4"
            result = process("decompress", url)
        assert result.returncode == 1
        reason = os.strerror(errno.ECONNREFUSED)
        assert result.stderr.decode() == f"gpuload: error: {url}: {reason}\n"


@pytest.mark.parametrize("url", ["http://host/a.gz", "https://host/a.gz"])
def test_url_that_needs_a_package(run, monkeypatch, url: str) -> None:
    """fsspec raises ImportError where what it needs for a protocol is missing."""

    def refuse(*_: object) -> None:
        raise ImportError("HTTPFileSystem requires aiohttp")

    monkeypatch.setattr("gpuload.sources._open_url", refuse)
    result = run("decompress", url, "-c")
    assert result.exit_code == 1
    assert result.stderr == (
        f"gpuload: error: {url}: reading http and https URLs needs aiohttp and requests: "
        "pip install 'gpuload[remote]'\n"
    )
    result = run("decompress", "other://host/a.gz", "-c")
    assert result.stderr == "gpuload: error: other://host/a.gz: HTTPFileSystem requires aiohttp\n"
