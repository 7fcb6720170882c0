"""``gpuload bench FILE...`` without a GPU: its options, what it measures, and what it prints."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest
from gpuload_cli import bench_plot
from gpuload_cli.bench_clock import Runs
from gpuload_cli.bench_lines import line, notes, title

from gpuload import driver

if TYPE_CHECKING:
    from pathlib import Path

NO_CUDA = "there is no CUDA here"
QUICK = ("--repeats", "2", "--threads", "2")


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: NO_CUDA)
    monkeypatch.setattr("gpuload.driver.devices.unavailable", lambda: NO_CUDA)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """Where the decompressed copy goes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def no_matplotlib(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)


class TestUsage:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "Missing argument 'FILE...'"),
            (["--json"], "Missing argument 'FILE...'"),
            (["--engine", "auto", "x"], "'auto' is not one of 'hardware', 'sm', 'nvcomp', 'host'"),
            (["x", "--way", "remote"], "'remote' is not one of 'mapped', 'read'"),
            (["--repeats", "0", "x"], "0 is not in the range"),
            (["x", "--raw-limit", "many"], "'many' is no size"),
            (["x", "--plot", "x.gif"], "x.gif must end in one of .png, .svg, .pdf"),
            (["x", "--plot", "png"], "png must end in one of .png, .svg, .pdf"),
            (["x", "y", "--plot", "x.png"], "--plot takes one FILE"),
            (["x", "-"], "standard input can be read only once; name a file"),
            (["x", "--unknown"], "No such option"),
        ],
    )
    def test_wrong_words(self, run, words: list[str], message: str) -> None:
        done = run("bench", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr
        assert "\nTry 'gpuload bench --help' for help.\n" in done.stderr

    def test_help_lists_the_other_command(self, run) -> None:
        done = run("bench", "--help")
        assert done.exit_code == 0
        assert done.stdout.startswith("Usage: gpuload bench [OPTIONS] FILE...\n")
        assert "\nCommands:\n  kernels  " in done.stdout
        assert "    gpuload bench data.lz4 --plot data.png\n" in done.stdout

    def test_plot_over_the_input(self, run, lz4_file, tmp_path) -> None:
        path = lz4_file.path.rename(tmp_path / "data.png")
        done = run("bench", path, "--plot", path, "--force")
        assert done.exit_code == 2
        assert "is the same file as the input" in done.stderr

    @pytest.mark.parametrize("words", [["--engine", "sm"], ["--engine", "host", "--engine", "sm"]])
    def test_engine_that_is_not_here(self, run, lz4_file, words: list[str]) -> None:
        done = run("bench", lz4_file.path, *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == f"gpuload: error: the sm engine cannot run here: {NO_CUDA}\n"

    def test_device_that_is_not_here(self, run, lz4_file) -> None:
        done = run("bench", lz4_file.path, "--device", "3", "--json")
        assert done.exit_code == 2
        error = f"device 3 can't be used: {NO_CUDA}"
        assert json.loads(done.stdout) == {"ok": False, "error": error}
        assert done.stderr == f"gpuload: error: {error}\n"

    def test_a_file_that_is_called_as_a_command(self, run, lz4_file, tmp_path, monkeypatch) -> None:
        lz4_file.path.rename(tmp_path / "kernels")
        monkeypatch.chdir(tmp_path)
        assert run("bench", *QUICK, "./kernels").exit_code == 0


def measured(run, *words: object) -> dict:
    """Return the report of a run without errors."""
    done = run("bench", *QUICK, "--json", *words)
    assert (done.exit_code, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"] is True
    return report


class TestMeasurements:
    def test_json(self, run, lz4_file, temporary: Path) -> None:
        report = measured(run, lz4_file.path)
        assert (report["device"], report["no_device"]) == (None, NO_CUDA)
        assert report["plan"]["options"] == {"threads": 2, "strict": False, "verify": "auto"}
        (facts,) = report["files"]
        size = len(lz4_file.content)
        assert (facts["ok"], facts["format"], facts["raw_size"]) == (True, "lz4", size)
        assert facts["chunks"] == len(lz4_file.blocks())
        assert facts["ratio"] == pytest.approx(size / lz4_file.path.stat().st_size)
        load, raw = facts["rows"]
        assert (load["kind"], load["name"], load["way"], load["to"]) == (
            "load",
            "host",
            None,
            "cpu",
        )
        assert sum(load["verified"].values()) >= facts["chunks"]
        assert load["engine"] == "host"
        for name in ("stages", "windows", "ways", "peak_host", "peak_device", "busy_cores"):
            assert name in load
        assert (raw["kind"], raw["name"], raw["to"]) == ("reference", "raw", "cpu")
        for row in (load, raw):
            assert (len(row["seconds"]), len(row["cpu_seconds"])) == (2, 2)
            assert row["gb_per_s"] * row["median"] == pytest.approx(size / 1e9)
        assert list(temporary.iterdir()) == []

    def test_table(self, run, lz4_file, gzip_file) -> None:
        done = run("bench", *QUICK, lz4_file.path, gzip_file)
        assert (done.exit_code, done.stderr) == (0, "")
        above, first, second = done.stdout.split("\n\n")
        assert f"no GPU, so that only the host decodes, to its memory: {NO_CUDA}\n" in above
        assert "medians of 2 runs after one that does not count" in above
        for table, name in ((first, lz4_file.path), (second, gzip_file)):
            facts, head, load, raw = table.splitlines()
            assert facts.startswith(f"{name}: ")
            assert head.split()[:3] == ["GB/s", "ms", "cores"]
            assert load.startswith("host to memory ")
            assert raw.startswith("raw copy to memory ")

    def test_without_checksums(self, run, lz4_file) -> None:
        lz4_file.damage(1)
        report = measured(run, lz4_file.path, "--no-verify")
        assert report["files"][0]["rows"][0]["verified"] == {}

    def test_copy_that_is_too_large(self, run, lz4_file, temporary: Path) -> None:
        report = measured(run, lz4_file.path, "--raw-limit", "1000")
        (load, raw) = report["files"][0]["rows"]
        assert load["left_out"] == ""
        size = f"{len(lz4_file.content) / 1024:.1f} KiB"
        reason = f"the {size} of the decompressed copy are more than --raw-limit"
        assert raw["left_out"] == reason
        done = run("bench", *QUICK, lz4_file.path, "--raw-limit", "1000")
        assert done.stdout.endswith(f"\nraw copy to memory: {reason}\n")

    def test_empty_file(self, run, tmp_path) -> None:
        (tmp_path / "empty").touch()
        assert run("compress", tmp_path / "empty", "-o", tmp_path / "empty.lz4").exit_code == 0
        report = measured(run, tmp_path / "empty.lz4")
        assert report["files"][0]["raw_size"] == 0


class TestErrors:
    def test_missing_file_among_others(self, run, lz4_file, tmp_path) -> None:
        done = run("bench", *QUICK, "--json", tmp_path / "nowhere", lz4_file.path)
        assert done.exit_code == 1
        error = f"{tmp_path}/nowhere: No such file or directory"
        assert done.stderr == f"gpuload: error: {error}\n"
        report = json.loads(done.stdout)
        assert report["ok"] is False
        assert [facts["ok"] for facts in report["files"]] == [False, True]
        assert report["files"][0]["error"] == error

    def test_broken_file(self, run, lz4_file) -> None:
        lz4_file.damage(2)
        done = run("bench", *QUICK, lz4_file.path)
        assert done.exit_code == 1
        assert f"{lz4_file.path}: chunk 2 at byte " in done.stderr

    def test_wrong_bytes(self, run, lz4_file, monkeypatch) -> None:
        monkeypatch.setattr("gpuload_cli.bench_loads.digest", lambda array: "something else")
        monkeypatch.setattr("gpuload_cli.bench_references.digest", lambda array: "yet another")
        done = run("bench", *QUICK, lz4_file.path)
        assert done.exit_code == 1
        assert done.stderr.splitlines() == [
            f"gpuload: error: {lz4_file.path}: host to memory: the decoded bytes are not those "
            "that the host decodes",
            f"gpuload: error: {lz4_file.path}: raw copy to memory: the bytes that were read are "
            "not those of the file",
        ]
        assert [row.split()[-1] for row in done.stdout.splitlines()[-2:]] == ["failed", "failed"]

    @pytest.mark.usefixtures("no_matplotlib")
    def test_plot_without_matplotlib(self, run, lz4_file, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("gpuload_cli.bench_rows.measure", None)  # nothing is timed before
        done = run("bench", lz4_file.path, "--plot", tmp_path / "plot.png", "--json")
        assert done.exit_code == 1
        error = "--plot needs matplotlib: pip install 'gpuload[plot]'"
        assert done.stderr == f"gpuload: error: {error}\n"
        assert json.loads(done.stdout) == {"ok": False, "error": error}
        assert not (tmp_path / "plot.png").exists()


def stage(busy: float) -> dict:
    return {"bytes": 1, "seconds": busy, "busy": busy, "rate": 1 / busy, "intervals": [[0, busy]]}


def load(**changes) -> dict:
    """Return the record of a load."""
    return {
        "kind": "load",
        "name": "sm",
        "way": "mapped",
        "to": "cuda:0",
        "left_out": "",
        "error": "",
        "gb_per_s": 96.54,
        "median": 0.0445,
        "busy_cores": 2.5,
        "raw_size": 4 << 30,
        "engine": "sm",
        "passed_over": {},
        "ways": {"mapped": 1} if changes.get("way", "mapped") == "mapped" else {"read": 1},
        "unverified": {},
        "peak_host": 64 << 20,
        "peak_device": (300 << 20) + 1,
        "stages": {"index": stage(0.002), "copy": stage(0.0321), "decode": stage(0.0399)},
        **changes,
    }


class TestLines:
    def test_load(self) -> None:
        assert [title(), line(load())] == [
            "                      GB/s       ms  cores  index   read   copy decode filter verify"
            "  fetch   host    GPU",
            "sm mapped             96.5     44.5   2.50   2.00          32.1   39.9              "
            "            64    301",
        ]

    def test_reference(self) -> None:
        record = load(kind="reference", name="kvikio", way=None)
        assert line(record).split() == ["KvikIO", "96.5", "44.5", "2.50"]

    def test_host_to_a_device(self) -> None:
        assert line(load(name="host", way=None, left_out="it is not here")).split() == [
            *("host", "to", "GPU", "-")
        ]

    def test_notes(self) -> None:
        records = [
            load(unverified={"xxh32": 1, "xxh32_stored": 16384}),
            load(way="read", engine="sm, host", passed_over={"sm": "too large (1 of 9 chunks)"}),
            load(name="hardware", engine="hardware", ways={}),
            load(name="nvcomp", engine="nvcomp", left_out="not this codec"),
            load(name="nvcomp", engine="nvcomp", way="read", left_out="not this codec"),
        ]
        assert list(notes(records)) == [
            "sm mapped: checksums that were not checked: 1 xxh32, 16,384 xxh32_stored",
            "sm read: decoded by sm, host: too large (1 of 9 chunks)",
            "hardware mapped: stored bytes did not come that way",
            "nvcomp mapped, nvcomp read: not this codec",
        ]


def test_the_median_run() -> None:
    runs = Runs([0.5, 0.1, 0.3, 0.2], [1.0, 0.1, 0.6, 0.3])
    record = runs.record(10**9)
    assert record["median"] == pytest.approx(0.25)
    assert record["gb_per_s"] == pytest.approx(4)
    # The faster of the two in the middle.
    assert (runs.middle, record["busy_cores"]) == (3, pytest.approx(1.5))


def luminance(color: str) -> float:
    """Return the relative luminance of a color (WCAG 2.2, "relative luminance")."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


class TestPlot:
    @pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
    def test_colors_on_pages(self, page: str) -> None:
        for color in {bench_plot._GREY, *bench_plot._LANES}:
            dark, bright = sorted((luminance(color), luminance(page)))
            # WCAG 2.2, success criteria 1.4.3 for large text and 1.4.11 for graphics.
            assert (bright + 0.05) / (dark + 0.05) >= 3

    @pytest.fixture
    def rows(self) -> list[dict]:
        return [
            load(name="host", way=None, to="cpu", gb_per_s=200.0),
            load(gb_per_s=90.0),
            load(way="read"),
            load(name="nvcomp", left_out="it is not here", stages={}),
            load(kind="reference", name="raw", way=None, stages={}),
        ]

    def test_timeline_of_the_fastest_load_to_a_device(self, rows) -> None:
        assert bench_plot._fastest(rows) is rows[2]
        assert bench_plot._fastest(rows[:1]) is rows[0]
        assert bench_plot._fastest(rows[4:]) is None

    def test_intervals_that_overlap(self) -> None:
        assert bench_plot._union([(4, 5), (0, 2), (1, 3), (3, 3.5)]) == [(0, 3.5), (4, 5)]

    @pytest.mark.parametrize(
        ("kind", "start"), [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
    )
    def test_picture(self, rows, kind: str, start: bytes) -> None:
        pytest.importorskip("matplotlib", reason="matplotlib draws, and is not installed")
        report, facts = {"device": {"name": "H200"}}, {"file": "a$1$\udcff.lz4", "rows": rows}
        image = bench_plot.draw(report, facts, kind)
        assert image.startswith(start)
        assert bench_plot.draw(report, facts, kind) == image

    def test_from_the_command_line(self, run, lz4_file, tmp_path) -> None:
        pytest.importorskip("matplotlib", reason="matplotlib draws, and is not installed")
        plot = tmp_path / "plot.SVG"
        assert run("bench", *QUICK, lz4_file.path, "--plot", plot).exit_code == 0
        assert b"</svg>" in plot.read_bytes()
        done = run("bench", *QUICK, lz4_file.path, "--plot", plot)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"gpuload: error: {plot}: File exists; --force overwrites it\n"
        assert run("bench", *QUICK, lz4_file.path, "--plot", plot, "--force").exit_code == 0
