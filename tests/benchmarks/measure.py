"""Run commands as whole processes; take their wall time and their peak memory."""

from __future__ import annotations

import filecmp
import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Command = tuple[str, ...]


@dataclass
class Runs:
    """What the runs of one command took.

    Attributes
    ----------
    seconds : list of float
        Wall time of each run.
    peak : int
        Most resident bytes of any run. At least those of this benchmark, about 15 MiB: a process
        starts as a copy of its parent.
    """

    seconds: list[float] = field(default_factory=list)
    peak: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run(command: Sequence[str], output: Path | None = None, runs: Runs | None = None) -> None:
    """Run a command to its end, with its standard output in a file; add to `runs`."""
    with open(output or os.devnull, "wb") as file:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    if runs is not None:
        runs.seconds.append(seconds)
        runs.peak = max(runs.peak, usage.ru_maxrss * 1024)


def fill(template: Command, **paths: Path) -> list[str]:
    """Put paths into a command: ``{file}``, ``{out}`` and the like."""
    return [word.format(**paths) for word in template]


def decode(template: Command, file: Path, out: Path, runs: Runs | None = None) -> None:
    """Run a decoder; one without ``{out}`` in its command writes to standard output."""
    stdout = None if any("{out}" in word for word in template) else out
    run(fill(template, file=file, out=out), stdout, runs)


def compare(
    decoders: Mapping[str, Command], file: Path, out: Path, count: int, expected: Path
) -> dict[str, Runs]:
    """Time decoders in turn (A B A B ...), each `count` times, after a run that is checked."""
    measured = {name: Runs() for name in decoders}
    try:
        for name, template in decoders.items():
            decode(template, file, out)
            if not filecmp.cmp(out, expected, shallow=False):
                raise RuntimeError(f"{name} decodes {file} to other bytes than {expected}")
            out.unlink()
        for _ in range(count):
            for name, template in decoders.items():
                decode(template, file, out, measured[name])
                out.unlink()
    finally:
        out.unlink(missing_ok=True)
    return measured


def take_turns(commands: Mapping[str, Command], count: int) -> dict[str, Runs]:
    """Time commands in turn, each `count` times, after a run that does not count."""
    measured = {name: Runs() for name in commands}
    for turn in range(count + 1):
        for name, command in commands.items():
            run(command, None, measured[name] if turn else None)
    return measured
