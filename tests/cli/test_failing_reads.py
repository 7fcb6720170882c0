"""Disks that fail, and files that shrink, while a command reads them."""

from __future__ import annotations

import os
import random
import re

import pytest

from tests.helpers.encoders import ENCODERS
from tests.helpers.failing_reads import build, environment

_RNG = random.Random(13)
#: About 3 MiB stored in every format, which is more than the host reads at a time.
PARTS = [_RNG.randbytes(700) * 2 + _RNG.randbytes(120_000) for _ in range(26)]

every_format = pytest.mark.parametrize("name", ENCODERS)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the paths of files by the encoder's name."""
    folder = tmp_path_factory.mktemp("files")
    for number, encode in enumerate(ENCODERS.values()):
        (folder / str(number)).write_bytes(encode(PARTS))
    return {name: folder / str(number) for number, name in enumerate(ENCODERS)}


@pytest.fixture
def failing(process, library, tmp_path):
    """Return a function that runs a command on a file that fails from an offset on."""

    def run(path, offset, how, *words):
        # What is truncated must not be the file of another test.
        copy = tmp_path / "in" / "file.gz"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        words = [word.replace("FILE", str(copy)) for word in map(str, words)]
        result = process(*words, env=environment(library, copy, offset, how))
        return copy, result.returncode, result.stderr.decode()

    return run


def output(tmp_path, old):
    target = tmp_path / "out" / "data"
    target.parent.mkdir()
    if old is not None:
        target.write_bytes(old)
    return target


def check_nothing_is_left(target, old):
    left = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    assert left == ({} if old is None else {target.name: old})


class TestBrokenSectors:
    @every_format
    @pytest.mark.parametrize(("part", "old"), [(0.0, None), (0.5, b"old"), (0.95, None)])
    def test_decompress(self, name, part, old, failing, files, tmp_path):
        """The error names the file and the first byte that cannot be read; nothing is left."""
        target = output(tmp_path, old)
        offset = int(part * files[name].stat().st_size)
        words = ("decompress", "FILE", "-f", "-o", target)
        path, status, text = failing(files[name], offset, "EIO", *words)
        assert status == 1
        found = re.fullmatch(rf"gpuload: error: {path}: byte (\d+): Input/output error\n", text)
        assert found, text
        # Headers behind the offset may be looked at before the payload that holds it.
        assert offset <= int(found[1]) < path.stat().st_size
        check_nothing_is_left(target, old)

    @every_format
    @pytest.mark.parametrize("word", ["verify", "inspect"])
    def test_of_the_header(self, name, word, failing, files):
        path, status, text = failing(files[name], 2, "EIO", word, "FILE")
        assert status == 1
        assert f"{path}: byte 2: Input/output error" in text

    def test_of_one_of_several_files(self, failing, files, tmp_path):
        """The others are decoded all the same where the user wants that."""
        folder = tmp_path / "out"
        folder.mkdir()
        good = tmp_path / "good.gz"
        good.write_bytes(files["gzip members"].read_bytes())
        words = ("decompress", "-k", "FILE", good, "--output-dir", folder)
        path, status, text = failing(files["bgzf"], 1_000_000, "EIO", *words)
        assert status == 1
        assert f"{path}: byte " in text
        assert os.listdir(folder) == ["good"]
        assert (folder / "good").read_bytes() == b"".join(PARTS)


class TestShrinkingFiles:
    @every_format
    @pytest.mark.parametrize(("part", "old"), [(0.5, None), (0.95, b"old")])
    def test_decompress(self, name, part, old, failing, files, tmp_path):
        """The file is cut off once a read goes beyond the offset."""
        target = output(tmp_path, old)
        offset = int(part * files[name].stat().st_size)
        words = ("decompress", "FILE", "-f", "-o", target)
        path, status, text = failing(files[name], offset, "truncate", *words)
        assert path.stat().st_size == offset
        assert status == 1
        assert re.match(rf"gpuload: error: {path}: (\w+: )?(chunk \d+ at )?byte \d+: ", text), text
        assert re.search(r"ends (here|inside)|too early|cut", text), text
        check_nothing_is_left(target, old)
