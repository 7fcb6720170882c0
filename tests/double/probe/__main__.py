"""Ask the driver of this machine and print the answers as JSON.

``python -m tests.double.probe`` asks every question. Patterns ask some groups, and ``--into FILE``
puts the answers into a file of others::

    python -m tests.double.probe --into tests/double/recorded.json 'kernels*'
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.double.probe.asking import GROUPS, Driver

MODULES = ("threads", "memory", "copies", "streams", "faults", "risky", "kernels", "launches")


def answers_of(name: str) -> dict[str, Any]:
    """Ask one group in a process of its own."""
    command = [sys.executable, "-m", "tests.double.probe", "--here", name]
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
    """Ask one group here, or several, each in a child."""
    for module in MODULES:
        importlib.import_module(f"tests.double.probe.{module}")
    options = _options()
    if options.here:
        group = GROUPS[options.here]
        group(Driver(init=getattr(group, "needs_init", True)), _write)
        return
    known = json.loads(options.into.read_text()) if options.into else {}
    chosen = [n for n in GROUPS if any(fnmatch.fnmatch(n, one) for one in options.groups)]
    text = json.dumps(known | {name: answers_of(name) for name in chosen}, indent=1) + "\n"
    if options.into:
        options.into.write_text(text)
    else:
        sys.stdout.write(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.double.probe")
    parser.add_argument("groups", nargs="*", default=["*"], help="patterns of names")
    parser.add_argument("--into", type=Path, help="a file of answers, to which to add these")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    return parser.parse_args()


def _write(name: str, answer: Any) -> None:
    sys.stdout.write(json.dumps([name, answer]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
