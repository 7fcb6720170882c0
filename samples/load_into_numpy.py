"""Load a compressed file into NumPy.

Shows that the decoded bytes become an array without a copy, and how to decode into memory of your
own. Run it as ``python samples/load_into_numpy.py [FILE]``.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

import gpuload

WEATHER = Path(__file__).with_name("weather.csv.lz4")
_NEWLINE = ord("\n")
_TEMPERATURE_COLUMN = 2


def main(path: str | Path = WEATHER) -> None:
    """Load a file, look at its bytes as an array, and load it again into an array made before."""
    data = np.asarray(gpuload.load(path, device="cpu"))
    print(f"{Path(path).name}: {data.size:,} bytes as {data.dtype}")
    print(f"lines: {np.count_nonzero(data == _NEWLINE):,}")
    if Path(path) == WEATHER:
        show_temperatures(data)

    own = np.empty(data.size, np.uint8)
    gpuload.load(path, out=own)
    print(f"the same bytes in memory of our own: {np.array_equal(own, data)}")


def show_temperatures(csv: np.ndarray) -> None:
    """Parse one column of the table."""
    text = io.BytesIO(csv.data)
    values = np.loadtxt(text, delimiter=",", skiprows=1, usecols=_TEMPERATURE_COLUMN)
    print(f"temperatures: {values.min():.1f} to {values.max():.1f} C, mean {values.mean():.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
