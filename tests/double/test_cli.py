"""The command line on the double: who decodes, what fails how, and what doctor lists."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import cramjam
import lz4.block
import pytest
import zstandard
from click.testing import CliRunner
from gpuload_cli import cli

from tests.helpers.fakecuda import Code
from tests.helpers.handmade import (
    BGZF_EOF,
    INDEPENDENT,
    SIZE,
    SNAPPY_IDENTIFIER,
    V1,
    bgzf_block,
    deflated,
    lz4_block,
    lz4_frame,
    snappy_data,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

PARTS = [
    b"".join(b"%d green bottles\n" % number for number in range(2000)),
    random.Random(3).randbytes(10_000) + bytes(20_000),
    b"and nothing at all " * 1000,
]
CONTENT = b"".join(PARTS)
WITH_ZEROS = PARTS[0] + bytes(len(PARTS[1])) + PARTS[2]


def lz4_file(payloads: list[bytes]) -> bytes:
    blocks = map(lz4_block, payloads)
    return lz4_frame(*blocks, flags=V1 | INDEPENDENT | SIZE, size=len(CONTENT))


def snappy_elements(part: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(part))[len(varint(len(part))) :]


def snappy_file(payloads: list[bytes]) -> bytes:
    chunks = (snappy_data(p, elements=e) for p, e in zip(PARTS, payloads, strict=True))
    return SNAPPY_IDENTIFIER + b"".join(chunks)


def bgzf_file(payloads: list[bytes]) -> bytes:
    good = [(deflated(part), bgzf_block(part)) for part in PARTS]
    blocks = (b.replace(d, p) for (d, b), p in zip(good, payloads, strict=True))
    return b"".join(blocks) + BGZF_EOF


#: How a part becomes a payload, payloads become a file, and what no payload may start with: an LZ4
#: match at distance 0, a Snappy copy from before the start, a DEFLATE block of type 3.
FORMATS = {
    "lz4": (lambda part: lz4.block.compress(part, store_size=False), lz4_file, bytes(4)),
    "sz": (snappy_elements, snappy_file, b"\xff" * 4),
    "bgz": (deflated, bgzf_file, b"\xff" * 4),
}

every_format = pytest.mark.parametrize("suffix", FORMATS)
formats_with_sizes = pytest.mark.parametrize("suffix", ["sz", "bgz"])
every_command = pytest.mark.parametrize("name", ["decompress", "inspect", "verify"])
HARDWARE = ("--engine", "hardware")
ROOT = Path(__file__).parents[2]


def run(*args: object) -> Result:
    words = [os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args]
    # In a thread of its own: cuda.core keeps what it was told of a device as long as the thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, cli, words, catch_exceptions=False).result()


@pytest.fixture
def good(tmp_path: Path) -> Callable[[str], Path]:
    """Write a good file with a suffix."""

    def write(suffix: str) -> Path:
        packed, file, _ = FORMATS[suffix]
        path = tmp_path / f"data.{suffix}"
        path.write_bytes(file([packed(part) for part in PARTS]))
        return path

    return write


@pytest.fixture
def bad(tmp_path: Path) -> Callable[[str], tuple[Path, int]]:
    """Write a file whose chunk 1 does not decode; return it with the offset of that payload."""

    def write(suffix: str) -> tuple[Path, int]:
        packed, file, nonsense = FORMATS[suffix]
        payloads = [packed(part) for part in PARTS]
        payloads[1] = nonsense + payloads[1][len(nonsense) :]
        path = tmp_path / f"bad.{suffix}"
        path.write_bytes(file(payloads))
        return path, path.read_bytes().index(payloads[1])

    return write


class TestKernels:
    """``--engine sm``, on the formats that have kernels."""

    @pytest.mark.parametrize("suffix", ["lz4", "sz"])
    @pytest.mark.parametrize("more", [(), ("--device", 0), ("--untrusted",), ("--trusted",)])
    def test_exact_bytes(self, cuda, good, suffix: str, more: tuple[object, ...]) -> None:
        path = good(suffix)
        result = run("decompress", path, "--json", "--engine", "sm", *more)
        assert (result.exit_code, result.stderr) == (0, "")
        assert path.with_suffix("").read_bytes() == CONTENT
        assert json.loads(result.stdout)["engine"] == "sm"
        assert cuda.recorder.calls["cuLaunchKernelEx"]

    @pytest.mark.parametrize("suffix", ["lz4", "sz"])
    def test_inspect_and_verify(self, good, suffix: str) -> None:
        path = good(suffix)
        lines = [
            line.split() for line in run("inspect", path, "--engine", "sm").stdout.splitlines()
        ]
        assert ["engine", "sm:"] in [words[:2] for words in lines]
        assert ["not", "hardware:", "the", "sm", "engine", "was", "asked", "for"] in lines
        assert run("verify", path, "--engine", "sm").stdout == run("verify", path).stdout

    @pytest.mark.parametrize("suffix", ["lz4", "sz"])
    def test_a_bad_chunk(self, bad, suffix: str) -> None:
        path, offset = bad(suffix)
        result = run("verify", path, "--engine", "sm")
        assert result.exit_code == 1
        assert f"chunk 1 at byte {offset}: " in result.stdout

    @every_command
    def test_no_kernel_for_the_file(self, zstd_file, name: str) -> None:
        result = run(name, zstd_file, "--engine", "sm")
        assert result.exit_code == 2
        reason = "the sm engine cannot decode this: there is no kernel for the codec"
        assert result.stderr == f"gpuload: error: {zstd_file}: {reason}\n"


@pytest.fixture
def zstd_file(tmp_path: Path) -> Path:
    path = tmp_path / "other.zst"
    path.write_bytes(zstandard.compress(CONTENT))
    return path


class TestGoodFiles:
    @every_format
    @pytest.mark.parametrize("words", [HARDWARE, ("--device", 0), (*HARDWARE, "--device", 0)])
    def test_exact_bytes(self, cuda, good, suffix: str, words: tuple[object, ...]) -> None:
        path = good(suffix)
        result = run("decompress", path, "--json", *words)
        assert (result.exit_code, result.stderr) == (0, "")
        assert path.with_suffix("").read_bytes() == CONTENT
        record = json.loads(result.stdout)
        assert record["ok"] is True
        assert record["engine"].startswith("hardware")
        assert sum(cuda.batches) == len(PARTS)

    @every_format
    @pytest.mark.parametrize("name", ["decompress", "verify"])
    @pytest.mark.parametrize("words", [(), ("--engine", "host"), ("--device", 0, "--untrusted")])
    def test_host(self, cuda, good, suffix: str, name: str, words: tuple[object, ...]) -> None:
        result = run(name, good(suffix), "--json", *words)
        assert result.exit_code == 0
        assert json.loads(result.stdout)["engine"] == "host"
        assert cuda.batches == []

    @every_format
    def test_verify(self, cuda, good, suffix: str) -> None:
        result = run("verify", good(suffix), *HARDWARE)
        assert result.exit_code == 0
        assert ": ok, " in result.stdout
        assert sum(cuda.batches) == len(PARTS)

    def test_verify_does_not_change_what_is_reported(self, good) -> None:
        path = good("bgz")
        assert run("verify", path, *HARDWARE).stdout == run("verify", path).stdout

    def test_reasons_are_reported(self, cuda, good) -> None:
        cuda.settings.algorithm_mask = 1
        record = json.loads(run("verify", "--json", good("sz"), "--device", 0).stdout)
        assert record["engine"] == "host"
        assert "algorithm mask (0x1)" in record["passed_over"]["hardware"]


class TestRefusals:
    @every_command
    def test_file_for_another_engine(self, zstd_file, name: str) -> None:
        result = run(name, zstd_file, *HARDWARE)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"gpuload: error: {zstd_file}: the hardware engine ")
        assert result.stderr.count("\n") == 1
        assert os.listdir(zstd_file.parent) == ["other.zst"]

    def test_the_other_files_are_done(self, good, zstd_file) -> None:
        path = good("sz")
        result = run("decompress", "-k", zstd_file, path, *HARDWARE)
        assert result.exit_code == 2
        assert path.with_suffix("").read_bytes() == CONTENT
        assert not zstd_file.with_suffix("").exists()

    @every_command
    def test_device_without_an_engine(self, cuda, good, zstd_file, name: str) -> None:
        cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
        result = run(name, good("sz"), zstd_file, *HARDWARE)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            "gpuload: error: the hardware engine cannot be used here: Double of a GPU 0 has no "
            "decompression engine (its algorithm mask is 0)\n"
        )

    @every_command
    @pytest.mark.parametrize("words", [(), HARDWARE])
    def test_no_such_device(self, good, name: str, words: tuple[str, ...]) -> None:
        result = run(name, good("sz"), "--device", 5, *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.endswith(
            "there is no device 5: this process sees 1, numbered from 0\n"
        )
        assert result.stderr.count("\n") == 1

    def test_second_device(self, cuda, good) -> None:
        cuda.settings.device_count = 2
        path = good("bgz")
        assert run("decompress", path, *HARDWARE, "--device", 1).exit_code == 0
        assert path.with_suffix("").read_bytes() == CONTENT


class TestBadChunk:
    """A chunk that neither the engine nor the host decodes."""

    @pytest.fixture(autouse=True, params=["short", "overrun"])
    def corruption(self, cuda, request) -> None:
        cuda.settings.corruption = request.param

    @every_format
    @pytest.mark.parametrize("on_error", ["raise", "retry-host"])
    def test_is_named(self, bad, suffix: str, on_error: str) -> None:
        path, offset = bad(suffix)
        result = run("decompress", path, *HARDWARE, "--on-error", on_error)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"gpuload: error: {path}: chunk 1 at byte {offset}: ")
        assert os.listdir(path.parent) == [path.name]

    @formats_with_sizes
    def test_is_skipped(self, bad, suffix: str) -> None:
        path, offset = bad(suffix)
        result = run("decompress", path, *HARDWARE, "--on-error", "skip", "--json")
        assert result.exit_code == 1
        assert path.with_suffix("").read_bytes() == WITH_ZEROS
        first, last = result.stderr.splitlines()
        assert first.startswith(f"gpuload: error: {path}: chunk 1 at byte {offset}: ")
        assert " skipped; the output has zeros in their place" in last
        record = json.loads(result.stdout)
        assert record["ok"] is False
        (failure,) = record["failures"]
        assert (failure["chunk"], failure["offset"]) == (1, offset)
        assert failure["expected_size"] == len(PARTS[1])
        assert failure["blame"] == "size"

    @every_format
    @pytest.mark.parametrize("on_error", ["raise", "retry-host"])
    def test_is_listed(self, bad, suffix: str, on_error: str) -> None:
        path, offset = bad(suffix)
        result = run("verify", path, *HARDWARE, "--on-error", on_error)
        assert result.exit_code == 1
        line, summary = result.stdout.splitlines()
        assert line.startswith(f"{path}: chunk 1 at byte {offset}: ")
        assert summary.startswith(f"{path}: BAD, 1 of ")


class TestEngineThatFails:
    """Good files, and a driver that refuses every batch of them."""

    @pytest.fixture(autouse=True)
    def refusing(self, cuda) -> None:
        cuda.fail_next("cuMemBatchDecompressAsync", Code.INVALID_VALUE, times=100)

    @every_format
    def test_raise(self, good, suffix: str) -> None:
        path = good(suffix)
        result = run("decompress", path, *HARDWARE)
        assert result.exit_code == 1
        assert f"gpuload: error: {path}: chunk 1 at byte " in result.stderr
        assert "CUDA_ERROR_INVALID_VALUE" in result.stderr
        assert not path.with_suffix("").exists()

    @every_format
    def test_retry_host(self, good, suffix: str) -> None:
        path = good(suffix)
        result = run("decompress", path, *HARDWARE, "--on-error", "retry-host")
        assert (result.exit_code, result.stderr) == (0, "")
        assert path.with_suffix("").read_bytes() == CONTENT

    @formats_with_sizes
    def test_skip(self, good, suffix: str) -> None:
        path = good(suffix)
        result = run("decompress", path, *HARDWARE, "--on-error", "skip")
        assert result.exit_code == 1
        assert result.stderr.count(": chunk ") >= len(PARTS)
        assert path.with_suffix("").read_bytes() == bytes(len(CONTENT))

    @every_format
    @pytest.mark.parametrize(("on_error", "status"), [("raise", 1), ("retry-host", 0)])
    def test_verify(self, good, suffix: str, on_error: str, status: int) -> None:
        result = run("verify", good(suffix), *HARDWARE, "--on-error", on_error)
        assert result.exit_code == status
        assert (": ok, " in result.stdout) is (status == 0)


class TestFaults:
    def test_lost_context(self, cuda, bad) -> None:
        cuda.settings.corruption = "sticky"
        path, _ = bad("sz")
        result = run("decompress", path, *HARDWARE)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"gpuload: error: {path}: ")
        assert "start a new process" in result.stderr
        assert result.stderr.count("\n") == 1
        assert os.listdir(path.parent) == [path.name]

    def test_full_device(self, cuda, good) -> None:
        cuda.settings.total_memory = 1 << 20
        path = good("sz")
        result = run("decompress", path, *HARDWARE)
        assert result.exit_code == 1
        assert "no memory for " in result.stderr
        assert os.listdir(path.parent) == [path.name]


class TestInspect:
    def engine(self, path: Path, *words: object) -> dict[str, object]:
        """Return what ``inspect --json`` says of the engine; the text says the same."""
        (record,) = json.loads(run("inspect", "--json", path, *words).stdout)["engines"]
        lines = [
            " ".join(line.split()) for line in run("inspect", path, *words).stdout.splitlines()
        ]
        assert f"engine {record['engine']}: {record['reason']}" in lines
        for engine, why in record["passed_over"].items():
            assert f"not {engine}: {why}" in lines
        return record

    @pytest.mark.parametrize("suffix", ["lz4", "sz"])
    def test_hardware(self, good, suffix: str) -> None:
        record = self.engine(good(suffix))
        assert (record["engine"], record["passed_over"]) == ("hardware", {})

    @every_format
    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (("--engine", "host"), "the host engine was asked for"),
            (("--untrusted",), "the input is not trusted"),
        ],
    )
    def test_not_wanted(self, good, suffix: str, words: tuple[str, ...], reason: str) -> None:
        record = self.engine(good(suffix), *words)
        assert record["engine"] == "host"
        assert reason in record["passed_over"]["hardware"]

    @pytest.mark.parametrize(
        ("suffix", "mask", "length", "reason"),
        [
            ("lz4", 0, 0, "no decompression engine"),
            ("lz4", 3, 4 << 20, "bit is missing in the device's algorithm mask (0x3)"),
            ("sz", 5, 4 << 20, "bit is missing in the device's algorithm mask (0x5)"),
            ("sz", 7, 4096, "longer than the device's maximum of 4096 bytes"),
        ],
    )
    def test_not_able(self, cuda, good, suffix: str, mask: int, length: int, reason: str) -> None:
        cuda.settings.algorithm_mask, cuda.settings.maximum_length = mask, length
        record = self.engine(good(suffix))
        assert record["engine"] == "host"
        assert reason in record["passed_over"]["hardware"]

    def test_other_codec(self, zstd_file) -> None:
        record = self.engine(zstd_file)
        assert record["engine"] == "host"
        assert "algorithm mask" in record["passed_over"]["hardware"]

    def test_nothing_is_allocated_or_launched(self, cuda, good) -> None:
        run("inspect", good("sz"))
        assert not {"cuMemCreate", "cuStreamCreateWithPriority"} & {*cuda.recorder.calls}


class TestDoctor:
    def test_device(self, cuda) -> None:
        result = run("doctor")
        assert (result.exit_code, result.stderr) == (0, "")
        text = [" ".join(line.split()) for line in result.stdout.splitlines()]
        block = text[text.index("device 0") + 1 :]
        assert block[:4] == [
            "name Double of a GPU 0",
            "compute capability 10.0",
            "driver CUDA 13.0",
            "decompression deflate, snappy, lz4; at most 4.0 MiB a chunk",
        ]
        assert "host-NUMA memory yes, node 0" in block
        assert "memory 4.0 GiB of 4.0 GiB free" in block

    def test_json(self, cuda) -> None:
        cuda.settings.device_count = 2
        cuda.settings.algorithm_mask = 5
        record = json.loads(run("doctor", "--json").stdout)
        assert record["no_devices"] is None
        assert [device["device"] for device in record["devices"]] == [0, 1]
        for device in record["devices"]:
            assert device["decompression"] == {
                "algorithms": ["deflate", "lz4"],
                "algorithm_mask": 5,
                "maximum_length": 4 << 20,
                "unavailable": None,
            }
            assert device["free_memory"] == device["total_memory"] == 4 << 30

    def test_device_without_an_engine(self, cuda) -> None:
        cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
        output = run("doctor").stdout
        assert "  decompression      no: Double of a GPU 0 has no decompression engine " in output

    def test_device_that_does_not_tell_its_memory(self, cuda) -> None:
        cuda.fail_next("cuMemGetInfo", Code.OUT_OF_MEMORY)
        result = run("doctor")
        assert result.exit_code == 0
        assert (
            "memory             4.0 GiB; how much is free is not known: no memory" in result.stdout
        )


#: What users hide devices with, and ask for Python's warnings.
HIDING = ("CUDA_VISIBLE_DEVICES", "PYTHONWARNINGS")
#: Is a machine with other settings of the double: those of the first argument.
SCRIPT = """
import sys
from tests.helpers import fakecuda
exec(sys.argv.pop(1), {"settings": fakecuda.load().settings})
import gpuload_cli
gpuload_cli.main()
"""


def run_on(settings: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, on a machine with these settings."""
    words = [sys.executable, "-c", SCRIPT, settings, *map(str, args)]
    environment = {name: text for name, text in os.environ.items() if name not in HIDING}
    return subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            "settings.driver_version = 12060",
            "the driver supports CUDA 12.6; decompression in hardware came with CUDA 12.8",
        ),
        ("settings.device_count = 0", "the CUDA driver sees no device"),
    ],
)
class TestOtherMachines:
    def test_doctor(self, settings: str, reason: str) -> None:
        result = run_on(settings, "doctor")
        assert (result.returncode, result.stderr) == (0, "")
        assert reason in result.stdout

    def test_inspect(self, settings: str, reason: str, good) -> None:
        """JSON always has the reason; the text leaves it out where there is no device."""
        result = run_on(settings, "inspect", good("lz4"), "--json")
        assert (result.returncode, result.stderr) == (0, "")
        assert reason in result.stdout

    @every_command
    def test_hardware_engine(self, settings: str, reason: str, good, name: str) -> None:
        path = good("lz4")
        result = run_on(settings, name, path, *HARDWARE)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == (
            f"gpuload: error: the hardware engine cannot be used here: {reason}\n"
        )
        assert os.listdir(path.parent) == [path.name]

    @every_command
    def test_host(self, settings: str, reason: str, good, name: str) -> None:
        result = run_on(settings, name, good("lz4"), "--json")
        assert (result.returncode, result.stderr) == (0, "")
        assert json.loads(result.stdout)["ok"] is True
