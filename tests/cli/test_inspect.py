"""``gpuload inspect``: facts from headers, as text, as rows and as JSON."""

from __future__ import annotations

import json
import os
import struct

import lz4.frame


def fact(output: str, label: str) -> str:
    """Return what stands beside a label."""
    (line,) = [line for line in output.splitlines() if line.startswith(f"  {label} ")]
    return line.removeprefix(f"  {label} ").strip()


def test_facts(run, lz4_file) -> None:
    result = run("inspect", lz4_file.path, "--engine", "host")
    assert (result.exit_code, result.stderr) == (0, "")
    size = lz4_file.path.stat().st_size
    assert result.stdout.splitlines()[0] == str(lz4_file.path)
    assert fact(result.stdout, "format") == "lz4"
    assert fact(result.stdout, "stored size").startswith(f"{size:,} bytes (")
    assert fact(result.stdout, "chunks") == "5"
    assert fact(result.stdout, "codecs") == "lz4"
    assert "xxHash-32" in fact(result.stdout, "checksums")
    assert fact(result.stdout, "batchable") == "yes"
    assert fact(result.stdout, "engine").startswith("host: ")


def test_size_that_is_stated(run, tmp_path, text) -> None:
    path = tmp_path / "sized.lz4"
    path.write_bytes(lz4.frame.compress(text, block_linked=False, store_size=True))
    output = run("inspect", path).stdout
    assert fact(output, "raw size") == "300,000 bytes (293.0 KiB)"
    assert fact(output, "ratio") == f"{300_000 / path.stat().st_size:.2f}"


def test_size_that_is_not_stated(run, lz4_file) -> None:
    # Without a content size the last block may be shorter than the block maximum.
    output = run("inspect", lz4_file.path).stdout
    assert fact(output, "raw size").startswith("not stated; at most ")


def test_serial_stream_says_why(run, tmp_path, text) -> None:
    path = tmp_path / "linked.lz4"
    path.write_bytes(lz4.frame.compress(text, block_linked=True, block_size=4))
    assert fact(run("inspect", path).stdout, "batchable").startswith("no: ")


def test_chunk_rows(run, lz4_file) -> None:
    lines = run("inspect", "--chunks", lz4_file.path).stdout.splitlines()
    header = next(at for at, line in enumerate(lines) if line.split()[:2] == ["chunk", "offset"])
    data = lz4_file.path.read_bytes()
    rows = lines[header + 1 :]
    for number, (offset, size) in enumerate(lz4_file.blocks()):
        checksum = struct.unpack_from("<I", data, offset + size)[0]
        words = rows[number].split()
        assert words[:3] == [str(number), f"{offset:,}", f"{size:,}"]
        assert words[4:] == ["lz4", "xxh32_stored", f"{checksum:08x}"]
    assert len(rows) == 5


def test_json(run, lz4_file, gzip_file) -> None:
    result = run("inspect", "--json", "--engine", "host", lz4_file.path, gzip_file)
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["file"] == str(lz4_file.path)
    assert first["format"] == "lz4"
    assert first["stored_size"] == lz4_file.path.stat().st_size
    assert first["raw_bound"] >= len(lz4_file.content)
    assert first["chunk_count"] == 5
    assert first["codecs"] == {"lz4": 5}
    assert first["batchable"] is True
    assert first["engines"][0]["engine"] == "host"
    assert first["checksums"]["xxh32_stored"] == 5
    assert "chunks" not in first
    assert second["format"] == "gzip"
    assert second["batchable"] is False
    assert second["serial"]


def test_json_rows(run, lz4_file) -> None:
    record = json.loads(run("inspect", "--json", "--chunks", lz4_file.path).stdout)
    assert [(row["offset"], row["stored_size"]) for row in record["chunks"]] == lz4_file.blocks()
    assert {row["codec"] for row in record["chunks"]} == {"lz4"}
    assert [row["chunk"] for row in record["chunks"]] == [0, 1, 2, 3, 4]


def test_more_rows_than_a_block(run, tmp_path) -> None:
    # 9,000 stored blocks of one byte each (LZ4 frame format: the top bit means uncompressed).
    frame = bytes.fromhex("04224d18604082") + struct.pack("<IB", 0x80000001, 65) * 9000 + bytes(4)
    path = tmp_path / "many.lz4"
    path.write_bytes(frame)
    record = json.loads(run("inspect", "--json", "--chunks", path).stdout)
    assert [row["offset"] for row in record["chunks"]] == list(range(11, 11 + 5 * 9000, 5))
    lines = run("inspect", "--chunks", path).stdout.splitlines()
    assert [line.split()[0] for line in lines[-9000:]] == [str(number) for number in range(9000)]


def test_no_chunks(run, tmp_path) -> None:
    path = tmp_path / "empty.lz4"
    path.write_bytes(bytes.fromhex("04224d1860408200000000"))
    result = run("inspect", "--chunks", path)
    assert result.exit_code == 0
    assert fact(result.stdout, "chunks") == "0"
    assert json.loads(run("inspect", "--json", "--chunks", path).stdout)["chunks"] == []


def test_goes_on_after_a_bad_file(run, tmp_path, lz4_file) -> None:
    result = run("inspect", tmp_path / "none", lz4_file.path)
    assert result.exit_code == 1
    assert "none: No such file or directory" in result.stderr
    assert fact(result.stdout, "format") == "lz4"


def test_unknown_format_shows_the_first_bytes(run, tmp_path) -> None:
    (tmp_path / "what").write_bytes(b"what")
    result = run("inspect", tmp_path / "what")
    assert result.exit_code == 1
    assert "77 68 61 74" in result.stderr
    assert "Zstandard" in result.stderr


def test_one_chunk_is_singular(run, tmp_path) -> None:
    path = tmp_path / "one.lz4"
    path.write_bytes(lz4.frame.compress(b"one", block_linked=False))
    assert fact(run("inspect", path).stdout, "engine").startswith("host: 1 independent chunk on ")


def test_facts_without_content_are_left_out(run, gzip_file) -> None:
    output = run("inspect", gzip_file).stdout
    assert "subfields" not in output
    assert all(len(line.split("  ")) > 2 for line in output.splitlines()[1:])


def test_odd_names(run, tmp_path, lz4_file) -> None:
    path = lz4_file.path.rename(tmp_path / os.fsdecode(b"a\n\xff.lz4"))
    assert run("inspect", path).stdout.splitlines()[0] == rf"{tmp_path}/a\n\xff.lz4"
    assert json.loads(run("inspect", "--json", path).stdout)["file"] == str(path)
