"""Look at the chunks of a compressed file without decoding it.

Shows that the chunk table is one NumPy array, a row per chunk, so that questions about millions of
chunks are one expression. Run it as ``python samples/inspect_chunks.py [FILE]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import gpuload

WEATHER = Path(__file__).with_name("weather.csv.lz4")


def main(path: str | Path = WEATHER) -> None:
    """Print what a file is made of, and how well its chunks compress."""
    with gpuload.open(path) as container:
        if not isinstance(container, gpuload.Container):
            print(f"{Path(path).name}: arrays: {', '.join(container)}")
            return
        chunks = container.chunks
        parallel = "independent" if container.batchable else f"serial: {container.serial}"
        print(f"{Path(path).name}: {container.format}, chunks: {len(chunks)}, {parallel}")
        for choice in container.explain():
            print(f"{choice.engine} engine: {choice.reason}")
        stored = chunks[chunks["raw_size"] > 0]
        at_most = "" if stored["exact"].all() else "at most "

    if not stored.size:
        return
    largest = stored[np.argmax(stored["stored_size"])]
    print(f"largest chunk: {largest['stored_size']:,} stored bytes at byte {largest['offset']:,}")
    print(f"ratios of the chunks ({at_most}raw / stored):")
    print_histogram(stored["raw_size"] / stored["stored_size"])


def print_histogram(ratios: np.ndarray, bins: int = 6) -> None:
    """Print how many chunks have which compression ratio."""
    counts, edges = np.histogram(ratios, bins=bins)
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        bar = "#" * round(40 * count / counts.max())
        print(f"{low:8.2f} to {high:8.2f} {count:7} {bar}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
