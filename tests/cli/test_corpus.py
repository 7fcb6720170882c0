"""Every stream of the corpus through the command line, judged as the corpus asks."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.conftest import corpus_entries

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = corpus_entries("stream")
#: One good and one bad file of each format, run in processes of their own.
BY_PROCESS = [
    "lz4/source_linked_b4.lz4",
    "lz4/bad/block_checksum.lz4",
    "gzip/bgzf.gz",
    "gzip/bad/trunc_middle.gz",
    "zstd/multi_frame.zst",
    "zstd/bad/trunc_second_frame.zst",
    "snappy/padding_and_skippable.sz",
    "snappy/bad/trunc_in_chunk.sz",
]


def named(entries: list[dict]) -> list[object]:
    return [pytest.param(entry, id=entry["file"]) for entry in entries]


def judge(entry: dict, status: int, message: str, out: Path) -> None:
    """Check an exit status, a message and an output against an entry of the manifest."""
    allowed = {entry["expect"], entry.get("also_accept", entry["expect"])}
    if status:
        assert status == 1
        assert "error" in allowed, message
        assert message.startswith(("gpuload: error: ", "gpuload: warning: "))
        assert "Traceback" not in message
        assert not out.exists()
        return
    assert "ok" in allowed, entry["why"]
    hashes = [entry.get("sha256"), *entry.get("also_sha256", [])]
    if any(hashes):
        assert hashlib.sha256(out.read_bytes()).hexdigest() in hashes


@pytest.mark.parametrize("entry", named(ENTRIES))
def test_decompress(run, corpus, tmp_path, entry: dict) -> None:
    result = run("decompress", corpus / entry["file"], "-o", tmp_path / "out")
    judge(entry, result.exit_code, result.stderr, tmp_path / "out")
    assert result.stdout == ""


@pytest.mark.parametrize("entry", named(ENTRIES))
def test_verify_agrees_with_decompress(run, corpus, entry: dict) -> None:
    result = run("verify", "--json", corpus / entry["file"])
    record = json.loads(result.stdout)
    assert record["ok"] is (result.exit_code == 0)
    allowed = {entry["expect"], entry.get("also_accept", entry["expect"])}
    assert ("ok" if record["ok"] else "error") in allowed
    if record["ok"] and len(allowed) == 1:
        assert record["raw_size"] == entry["size"]
    if not record["ok"]:
        assert record.get("failures") or record["error"]


@pytest.mark.parametrize("entry", named([entry for entry in ENTRIES if entry["expect"] == "ok"]))
def test_inspect(run, corpus, entry: dict) -> None:
    result = run("inspect", "--json", "--chunks", corpus / entry["file"])
    if "also_accept" in entry and result.exit_code:
        return
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["format"].replace("bgzf", "gzip") == entry["format"]
    assert record["chunk_count"] == len(record["chunks"])
    assert record["raw_bound"] >= entry["size"]
    assert record["raw_size"] in (None, entry["size"])


@pytest.mark.parametrize("name", BY_PROCESS)
def test_decompress_in_a_process(process, corpus, tmp_path, name: str) -> None:
    path = corpus / name
    entry = next(entry for entry in ENTRIES if entry["file"] == name)
    result = process("decompress", path, "-o", tmp_path / "out")
    judge(entry, result.returncode, result.stderr.decode(), tmp_path / "out")


@pytest.mark.parametrize("entry", named([entry for entry in ENTRIES if "with_dictionary" in entry]))
def test_dictionary(run, corpus, tmp_path, entry: dict) -> None:
    dictionary = corpus / entry["dictionary"]
    out = tmp_path / "out"
    result = run("decompress", corpus / entry["file"], "-o", out, "--dictionary", dictionary)
    assert result.exit_code == 0
    wanted = entry["with_dictionary"]["sha256"]
    assert hashlib.sha256(out.read_bytes()).hexdigest() == wanted
