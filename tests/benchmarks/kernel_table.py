"""README's table of the kernels, from what ``gpuload bench kernels --json`` printed.

Run from the checkout's folder: ``python -m tests.benchmarks.kernel_table RESULTS.json...``. Prints
GB/s of decompressed bytes of the SM engine and of nvCOMP, and their ratio.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.report import table

CODECS = ("lz4", "snappy")
HEADER = ["chunks", "data", *(f"{codec}: sm / nvCOMP" for codec in ("LZ4", "Snappy"))]


def rows(results: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each size, number and kind of chunks."""
    found: dict[tuple[int, int, str], dict[str, str]] = {}
    for row in results:
        if row["kind"] == "batch":
            key = (row["chunk_size"], row["chunks"], row["data"])
            found.setdefault(key, {})[row["codec"]] = _rates(row)
    order = sorted(found, key=lambda key: (key[0], -key[1]))
    return [
        [f"{count:,} of {size >> 10} KiB", data, *(found[size, count, data][c] for c in CODECS)]
        for size, count, data in order
    ]


def _rates(row: dict[str, Any]) -> str:
    ours, theirs = (row["results"][name]["gb_per_s"] for name in ("sm", "nvcomp"))
    return f"{ours:.0f} / {theirs:.0f} = {ours / theirs:.2f}"


if __name__ == "__main__":
    texts = [Path(name).read_text() for name in sys.argv[1:]]
    print(table(HEADER, rows([row for text in texts for row in json.loads(text)["rows"]])))
