"""Parsing of sizes and of the options that every command shares."""

from __future__ import annotations

import click
import pytest
from gpuload_cli.options import UNLIMITED, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("65536", 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("64KB", 65536),
        ("64KiB", 65536),
        ("512M", 512 << 20),
        ("1GiB", 1 << 30),
        ("2g", 2 << 30),
        ("1.5g", 3 << 29),
        ("1 MiB", 1 << 20),
        ("1t", 1 << 40),
        ("1p", 1 << 50),
        ("100b", 100),
        ("100 bytes", 100),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "k", "-1", "1e9", "1..5k", "0x10", "1,000", "12q", "unlimited", "nan", "1" * 30, "\u0663"],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size such as 65536, 512M, 1GiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0.1", str(2**63), "9999999p"])
def test_sizes_out_of_range(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not between 1 and"):
        parse_size(text)


def test_a_limit_can_be_lifted() -> None:
    assert parse_size("Unlimited", liftable=True) == UNLIMITED


def test_zero_where_it_makes_sense() -> None:
    assert parse_size("0", minimum=0) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-output", "7q"], "'7q' is no size such as 65536, 512M, 1GiB or unlimited"),
        (["--memory-limit", "unlimited"], "'unlimited' is no size"),
        (["--memory-limit", "0"], "0 is not between 1 and"),
        (["--threads", "0"], "0 is not in the range"),
        (["--threads", "many"], "'many' is not a valid integer"),
        (["--frobnicate"], "No such option"),
    ],
)
@pytest.mark.parametrize("name", ["decompress", "inspect", "verify"])
def test_wrong_options_are_usage_errors(run, name: str, words: list[str], message: str) -> None:
    result = run(name, "file.gz", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("gpuload: error: ")
    assert f"Try 'gpuload {name} --help' for help." in result.stderr


def test_dictionary_is_limited(run, tmp_path, gzip_file) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate((32 << 20) + 1)
    result = run("decompress", gzip_file, "--dictionary", large)
    assert result.exit_code == 2
    assert "is larger than 32 MiB" in result.stderr


def test_dictionary_must_not_be_empty(run, tmp_path, gzip_file) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    result = run("decompress", gzip_file, "--dictionary", empty)
    assert result.exit_code == 2
    assert "is empty" in result.stderr


def test_missing_dictionary(run, tmp_path, gzip_file) -> None:
    result = run("decompress", gzip_file, "--dictionary", tmp_path / "none")
    assert result.exit_code == 1
    assert result.stderr == f"gpuload: error: {tmp_path}/none: No such file or directory\n"
