"""Scripts in interpreters of their own, for what one process cannot measure or survive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["fresh_python", "peak_resident"]

_ROOT = Path(__file__).resolve().parents[2]


def fresh_python(script: str, *arguments: object, timeout: float = 120, status: int = 0) -> str:
    """Run a script in a new interpreter and return what it prints.

    Parameters
    ----------
    script : str
        Its source; it can import the tests' helpers.
    *arguments : object
        ``sys.argv[1:]``, as text.
    timeout : float
        Seconds until it counts as hanging; generous, since machines differ.
    status : int
        The exit status that is expected.
    """
    # One thread of NumPy's own, so that address space goes to what is tested.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)]
    run = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert run.returncode == status, f"status {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout.strip()


def peak_resident() -> int:
    """Return the most bytes that this process had resident at a time.

    Not ``ru_maxrss``: that is inherited from the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10
