"""``gpuload bench FILE...`` on the double, from the command line to the last byte."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from gpuload_cli import cli

from gpuload.engines import nvcomp_library
from tests.helpers.device_loads import clean_loads, compressed, new_stream, text, write
from tests.helpers.fakenvcomp import FakeNvcomp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

RAW = text(200_000)
QUICK = ("--repeats", "2", "--threads", "2", "--memory-limit", "16M")


@pytest.fixture(autouse=True)
def _clean(cuda) -> Iterator[None]:
    with clean_loads():
        yield


@pytest.fixture(autouse=True)
def _nvcomp(cuda, monkeypatch) -> Iterator[None]:
    made = FakeNvcomp(cuda)
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
    nvcomp_library._find.cache_clear()
    yield
    nvcomp_library._find.cache_clear()


@pytest.fixture(autouse=True)
def no_kvikio(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "data.lz4"
    path.write_bytes(compressed(RAW, "lz4"))
    return path


def run(*words: object) -> Result:
    # In a thread of its own: cuda.core keeps what it was told of a device as long as the thread.
    arguments = ["bench", *QUICK, *map(str, words)]
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, cli, arguments, catch_exceptions=False).result()


def rows_of(*words: object) -> list[dict]:
    """Return the rows of a run without errors."""
    done = run("--json", *words)
    assert (done.exit_code, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"] is True
    assert report["device"]["number"] == 0
    (facts,) = report["files"]
    assert [row["error"] for row in facts["rows"]] == [""] * len(facts["rows"])
    return facts["rows"]


def test_every_engine_and_way(file) -> None:
    rows = rows_of(file)
    assert [(row["name"], row["way"], row["to"]) for row in rows] == [
        *((name, way, "cuda:0") for name in ("hardware", "sm", "nvcomp") for way in WAYS),
        ("host", None, "cuda:0"),
        ("host", None, "cpu"),
        ("raw", None, "cpu"),
        ("raw", None, "cuda:0"),
        ("kvikio", None, "cuda:0"),
    ]
    assert rows.pop()["left_out"] == "KvikIO is not installed"
    for row in rows:
        assert len(row["seconds"]) == 2
        assert row["gb_per_s"] * row["median"] == pytest.approx(len(RAW) / 1e9)
    for row in rows[:7]:
        assert row["engine"] == row["name"]


WAYS = ("mapped", "read")


def test_some_engines_and_one_way(file) -> None:
    rows = rows_of(file, "--engine", "sm", "--way", "read", "--engine", "host")
    names = [(row["name"], row["way"]) for row in rows if row["kind"] == "load"]
    assert names == [("sm", "read"), ("host", None), ("host", None)]


def test_engine_that_does_not_take_the_file(tmp_path) -> None:
    path = tmp_path / "data.bgz"
    path.write_bytes(compressed(RAW, "gzip"))
    rows = rows_of(path)
    refused = [(row["name"], row["left_out"]) for row in rows if row["kind"] == "load"][2:4]
    reason = "the sm engine cannot decode this: "
    assert [(name, text[: len(reason)]) for name, text in refused] == [("sm", reason)] * 2
    # Asked for by name, it is wrong usage.
    done = run(path, "--engine", "sm", "--engine", "host")
    assert done.exit_code == 2
    assert f"sm mapped, sm read: {reason}" in done.stdout


class FakeKvikio:
    """What is used of KvikIO: reads a file to where an array is on the device."""

    def __init__(self) -> None:
        self.settings: list[tuple[str, int]] = []
        self.defaults = SimpleNamespace(set=self._set)

    def _set(self, name: str, value: int) -> FakeKvikio:
        self.settings.append((name, value))
        return self

    def CuFile(self, path: str) -> FakeKvikio:  # noqa: N802
        self.path = path
        return self

    def pread(self, array) -> SimpleNamespace:
        facts = array.__cuda_array_interface__
        assert (facts["typestr"], facts["strides"]) == ("|u1", None)
        data = np.fromfile(self.path, np.uint8)
        assert facts["shape"] == data.shape

        def get() -> int:
            write(facts["data"][0], data.tobytes(), new_stream())
            return data.size

        return SimpleNamespace(get=get)

    def __enter__(self) -> FakeKvikio:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.fixture
def kvikio(monkeypatch) -> FakeKvikio:
    made = FakeKvikio()
    made.__spec__ = object()
    monkeypatch.setitem(sys.modules, "kvikio", made)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", made.defaults)
    return made


def test_kvikio(file, kvikio) -> None:
    row = rows_of(file, "--engine", "host")[-1]
    assert (row["name"], row["left_out"], len(row["seconds"])) == ("kvikio", "", 2)
    assert kvikio.settings == [("num_threads", 2)]


def test_kvikio_that_fails(file, kvikio, monkeypatch) -> None:
    def pread(array):
        raise RuntimeError("no such device")

    monkeypatch.setattr(kvikio, "pread", pread)
    done = run(file, "--engine", "host")
    assert done.exit_code == 1
    assert done.stderr == f"gpuload: error: {file}: KvikIO: no such device\n"


def test_wrong_bytes(file, monkeypatch) -> None:
    """The device decodes something else than the host."""
    from gpuload.device_array import DeviceArray

    right = DeviceArray.to_host
    monkeypatch.setattr(DeviceArray, "to_host", lambda array: right(array)[::-1].copy())
    done = run(file, "--engine", "sm", "--way", "mapped")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == (
        f"gpuload: error: {file}: sm mapped: the decoded bytes are not those that the host decodes"
    )
