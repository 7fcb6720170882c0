"""What README.md shows is true: its example runs, and its messages are gpuload's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from gpuload_cli import cli

import gpuload

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
WEATHER = "samples/weather.csv.lz4"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A copy of the samples, where the examples may write."""
    (tmp_path / "samples").mkdir()
    shutil.copy(ROOT / WEATHER, tmp_path / WEATHER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python(folder: Path, capsys) -> None:
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("lz4 7 True\n")
    assert "1000" in printed.splitlines()[-1]
    assert (folder / "weather.csv.zst").stat().st_size > 0


def test_commands(folder: Path) -> None:
    """They run one after the other, as a user copies them, and leave what they say they do."""
    (example,) = (block for block in blocks("sh") if block.startswith("gpuload "))
    shim = folder / "bin" / "gpuload"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuload "$@"\n')
    shim.chmod(0o755)
    content = bytes(gpuload.load(WEATHER, device="cpu"))
    (folder / "weather.csv").write_bytes(content)
    path = os.pathsep.join((str(shim.parent), os.environ["PATH"]))
    done = subprocess.run(
        ["sh", "-e"],
        input=example,
        text=True,
        capture_output=True,
        env={**os.environ, "PATH": path},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert content.decode().startswith("".join(done.stdout.splitlines(keepends=True)[:3]))
    for name in ("data", "logs.txt", "unpacked/logs", "unpacked/table"):
        assert (folder / name).read_bytes() == content


def test_errors(folder: Path) -> None:
    (example,) = blocks("console")
    data = bytearray((folder / WEATHER).read_bytes())
    (folder / "cut.lz4").write_bytes(data[:70_000])
    data[70_000] ^= 1
    (folder / "damaged.lz4").write_bytes(data)
    shown = []
    for line in example.splitlines():
        if line.startswith("$ gpuload "):
            shown.append(line)
            shown += CliRunner().invoke(cli, line.split()[2:]).output.splitlines()
    assert shown == example.splitlines()


def test_the_commands_that_ci_runs_are_marked() -> None:
    marks = re.findall(r"^<!-- (\w+) -->\n```sh$", README, re.MULTILINE)
    assert marks == ["install", "test"]
    used = re.findall(r"\(readme (\w+)\)", (ROOT / ".ci/run").read_text())
    assert used == marks
