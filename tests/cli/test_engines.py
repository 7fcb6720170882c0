"""Choosing an engine on the command line, on a machine where only the host engine runs."""

from __future__ import annotations

import json
import os

import pytest

from gpuload import driver
from gpuload.errors import DriverError, EngineUnavailableError

COMMANDS = ["decompress", "inspect", "verify"]
NO_CUDA = "there is no CUDA here"
NOT_TRUSTED = "it has no bounds of its own, and the input is not trusted"

ON_DEVICES = ["hardware", "sm", "nvcomp"]

every_command = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch) -> None:
    """Make every machine one without CUDA."""
    monkeypatch.setattr(driver, "unavailable", lambda: NO_CUDA)
    monkeypatch.setattr("gpuload.driver.devices.unavailable", lambda: NO_CUDA)


class TestEnginesOnDevices:
    @pytest.mark.parametrize("engine", ON_DEVICES)
    @every_command
    def test_one_line_says_why_not(self, run, lz4_file, name: str, engine: str) -> None:
        result = run(name, lz4_file.path, "--engine", engine)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"gpuload: error: the {engine} engine cannot be used here: {NO_CUDA}\n"
        )
        assert os.listdir(lz4_file.path.parent) == ["data.lz4"]

    @every_command
    def test_one_line_for_any_number_of_files(self, run, lz4_file, gzip_file, name: str) -> None:
        options = ["-k"] if name == "decompress" else []
        result = run(name, lz4_file.path, gzip_file, "--engine", "hardware", "--json", *options)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1

    @every_command
    def test_json_for_each_file(self, run, lz4_file, gzip_file, name: str) -> None:
        files, options = [lz4_file.path, gzip_file], ["-k"] if name == "decompress" else []
        result = run(name, *files, "--engine", "sm", "--json", *options)
        error = f"the sm engine cannot be used here: {NO_CUDA}"
        assert [json.loads(line) for line in result.stdout.splitlines()] == [
            {"file": str(file), "ok": False, "error": error} for file in files
        ]
        assert result.exit_code == 2

    def test_json_of_a_command_that_does_not_go_on(self, run, lz4_file, gzip_file) -> None:
        result = run("decompress", lz4_file.path, gzip_file, "--engine", "sm", "--json")
        (line,) = result.stdout.splitlines()
        assert json.loads(line)["file"] == str(lz4_file.path)

    def test_json_beside_the_bytes(self, run, lz4_file) -> None:
        result = run("decompress", "-c", lz4_file.path, "--engine", "sm", "--json")
        assert (result.exit_code, result.stdout) == (2, "")
        assert json.loads(result.stderr.splitlines()[0])["ok"] is False

    @every_command
    def test_a_device_changes_nothing(self, run, lz4_file, name: str) -> None:
        result = run(name, lz4_file.path, "--engine", "hardware", "--device", "3")
        assert result.exit_code == 2
        assert f"device 3 can't be used: {NO_CUDA}\n" in result.stderr
        assert result.stderr.count("\n") == 1

    @pytest.mark.parametrize("engine", ["hardware", "nvcomp"])
    @every_command
    def test_not_for_untrusted_input(self, run, lz4_file, name: str, engine: str) -> None:
        result = run(name, lz4_file.path, "--engine", engine, "--untrusted")
        assert result.exit_code == 2
        assert "the input is not trusted" in result.stderr

    def test_an_existing_output_stays(self, run, lz4_file, tmp_path) -> None:
        (tmp_path / "data").write_bytes(b"old")
        result = run("decompress", lz4_file.path, "--engine", "hardware", "--force")
        assert result.exit_code == 2
        assert (tmp_path / "data").read_bytes() == b"old"

    def test_usage_errors_come_first(self, run, lz4_file, tmp_path) -> None:
        path = lz4_file.path.rename(tmp_path / "name.txt")
        result = run("decompress", path, "--engine", "hardware")
        assert "cannot tell the output's name" in result.stderr


class TestEngineThatRefusesAFile:
    """A file that an engine cannot decode, on a machine that has the engine."""

    @pytest.fixture(autouse=True)
    def engine(self, monkeypatch) -> None:
        def choose(chunks, options, device_id):
            raise EngineUnavailableError("it takes no such chunks")

        monkeypatch.setattr("gpuload.container.choose", choose)
        monkeypatch.setattr("gpuload_cli.engines.engine_unavailable", lambda *_, **__: "")

    @every_command
    def test_is_named(self, run, lz4_file, name: str) -> None:
        result = run(name, lz4_file.path, "--engine", "hardware")
        assert result.exit_code == 2
        assert result.stderr == f"gpuload: error: {lz4_file.path}: it takes no such chunks\n"
        assert os.listdir(lz4_file.path.parent) == ["data.lz4"]

    @every_command
    def test_does_not_stop_the_others(self, run, lz4_file, gzip_file, name: str) -> None:
        options = ["-k"] if name == "decompress" else []
        result = run(name, lz4_file.path, gzip_file, "--engine", "hardware", "--json", *options)
        assert result.exit_code == 2
        records = [json.loads(line) for line in result.stdout.splitlines()]
        assert [record["ok"] for record in records] == [False, False]
        assert [record["file"] for record in records] == [str(lz4_file.path), str(gzip_file)]

    def test_outweighs_bad_data(self, run, lz4_file, tmp_path) -> None:
        (tmp_path / "bad.gz").write_bytes(b"?")
        for files in ([lz4_file.path, tmp_path / "bad.gz"], [tmp_path / "bad.gz", lz4_file.path]):
            assert run("verify", *files, "--engine", "hardware").exit_code == 2

    def test_leaves_a_pipe_or_device_alone(self, run, lz4_file, tmp_path) -> None:
        os.mkfifo(tmp_path / "pipe")  # opening it would wait for a reader
        result = run("decompress", lz4_file.path, "-o", tmp_path / "pipe", "--engine", "hardware")
        assert result.exit_code == 2


class TestDevice:
    @every_command
    def test_one_line_says_why_not(self, run, lz4_file, gzip_file, name: str) -> None:
        result = run(name, lz4_file.path, gzip_file, "--device", "0")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"gpuload: error: device 0 can't be used: {NO_CUDA}\n"

    @every_command
    def test_json(self, run, lz4_file, name: str) -> None:
        result = run(name, lz4_file.path, "--device", "0", "--json")
        record = json.loads(result.stdout)
        assert (result.exit_code, record["ok"]) == (2, False)
        assert record["error"] == f"device 0 can't be used: {NO_CUDA}"

    def test_that_fails_on_the_way(self, run, lz4_file, monkeypatch) -> None:
        def fail(*_, **__):
            raise DriverError("cuStreamSynchronize failed: CUDA_ERROR_LAUNCH_FAILED (719)")

        monkeypatch.setattr("gpuload.container.Container.write_to", fail)
        result = run("decompress", lz4_file.path)
        assert result.exit_code == 1
        assert result.stderr == (
            f"gpuload: error: {lz4_file.path}: cuStreamSynchronize failed: "
            "CUDA_ERROR_LAUNCH_FAILED (719)\n"
        )
        assert os.listdir(lz4_file.path.parent) == ["data.lz4"]


class TestHostEngine:
    @every_command
    @pytest.mark.parametrize(
        "words", [["--engine", "host"], ["--engine", "auto"], ["--untrusted"], ["--trusted"]]
    )
    def test_runs(self, run, lz4_file, name: str, words: list[str]) -> None:
        record = json.loads(run(name, lz4_file.path, "--json", *words).stdout)
        assert record["ok"] is True
        engine = record["engines"][0]["engine"] if name == "inspect" else record["engine"]
        assert engine == "host"

    def test_exact_bytes(self, run, lz4_file) -> None:
        assert run("decompress", lz4_file.path, "--engine", "host").exit_code == 0
        assert lz4_file.path.with_suffix("").read_bytes() == lz4_file.content


class TestInspect:
    @pytest.mark.parametrize(
        ("words", "reasons"),
        [
            (["--engine", "auto"], [NO_CUDA] * 3),
            (["--engine", "auto", "--trusted"], [NO_CUDA] * 3),
            (["--engine", "host"], ["the host engine was asked for"] * 3),
            (["--engine", "auto", "--untrusted"], [NOT_TRUSTED, NO_CUDA, NOT_TRUSTED]),
        ],
    )
    def test_says_why_not_the_others(
        self, run, lz4_file, words: list[str], reasons: list[str]
    ) -> None:
        lines = run("inspect", lz4_file.path, *words).stdout.splitlines()
        (found,) = [at for at, line in enumerate(lines) if line.split()[0] == "engine"]
        assert lines[found].split()[1] == "host:"
        told = [line.strip() for line in lines[found + 1 : found + 4]]
        each = list(zip(ON_DEVICES, reasons, strict=True))
        assert told == [f"not {engine}: {reason}" for engine, reason in each]
        (record,) = json.loads(run("inspect", "--json", lz4_file.path, *words).stdout)["engines"]
        assert record["engine"] == "host"
        assert record["passed_over"] == dict(each)

    def test_does_not_speak_of_a_gpu_that_nobody_expects(self, run, lz4_file) -> None:
        assert "hardware" not in run("inspect", lz4_file.path).stdout
        (record,) = json.loads(run("inspect", "--json", lz4_file.path).stdout)["engines"]
        assert record["passed_over"] == dict.fromkeys(ON_DEVICES, NO_CUDA)


@every_command
def test_trust_has_three_states(run, lz4_file, monkeypatch, name: str) -> None:
    asked = []

    def choose(chunks, options, device_id):
        asked.append(options.trusted)
        raise EngineUnavailableError("enough")

    monkeypatch.setattr("gpuload.container.choose", choose)
    for words in ([], ["--trusted"], ["--untrusted"]):
        run(name, lz4_file.path, *words)
    assert asked == [None, True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "gpu"], "'gpu' is not one of 'auto', 'hardware', 'sm', 'nvcomp', 'host'"),
        (["--device", "cuda:0"], "'cuda:0' is not a valid integer"),
        (["--device", "-1"], "-1 is not in the range"),
    ],
)
@every_command
def test_wrong_options(run, name: str, words: list[str], message: str) -> None:
    result = run(name, "file.gz", *words)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "choices"),
    [("decompress", "'raise', 'retry-host', 'skip'"), ("verify", "'raise', 'retry-host'")],
)
def test_wrong_on_error(run, name: str, choices: str) -> None:
    result = run(name, "file.gz", "--on-error", "ignore")
    assert result.exit_code == 2
    assert f"'ignore' is not one of {choices}" in result.stderr
