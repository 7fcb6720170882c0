"""The group: version, help, lazy imports, standard streams that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import gpuload_cli
import pytest

import gpuload

COMMANDS = ["decompress", "inspect", "verify", "compress", "bench", "doctor"]


def test_version(run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"gpuload {gpuload.__version__}\n"


def test_version_in_a_process(process) -> None:
    result = process("--version")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode() == f"gpuload {gpuload.__version__}\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_answers_without_heavy_imports(option: str) -> None:
    code = (
        "import sys, gpuload_cli\n"
        f"try: gpuload_cli.cli.main(['{option}'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'cramjam', 'zstandard', 'cuda', 'lz4'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


#: Presses Ctrl-C when click is about to be imported.
INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["--version"]
"""


@pytest.mark.parametrize(
    "start",
    [
        "import gpuload_cli; gpuload_cli.main()",
        "import runpy; runpy.run_module('gpuload', run_name='__main__')",
    ],
)
def test_ctrl_c_before_there_is_a_handler(start: str) -> None:
    script = f"{INTERRUPTED}\n{start}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, b"", b"")


def test_ctrl_c_that_the_parent_ignores() -> None:
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"{INTERRUPTED}\nimport gpuload_cli\ngpuload_cli.main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(("options", "shown"), [([], False), (["-W", "default"], True)])
def test_warnings_of_libraries(options: list[str], shown: bool) -> None:
    script = (
        "import warnings, gpuload_cli\n"
        "gpuload_cli.commands.cli.main = lambda **_: warnings.warn('for programmers')\n"
        "gpuload_cli.main()"
    )
    words = [sys.executable, *options, "-c", f"import gpuload_cli.commands\n{script}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    result = subprocess.run(words, capture_output=True, check=False, env=environment)
    assert result.returncode == 0
    assert (b"for programmers" in result.stderr) is shown


def test_importing_changes_no_signals_and_imports_no_click() -> None:
    script = (
        "import signal, sys, gpuload_cli\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert 'click' not in sys.modules\n"
        "from gpuload_cli import cli\n"
        "import click\n"
        "assert isinstance(cli, click.Group)\n"
        "assert cli is gpuload_cli.cli"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'explode'"):
        gpuload_cli.explode  # noqa: B018


def test_help_lists_the_commands(run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    listed = result.stdout.split("Commands:")[1].split("Examples:")[0]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    examples = result.stdout.split("Examples:\n")[1].splitlines()
    assert any(line.startswith(f"    gpuload {name}") for line in examples)


def test_no_arguments_show_the_help(run) -> None:
    result = run()
    assert result.exit_code == 2
    assert "Usage: gpuload [OPTIONS] COMMAND" in result.output


def test_unknown_command(run) -> None:
    result = run("explode")
    assert result.exit_code == 2
    assert "gpuload: error: No such command 'explode'." in result.stderr


@pytest.mark.parametrize("name", ["decompress", "inspect", "verify", "compress"])
def test_missing_file_argument(run, name: str) -> None:
    result = run(name)
    assert result.exit_code == 2
    assert "gpuload: error: Missing argument 'FILE" in result.stderr


@pytest.mark.parametrize("name", ["decompress", "inspect", "verify", "compress", "doctor"])
def test_full_standard_output_is_an_error(process, gzip_file, name: str) -> None:
    words = [] if name == "doctor" else [gzip_file]
    if name == "decompress":
        words.append("-c")
    if name == "compress":
        words += ["--codec", "lz4", "-o", "-"]
    with open("/dev/full", "wb") as full:
        result = process(name, *words, stdout=full)
    assert result.returncode == 1
    where = b"" if name == "doctor" else b"<stdout>: "
    assert result.stderr == b"gpuload: error: " + where + b"No space left on device\n"


def test_closed_standard_output(process, gzip_file) -> None:
    words = subprocess.list2cmdline([sys.executable, "-m", "gpuload", "inspect", str(gzip_file)])
    result = subprocess.run(f"{words} >&-", shell=True, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


def test_names_beyond_the_encoding_of_the_terminal(process, gzip_file, tmp_path) -> None:
    path = gzip_file.rename(tmp_path / "\u4e2d.gz")
    result = process("inspect", path, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.splitlines()[0].endswith(rb"/\u4e2d.gz")
