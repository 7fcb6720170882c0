"""``gpuload bench kernels`` without a GPU: its options, its data, and what it prints."""

from __future__ import annotations

import contextlib
import json
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import click
import cramjam
import deflate
import lz4.block
import numpy as np
import pytest
import zstandard
from gpuload_cli import bench_data
from gpuload_cli.bench_chunks import ALIGNMENT, compress
from gpuload_cli.bench_data import make
from gpuload_cli.bench_plan import Plan
from gpuload_cli.bench_report import errors, heading, line, title

from gpuload import driver
from gpuload.chunks import Codec

NO_CUDA = "there is no CUDA here"


class TestOptions:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--codec", "gzip"], "'gzip' is not one of 'lz4', 'snappy', 'deflate', 'zstd'"),
            (["--data", "noise"], "'noise' is not one of 'text', 'binary', 'weights', 'field'"),
            (["--engine", "auto"], "'auto' is not one of 'sm', 'nvcomp', 'hardware', 'host'"),
            (["--chunk-size", "1K", "--chunk-size", "7q"], "'7q' is no size"),
            (["--chunk-size", "1023"], "1023 is not between 1024 and"),
            (["--chunk-size", "1G"], "chunks are at most 512M"),
            (["--size", "63K"], "a chunk of 65536 bytes is more than the 64512 bytes of --size"),
            (["--size", "1000"], "1000 is not between 1024 and"),
            (["--chunks", "0"], "'0' is no number of chunks from 1 to 999999999, and not all"),
            (["--chunks", "-1"], "'-1' is no number of chunks"),
            (["--chunks", "1K"], "'1K' is no number of chunks"),
            (["--chunks", "\u0663"], "is no number of chunks"),
            (["--repeats", "0"], "0 is not in the range"),
            (["--device", "-1"], "-1 is not in the range"),
            (["file.lz4"], "Got unexpected extra argument (file.lz4)"),
        ],
    )
    def test_wrong_ones_are_usage_errors(self, run, words: list[str], message: str) -> None:
        result = run("bench", "kernels", *words)
        assert result.exit_code == 2
        assert message in result.stderr
        assert "Try 'gpuload bench kernels --help' for help." in result.stderr

    def test_help_has_examples(self, run) -> None:
        result = run("bench", "kernels", "--help")
        assert result.exit_code == 0
        assert "    gpuload bench kernels --mapped --json > results.json" in result.stdout

    def test_help_says_that_a_gpu_is_needed(self, run) -> None:
        words = run("bench", "kernels", "--help").stdout.split()
        assert "needs a GPU, also for --engine host" in " ".join(words)

    def test_other_words_are_files(self, run, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        result = run("bench", "nonsense")
        assert result.exit_code == 1
        assert result.stderr == "gpuload: error: nonsense: No such file or directory\n"

    @pytest.fixture
    def planned(self, run, monkeypatch) -> object:
        """Return what a command line asks to be measured."""
        plans = []

        def describe(plan, device_id):
            plans.append(plan)
            raise click.ClickException("enough")

        monkeypatch.setattr("gpuload_cli.bench_plan.find_device", lambda number: 0)
        monkeypatch.setattr("gpuload_cli.bench_plan.describe", describe)
        monkeypatch.setattr(driver, "on_device", lambda number: contextlib.nullcontext())

        def plan(*words: str) -> Plan:
            assert run("bench", "kernels", *words).exit_code == 1
            return plans.pop()

        return plan

    def test_defaults(self, planned) -> None:
        assert planned("--threads", "3") == Plan(
            codecs=("lz4", "snappy"),
            data=("text", "binary", "weights", "field"),
            chunk_sizes=(65536,),
            chunks=(None,),
            engines=(),
            size=1 << 30,
            repeats=7,
            threads=3,
            mapped=False,
        )

    def test_several_of_each(self, planned) -> None:
        plan = planned(
            *("--codec", "zstd", "--codec", "lz4", "--codec", "zstd", "--data", "field"),
            *("--chunk-size", "64K", "--chunk-size", "1M", "--chunk-size", "65536"),
            *("--chunks", "all", "--chunks", "256", "--engine", "sm", "--engine", "nvcomp"),
            *("--size", "2G", "--repeats", "3", "--mapped"),
        )
        assert (plan.codecs, plan.data) == (("zstd", "lz4"), ("field",))
        assert plan.chunk_sizes == (65536, 1 << 20)
        assert (plan.chunks, plan.engines) == ((None, 256), ("sm", "nvcomp"))
        assert (plan.size, plan.repeats, plan.mapped) == (2 << 30, 3, True)

    def test_no_more_chunks_than_there_are(self, planned) -> None:
        plan = planned("--chunks", "300", "--chunks", "all", "--chunks", "16", "--chunks", "200")
        assert plan.counts(200) == [200, 16]
        assert plan.counts(1000) == [300, 1000, 16, 200]


class TestWithoutGpu:
    @pytest.fixture(autouse=True)
    def no_cuda(self, monkeypatch) -> None:
        monkeypatch.setattr(driver, "unavailable", lambda: NO_CUDA)
        monkeypatch.setattr("gpuload.driver.devices.unavailable", lambda: NO_CUDA)

    @pytest.mark.parametrize("words", [[], ["--engine", "host"], ["--engine", "nvcomp"]])
    def test_one_line_says_so(self, run, words: list[str]) -> None:
        result = run("bench", "kernels", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"gpuload: error: there is no GPU to measure: {NO_CUDA}\n"

    def test_json(self, run) -> None:
        result = run("bench", "kernels", "--json")
        assert result.exit_code == 2
        error = f"there is no GPU to measure: {NO_CUDA}"
        assert json.loads(result.stdout) == {"ok": False, "error": error}
        assert result.stderr == f"gpuload: error: {error}\n"

    def test_a_device(self, run) -> None:
        result = run("bench", "kernels", "--device", "1")
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"device 1 can't be used: {NO_CUDA}\n" in result.stderr


class TestData:
    @pytest.mark.parametrize("name", ["text", "binary", "weights", "field"])
    @pytest.mark.parametrize("size", [1, 1024, 65537])
    def test_exact_and_the_same_every_time(self, name: str, size: int) -> None:
        content = make(name, size)
        assert (content.dtype, content.shape) == (np.uint8, (size,))
        assert np.array_equal(content, make(name, size))

    def test_text_is_of_the_standard_library(self) -> None:
        source = Path(sysconfig.get_path("stdlib"), "__future__.py").read_bytes()
        assert source in make("text", 1 << 18).tobytes()

    def test_weights_are_bfloat16_of_a_normal_distribution(self) -> None:
        upper = make("weights", 1 << 18).view(np.uint16).astype(np.uint32)
        numbers = (upper << 16).view(np.float32)
        assert abs(numbers.mean()) < 0.001
        assert numbers.std() == pytest.approx(0.02, rel=0.02)

    def test_field_is_smooth_and_rounded(self) -> None:
        numbers = make("field", 1 << 18).view(np.float32)
        assert np.array_equal(numbers * 64, np.round(numbers * 64))
        assert np.abs(np.diff(numbers)).max() < 1

    def test_field_does_not_depend_on_blocks(self, monkeypatch) -> None:
        monkeypatch.setattr(bench_data, "_BLOCK", 1000)
        numbers = make("field", 40_000).view(np.float32)
        assert np.abs(np.diff(numbers)).max() < 1

    def test_what_is_generated_repeats(self, monkeypatch) -> None:
        monkeypatch.setattr(bench_data, "_GENERATED", 1000)
        content = make("weights", 3700).tobytes()
        assert content == (content[:1000] * 4)[:3700]

    @pytest.fixture
    def installation(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.setattr(bench_data, "_folders", lambda: [tmp_path, tmp_path / "site"])
        return tmp_path

    def test_text_of_an_installation(self, installation) -> None:
        (installation / "b.py").write_bytes(b"second")
        (installation / "a.py").write_bytes(b"first ")
        (installation / "a.txt").write_bytes(b"no source")
        (installation / "gone.py").symlink_to(installation / "nowhere")
        (installation / "site").mkdir()
        (installation / "site" / "c.py").write_bytes(b" third ")
        assert make("text", 30).tobytes() == b"first second third first secon"

    def test_libraries_of_an_installation(self, installation) -> None:
        for number in range(10):
            path = installation / f"lib{number}.so.{number}"
            path.write_bytes(b"%d" % number * (number + 1))
        (installation / "lib.so").symlink_to(installation / "nowhere")
        # Two bytes from each of the eight largest.
        assert make("binary", 16).tobytes() == b"9988776655443322"

    @pytest.mark.parametrize("name", ["text", "binary"])
    def test_installation_without_files(self, installation, name: str) -> None:
        with pytest.raises(click.ClickException, match=f"data set '{name}' in {installation}"):
            make(name, 100)


DECODERS = {
    "lz4": lambda stored, size: lz4.block.decompress(stored, uncompressed_size=size),
    "snappy": lambda stored, size: bytes(cramjam.snappy.decompress_raw(stored)),
    "deflate": lambda stored, size: bytes(deflate.deflate_decompress(stored, size)),
    "zstd": lambda stored, size: zstandard.decompress(stored),
}


class TestCompress:
    @pytest.mark.parametrize("codec", DECODERS)
    @pytest.mark.parametrize("chunk_size", [1024, 1 << 14, 100_000, 3 << 20])
    @pytest.mark.parametrize("name", ["text", "weights"])
    def test_chunks_decode(self, codec: str, chunk_size: int, name: str) -> None:
        content = make(name, (1 << 20) + 100_001)
        chunks = compress(content, codec, chunk_size, threads=2)
        assert set(chunks.rows["codec"]) == {Codec[codec.upper()]}
        assert set(chunks.rows["raw_size"][:-1]) <= {chunk_size}
        assert chunks.rows["exact"].all()
        decoded, total = [], 0
        for row in chunks.rows:
            start = int(row["offset"]) - int(row["prefix_size"])
            stored = chunks.stored[start : int(row["offset"]) + int(row["stored_size"])].tobytes()
            assert start % ALIGNMENT == 0
            assert row["dst_offset"] == sum(map(len, decoded))
            decoded.append(DECODERS[codec](stored, int(row["raw_size"])))
            total += len(stored)
        assert b"".join(decoded) == content.tobytes()
        count = chunks.rows.size
        assert (chunks.stored_size(count), chunks.raw_size(count)) == (total, content.size)
        assert chunks.raw_size(1) == len(decoded[0])

    @pytest.mark.parametrize(
        ("size", "length"), [(127, 1), (128, 2), (16383, 2), (16384, 3), (2097151, 3), (2097152, 4)]
    )
    def test_preamble_of_snappy_is_the_prefix(self, size: int, length: int) -> None:
        chunks = compress(np.zeros(size, np.uint8), "snappy", size, threads=1)
        assert chunks.rows["prefix_size"].tolist() == [length]
        assert chunks.rows["offset"].tolist() == [length]
        # The preamble is the size in groups of 7 bits; the highest bit says that one more follows.
        preamble = chunks.stored[:length].tolist()
        assert [byte >> 7 for byte in preamble] == [1] * (length - 1) + [0]
        assert sum((byte & 127) << (7 * at) for at, byte in enumerate(preamble)) == size


def result(gb_per_s: float | None = None, **changes) -> dict:
    """Return a measurement as it stands in a record."""
    return {
        "gb_per_s": gb_per_s,
        "stored_gb_per_s": gb_per_s and gb_per_s / 2,
        "median": gb_per_s and 1 / gb_per_s,
        "seconds": [],
        "waited": False,
        "refused": "",
        "error": "",
        **changes,
    }


def batch(results: dict, **changes) -> dict:
    return {
        "kind": "batch",
        "codec": "lz4",
        "data": "text",
        "chunk_size": 65536,
        "chunks": 16384,
        "ratio": 2.8149,
        "results": results,
        "sm_to_nvcomp": None,
        **changes,
    }


@pytest.fixture
def report() -> dict:
    return {
        "gpuload": "1.2.3",
        "device": {"name": "NVIDIA H200", "cuda": "13.0", "driver": "580.159.04"},
        "columns": ["sm", "nvcomp", "host", "copy"],
        "unavailable": {"hardware": "it has none"},
        "notes": ["that is little"],
        "plan": {"mapped": False, "repeats": 7, "size": 1 << 30, "threads": 16},
    }


class TestTable:
    def test_heading(self, report) -> None:
        assert list(heading(report)) == [
            "gpuload 1.2.3, NVIDIA H200, CUDA 13.0, driver 580.159.04",
            "no column for hardware: it has none",
            "note: that is little",
            "GB/s of decompressed bytes, medians of 7 runs, 1.0 GiB a data set",
            "stored chunks are in device memory; copy: the content is copied there",
            "host: 16 threads, from host memory to host memory",
        ]

    def test_heading_of_mapped_chunks(self, report) -> None:
        report["device"]["driver"] = None
        report["columns"] = ["sm", "copy"]
        report["plan"] |= {"mapped": True, "repeats": 1}
        report |= {"unavailable": {}, "notes": []}
        assert list(heading(report)) == [
            "gpuload 1.2.3, NVIDIA H200, CUDA 13.0",
            "GB/s of decompressed bytes (of stored ones), one run, 1.0 GiB a data set",
            "stored chunks are in host memory; copy: they are copied to the device",
        ]

    def test_columns(self, report) -> None:
        numbers = {"sm": 201.26, "nvcomp": 125.8, "host": 9.876, "copy": 2104.2}
        results = {name: result(number) for name, number in numbers.items()}
        lines = [title(report), line(batch(results, sm_to_nvcomp=1.5998), report)]
        assert lines == [
            "codec   data     ratio   chunk   chunks        sm    nvcomp      host      copy"
            " sm/nvcomp",
            "lz4     text      2.81     64K   16,384       201       126      9.88     2,104"
            "      1.60",
        ]

    def test_what_was_not_measured(self, report) -> None:
        results = {
            "sm": result(refused="there is no kernel"),
            "nvcomp": result(error="wrong bytes"),
            "host": result(0.02639),
            "copy": result(12.34, waited=True),
        }
        record = batch(results, codec="deflate", data="weights", chunk_size=1 << 20, chunks=1)
        assert line(record, report) == (
            "deflate weights   2.81      1M        1         -    failed     0.026     12.3*"
            "         -"
        )

    def test_mapped(self, report) -> None:
        report["columns"] = ["sm", "copy"]
        report["plan"]["mapped"] = True
        results = {"sm": result(50.04), "copy": result(100.5)}
        assert [title(report), line(batch(results, chunk_size=1000), report)] == [
            "codec   data     ratio   chunk   chunks              sm            copy",
            "lz4     text      2.81    1000   16,384     50.0 (25.0)      100 (50.2)",
        ]

    def test_time_of_the_host(self, report) -> None:
        times = {"sm": {"median": 31.26e-6}, "nvcomp": {"median": 110e-6}}
        results = {name: {"waited": False, "error": "", **time} for name, time in times.items()}
        record = batch(results, kind="submit", chunks=1)
        assert line(record, report) == (
            "lz4     host us            64K        1      31.3       110"
        )

    def test_errors(self) -> None:
        good, bad = {"sm": result(1.0)}, {"sm": result(1.0), "host": result(error="wrong")}
        assert list(errors([batch(good), batch(bad, chunk_size=4096)])) == [
            "host, lz4, text, chunks of 4K: wrong"
        ]


class TestCommand:
    """The command around measurements that are made up."""

    @pytest.fixture(autouse=True)
    def measured(self, report, monkeypatch) -> SimpleNamespace:
        made = SimpleNamespace(rows=[batch({"sm": result(8.0), "copy": result(16.0)})])
        report["columns"] = ["sm", "copy"]
        monkeypatch.setattr("gpuload_cli.bench_plan.find_device", lambda number: 0)
        monkeypatch.setattr("gpuload_cli.bench_plan.describe", lambda plan, device_id: report)
        monkeypatch.setattr(driver, "on_device", lambda number: contextlib.nullcontext())
        pytest.importorskip("cuda.core", reason="cuda-core has no wheels for this platform")
        monkeypatch.setattr(
            "gpuload_cli.bench_kernels.measure",
            lambda plan, device_id, names: (row for row in made.rows),
        )
        return made

    def test_table(self, run, report) -> None:
        done = run("bench", "kernels")
        assert (done.exit_code, done.stderr) == (0, "")
        *above, empty, head, row = done.stdout.splitlines()
        assert (above, empty) == (list(heading(report)), "")
        assert head.split() == ["codec", "data", "ratio", "chunk", "chunks", "sm", "copy"]
        assert row.split() == ["lz4", "text", "2.81", "64K", "16,384", "8.00", "16.0"]

    def test_json(self, run, report, measured) -> None:
        done = run("bench", "kernels", "--json")
        assert (done.exit_code, done.stderr) == (0, "")
        assert json.loads(done.stdout) == {**report, "rows": measured.rows, "ok": True}

    @pytest.mark.parametrize("words", [[], ["--json"]])
    def test_wrong_bytes(self, run, measured, words: list[str]) -> None:
        measured.rows.append(batch({"sm": result(error="byte 5 is wrong"), "copy": result(1.0)}))
        done = run("bench", "kernels", *words)
        assert done.exit_code == 1
        assert done.stderr == ("gpuload: error: sm, lz4, text, chunks of 64K: byte 5 is wrong\n")
        assert ("failed" in done.stdout) == (not words)
        assert ('"ok": false' in done.stdout) == bool(words)
