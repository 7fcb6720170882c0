"""Ask the driver of this machine every question and print the answers as JSON."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

from tests.double.probe.asking import GROUPS, Driver

MODULES = ("threads", "memory", "copies", "streams", "faults", "risky")


def answers_of(name: str) -> dict[str, Any]:
    """Ask one group in a process of its own."""
    command = [sys.executable, "-m", "tests.double.probe", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        output, code, errors = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        output, code, errors = str((late.stdout or b"").decode()), -1, "timed out"
    answers = dict(json.loads(line) for line in output.splitlines())
    if code:
        answers["ended"] = f"exit {code}"
        sys.stderr.write(f"{name}: exit {code}\n{errors[-2000:]}\n")
    return answers


def main() -> None:
    """Ask one group here, or all of them each in a child."""
    for module in MODULES:
        importlib.import_module(f"tests.double.probe.{module}")
    if len(sys.argv) == 1:
        json.dump({name: answers_of(name) for name in GROUPS}, sys.stdout, indent=1)
        return
    group = GROUPS[sys.argv[1]]
    cuda = Driver(init=getattr(group, "needs_init", True))
    group(cuda, _write)


def _write(name: str, answer: Any) -> None:
    sys.stdout.write(json.dumps([name, answer]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
