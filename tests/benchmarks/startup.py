"""What starting costs: importing, ``--version``, and listing the chunks of a file."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from cases import GPULOAD
from measure import take_turns

if TYPE_CHECKING:
    from pathlib import Path

#: Prints the number of chunks and the seconds that opening took, in a new process.
_LISTING = """
import sys, time
import gpuload.loader
start = time.perf_counter()
with gpuload.loader.open(sys.argv[1]) as container:
    print(len(container.chunks), time.perf_counter() - start)
"""


def start_up(count: int) -> dict[str, float]:
    """Return medians in seconds."""
    python = (sys.executable, "-P", "-c")  # -P: not the checkout that this may run in
    runs = take_turns(
        {
            "python": (*python, "pass"),
            "numpy": (*python, "import numpy"),
            "gpuload": (*python, "import numpy, gpuload"),
            "load": (*python, "import numpy, gpuload; gpuload.load"),
            "version": (*GPULOAD, "--version"),
        },
        count,
    )
    median = {name: measured.median for name, measured in runs.items()}
    return {
        "import gpuload, above import numpy": median["gpuload"] - median["numpy"],
        "gpuload.load at hand, above import numpy": median["load"] - median["numpy"],
        "gpuload --version, above python -c pass": median["version"] - median["python"],
    }


def listing(file: Path, count: int) -> tuple[int, float]:
    """Return the number of chunks of a file, and the median seconds to list them."""
    command = [sys.executable, "-P", "-c", _LISTING, str(file)]
    seconds = []
    for _ in range(count):
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        chunks, taken = printed.split()
        seconds.append(float(taken))
    return int(chunks), statistics.median(seconds)
