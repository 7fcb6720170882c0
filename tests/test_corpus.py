"""Every stream of the corpus, by every way out of the library.

The corpus' manifest says what reference decoders made of each file; `accepted` judges as it asks.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpuload.errors import (
    FormatError,
    FormatWarning,
    GpuloadError,
    MemoryLimitError,
    UnsupportedCodecError,
)
from tests.conftest import corpus_entries, corpus_folder
from tests.helpers import host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STREAMS = corpus_entries("stream")
GOOD = [entry for entry in STREAMS if entry["expect"] == "ok"]
WITH_DICTIONARY = [e for e in STREAMS if (corpus_folder() / e.get("dictionary", "-")).is_file()]
#: Decoding more than this once for each way of decoding takes too long.
LARGE = 64 << 20
#: Files that decode but deviate from their format.
WARNED = {"gzip/bad/trailing_garbage.gz", "gzip/bgzf_no_eof.gz"}
#: Streams of the whole corpus.
WHOLE = 195


def each(entries: list[dict]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", entries, ids=[entry["file"] for entry in entries])


def path_of(entry: dict) -> Path:
    return corpus_folder() / entry["file"]


def sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def load(entry: dict, options: dict, _: Path) -> str:
    array = host.load(path_of(entry), **options)
    return sha256(np.asarray(array))


def load_into(entry: dict, options: dict, _: Path) -> str:
    out = bytearray(entry["size"])
    host.load(path_of(entry), out=out, **options)
    return sha256(out)


def write_to_file(entry: dict, options: dict, tmp_path: Path) -> str:
    target = tmp_path / "out"
    fd = os.open(target, os.O_WRONLY | os.O_CREAT)
    try:
        with host.open(path_of(entry), **options) as container:
            report = container.write_to(fd, positional=True)
    finally:
        os.close(fd)
    assert report.raw_size == target.stat().st_size
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_to_pipe(entry: dict, options: dict, _: Path) -> str:
    readable, writable = os.pipe()
    digest = hashlib.sha256()

    def drain() -> None:
        with open(readable, "rb", buffering=0) as pipe:
            while part := pipe.read(1 << 20):
                digest.update(part)

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        with host.open(path_of(entry), **options) as container:
            container.write_to(writable)
    finally:
        os.close(writable)
        reader.join()
    return digest.hexdigest()


WAYS: list[Callable[[dict, dict, Path], str]] = [load, load_into, write_to_file, write_to_pipe]


def outcome(way: Callable[[dict, dict, Path], str], entry: dict, options: dict, at: Path) -> str:
    """Return the SHA-256 of what came out, or "error"; any other exception fails the test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            digest, told = way(entry, options, at), entry["file"]
        except GpuloadError as error:
            digest, told = "error", str(error)
    assert entry["file"] in told, "the message of an error names the file"
    assert {warning.category for warning in caught} <= {FormatWarning}
    return digest


def accepted(entry: dict) -> set[str]:
    """Return the outcomes that the manifest allows."""
    allowed = {entry["expect"], entry.get("also_accept", entry["expect"])}
    digests = {entry["sha256"]} if "sha256" in entry else set()
    digests |= set(entry.get("also_sha256", []))
    return ({"error"} if "error" in allowed else set()) | (digests if "ok" in allowed else set())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("way", [load, write_to_file, write_to_pipe])
@each(STREAMS)
def test_decoded(entry, way, threads, tmp_path):
    assert outcome(way, entry, {"threads": threads}, tmp_path) in accepted(entry)


@pytest.mark.parametrize("threads", [1, 3])
@each(GOOD)
def test_decoded_into_memory_of_the_caller(entry, threads, tmp_path):
    assert outcome(load_into, entry, {"threads": threads}, tmp_path) in accepted(entry)


@pytest.mark.parametrize("threads", [1, 3])
@each(STREAMS)
def test_verified(entry, threads):
    try:
        with host.open(path_of(entry), threads=threads) as container:
            report = container.verify()
    except GpuloadError:
        assert "error" in accepted(entry)
        return
    if report.failures:
        assert "error" in accepted(entry)
        assert all(entry["file"] in str(failure) for failure in report.failures)
    else:
        assert accepted(entry) != {"error"}
        assert report.raw_size == entry.get("size", report.raw_size)


@each([entry for entry in STREAMS if "also_accept" in entry and entry.get("size", 0) < LARGE])
def test_every_way_ends_the_same(entry, tmp_path):
    ways = [way for way in WAYS if "size" in entry or way is not load_into]
    assert len({outcome(way, entry, {}, tmp_path) for way in ways}) == 1


@each([entry for entry in GOOD if entry["size"] < LARGE])
def test_only_deviating_files_warn(entry):
    strict = {"strict": True}
    if entry["file"] in WARNED:
        with pytest.warns(FormatWarning, match=entry["file"]):
            host.load(path_of(entry))
        with pytest.raises(FormatError, match=entry["file"]):
            host.load(path_of(entry), **strict)
    elif outcome(load, entry, {}, path_of(entry)) != "error":
        host.load(path_of(entry), **strict)


@pytest.mark.parametrize("memory_limit", [1 << 19, 100_000, 1])
@pytest.mark.parametrize("way", [load, write_to_file])
@each([entry for entry in GOOD if "also_accept" not in entry and entry["size"] < 1 << 20])
@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
def test_in_little_memory(entry, way, memory_limit, tmp_path):
    """A limit may refuse a file and must not change what comes out."""
    try:
        found = way(entry, {"memory_limit": memory_limit, "threads": 2}, tmp_path)
    except MemoryLimitError as error:
        found = str(error)
    assert found == entry["sha256"] or "memory_limit" in found


@each([entry for entry in STREAMS if accepted(entry) == {"error"}])
def test_messages_say_what_is_wrong(entry):
    with pytest.raises(GpuloadError) as caught:
        host.load(path_of(entry))
    message = str(caught.value).removeprefix(str(path_of(entry)))
    assert len(message) > len(": byte 0: ")
    assert not re.search(r"\wError\b", message), "no name of an exception from a library"


@pytest.mark.parametrize("way", WAYS)
@each(WITH_DICTIONARY)
def test_with_its_dictionary(entry, way, tmp_path):
    dictionary = (corpus_folder() / entry["dictionary"]).read_bytes()
    whole = entry | entry["with_dictionary"]
    assert way(whole, {"dictionary": dictionary}, tmp_path) == whole["sha256"]


@each([entry for entry in WITH_DICTIONARY if "no_id" not in entry["file"]])
def test_without_its_dictionary(entry):
    with pytest.raises(UnsupportedCodecError, match="--dictionary"):
        host.load(path_of(entry))


def test_the_corpus_is_whole():
    if corpus_folder().parent.name == "tests":
        pytest.skip("the whole corpus is not beside this checkout; the small copy was used")
    assert len(STREAMS) == WHOLE
    assert {entry["file"] for entry in GOOD} >= WARNED
    assert len(WITH_DICTIONARY) == 2
