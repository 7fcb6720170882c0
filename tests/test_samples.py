"""Every sample runs as it is, and shows what it says it shows."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpuload

if TYPE_CHECKING:
    from types import ModuleType

SAMPLES = Path(__file__).parents[1] / "samples"
SCRIPTS = sorted(path.stem for path in SAMPLES.glob("*.py"))
WEATHER = SAMPLES / "weather.csv.lz4"
#: What samples/README.md says of the file.
WEATHER_SIZE, WEATHER_LINES, WEATHER_CHUNKS = 426_894, 9_001, 7


def sample(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sample_{name}", SAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SCRIPTS)
def test_main_runs(name: str, capsys) -> None:
    module = sample(name)
    assert module.__doc__.count("\n") >= 3, "the docstring says what the script shows"
    module.main()
    printed = capsys.readouterr()
    assert printed.out
    assert not printed.err


def test_there_is_a_line_about_each_script() -> None:
    named = re.findall(r"^\| `(\w+)\.py`", (SAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == SCRIPTS


def test_load_into_numpy(capsys) -> None:
    sample("load_into_numpy").main()
    printed = capsys.readouterr().out
    assert f"{WEATHER_SIZE:,} bytes as uint8" in printed
    assert f"lines: {WEATHER_LINES:,}" in printed
    assert "memory of our own: True" in printed


def test_load_into_numpy_takes_a_file(capsys, tmp_path) -> None:
    path = tmp_path / "lines.sz"
    gpuload.compress(b"one\ntwo\n", path, codec="snappy")
    sample("load_into_numpy").main(path)
    assert "lines.sz: 8 bytes" in capsys.readouterr().out


def test_inspect_chunks(capsys) -> None:
    sample("inspect_chunks").main()
    printed = capsys.readouterr().out
    assert f"weather.csv.lz4: lz4, chunks: {WEATHER_CHUNKS}, independent" in printed
    counts = re.findall(r"^ +[\d.]+ to +[\d.]+ +(\d+)", printed, re.MULTILINE)
    assert sum(map(int, counts)) == WEATHER_CHUNKS


def test_inspect_chunks_of_a_serial_file(capsys, tmp_path) -> None:
    gzip = shutil.which("gzip")
    if gzip is None:
        pytest.skip("needs the gzip tool")
    path = tmp_path / "lines.gz"
    with path.open("wb") as file:
        subprocess.run([gzip, "-c"], input=b"one\ntwo\n" * 99, stdout=file, check=True)
    sample("inspect_chunks").main(path)
    printed = capsys.readouterr().out
    assert "lines.gz: gzip, chunks: 1, serial: " in printed
    assert "at most" in printed


def test_compress_and_verify(capsys) -> None:
    sample("compress_and_verify").main()
    printed = capsys.readouterr().out
    assert printed.count("content equal") == 4
    assert re.search(r"one bit flipped: .*chunk \d+ at byte \d+: .*xxHash", printed)


@pytest.mark.skipif(not shutil.which("lz4"), reason="needs the lz4 tool")
def test_weather_is_what_lz4_reads() -> None:
    content = subprocess.run(["lz4", "-dc", WEATHER], check=True, capture_output=True).stdout
    assert len(content) == WEATHER_SIZE
    assert content.count(b"\n") == WEATHER_LINES
    assert content == bytes(gpuload.load(WEATHER))
