"""``gpuload verify``: every bad chunk, in every file."""

from __future__ import annotations

import json
import os


def test_good_file(run, lz4_file) -> None:
    result = run("verify", lz4_file.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{lz4_file.path}: ok, 5 chunks, 293.0 KiB, 5 checksums verified\n"
    assert os.listdir(lz4_file.path.parent) == ["data.lz4"]


def test_quiet(run, lz4_file) -> None:
    result = run("verify", "-q", lz4_file.path)
    assert (result.exit_code, result.output) == (0, "")


def test_every_bad_chunk_is_listed(run, lz4_file) -> None:
    lz4_file.damage(0, 2, 3)
    result = run("verify", lz4_file.path)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    for line, block in zip(lines, (0, 2, 3), strict=False):
        offset, _ = lz4_file.blocks()[block]
        assert line.startswith(f"{lz4_file.path}: chunk {block} at byte {offset}: ")
    assert lines[-1] == f"{lz4_file.path}: BAD, 3 of 5 chunks"
    assert len(lines) == 4


def test_reason_says_expected_and_found(run, lz4_file) -> None:
    before = lz4_file.path.read_bytes()
    offset, size = lz4_file.blocks()[1]
    lz4_file.damage(1)
    right = int.from_bytes(before[offset + size :][:4], "little")
    line = run("verify", lz4_file.path).stdout.splitlines()[0]
    assert f"{right:08x}" in line
    assert f"{right ^ 1:08x}" in line


def test_all_files_are_checked(run, lz4_file, gzip_file, tmp_path) -> None:
    lz4_file.damage(4)
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"?")
    result = run("verify", lz4_file.path, broken, tmp_path / "none.gz", gzip_file)
    assert result.exit_code == 1
    assert f"{lz4_file.path}: BAD, 1 of 5 chunks" in result.stdout
    assert f"gpuload: error: {broken}: byte 0: unknown format" in result.stderr
    assert f"{broken}: BAD: byte 0: unknown format" in result.stdout
    assert "none.gz" not in result.stdout
    assert f"gpuload: error: {tmp_path}/none.gz: No such file" in result.stderr
    assert f"{gzip_file}: ok, " in result.stdout


def test_a_cut_file_is_bad(run, lz4_file) -> None:
    path = lz4_file.path
    path.write_bytes(path.read_bytes()[:-9])
    result = run("verify", path)
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"{path}: BAD: byte ")
    assert result.stderr == f"gpuload: error: {line.replace(' BAD:', '')}\n"
    (record,) = map(json.loads, run("verify", "--json", path).stdout.splitlines())
    assert record["ok"] is False


def test_json(run, lz4_file, gzip_file, tmp_path) -> None:
    lz4_file.damage(2)
    result = run("verify", "--json", lz4_file.path, gzip_file, tmp_path / "none.gz")
    assert result.exit_code == 1
    bad, good, missing = map(json.loads, result.stdout.splitlines())
    assert (bad["ok"], good["ok"], missing["ok"]) == (False, True, False)
    (failure,) = bad["failures"]
    assert failure["source"] == str(lz4_file.path)
    assert failure["chunk"] == 2
    assert failure["offset"] == lz4_file.blocks()[2][0]
    assert failure["checksum"] is True
    assert good["failures"] == []
    assert missing["error"] == f"{tmp_path}/none.gz: No such file or directory"


def test_standard_input(run, lz4_file) -> None:
    lz4_file.damage(1)
    result = run("verify", "-", stdin=lz4_file.path.read_bytes())
    assert result.exit_code == 1
    assert result.stdout.startswith("<stdin>: chunk 1 at byte ")


def test_warnings_do_not_fail(run, gzip_file) -> None:
    gzip_file.write_bytes(gzip_file.read_bytes() + b"garbage")
    result = run("verify", gzip_file)
    assert result.exit_code == 0
    assert "gpuload: warning: " in result.stderr


def test_strict(run, gzip_file) -> None:
    gzip_file.write_bytes(gzip_file.read_bytes() + b"garbage")
    assert run("verify", "--strict", gzip_file).exit_code == 1


def test_retry_host_changes_nothing_for_the_host(run, lz4_file) -> None:
    assert run("verify", "--on-error", "retry-host", lz4_file.path).exit_code == 0
    lz4_file.damage(1)
    result = run("verify", "--on-error", "retry-host", lz4_file.path)
    assert result.exit_code == 1
    assert f"{lz4_file.path}: BAD, 1 of 5 chunks" in result.stdout


def test_nothing_is_written_that_could_be_skipped(run, lz4_file) -> None:
    result = run("verify", "--on-error", "skip", lz4_file.path)
    assert result.exit_code == 2
    assert "'skip' is not one of 'raise', 'retry-host'" in result.stderr


def test_odd_name(run, tmp_path, gzip_file) -> None:
    path = gzip_file.rename(tmp_path / os.fsdecode(b"\xff\x1b[31m\n.gz"))
    result = run("verify", path)
    assert result.exit_code == 0
    assert result.stdout.startswith(rf"{tmp_path}/\xff\x1b[31m\n.gz: ok, ")
