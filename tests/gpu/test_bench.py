"""``gpuload bench kernels`` on a GPU."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from gpuload_cli import cli

pytestmark = pytest.mark.gpu

SMALL = ("--size", "8M", "--repeats", "3")


def measured(*words: str) -> dict:
    done = CliRunner().invoke(
        cli, ["bench", "kernels", "--json", *SMALL, *words], catch_exceptions=False
    )
    assert (done.exit_code, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"] is True
    return report


@pytest.mark.parametrize("words", [[], ["--mapped"]])
def test_lz4_and_snappy(words: list[str]) -> None:
    report = measured(*words, "--chunks", "all", "--chunks", "1")
    assert {"sm", "host", "copy"} <= {*report["columns"]}
    batches = [row for row in report["rows"] if row["kind"] == "batch"]
    assert [row["chunks"] for row in batches] == [128, 1] * 8
    for row in report["rows"]:
        for name in {"sm", *row["results"]}:
            result = row["results"][name]
            assert (result["refused"], result["error"]) == ("", "")
            assert result["median"] > 0


def test_codecs_that_others_decode() -> None:
    words = ("--codec", "deflate", "--codec", "zstd", "--data", "text", "--chunk-size", "256K")
    for row in measured(*words)["rows"]:
        assert row["results"]["sm"]["refused"]
        assert not any(result["error"] for result in row["results"].values())


def test_the_host_is_ahead_of_the_device() -> None:
    """Rates are those of the device alone."""
    report = measured("--codec", "lz4", "--data", "text", "--size", "128M", "--engine", "sm")
    (row,) = [row for row in report["rows"] if row["kind"] == "batch"]
    assert row["results"]["sm"]["waited"] is False
