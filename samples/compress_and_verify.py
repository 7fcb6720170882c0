"""Compress with every codec, check the files, load them back, and break one.

Shows that the files are in standard formats with independent chunks, and that damage is reported
chunk by chunk. Run it as ``python samples/compress_and_verify.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import gpuload

SUFFIXES = {"lz4": ".lz4", "gzip": ".bgz", "zstd": ".zst", "snappy": ".sz"}


def main() -> None:
    """Write, verify and load a small table of numbers in each format, in a temporary folder."""
    steps = np.random.default_rng(0).integers(-3, 4, 400_000)
    walk = np.cumsum(steps).astype("<i4")
    with tempfile.TemporaryDirectory() as folder:
        for codec, suffix in SUFFIXES.items():
            path = Path(folder) / f"walk{suffix}"
            gpuload.compress(walk.view(np.uint8), path, codec=codec)
            check(path, walk)
        show_damage(Path(folder) / "walk.lz4")


def check(path: Path, expected: np.ndarray) -> None:
    """Verify a file's checksums and compare its content with the original."""
    with gpuload.open(path) as container:
        report = container.verify()
        loaded = np.asarray(container.load(device="cpu")).view(expected.dtype)
    same = np.array_equal(loaded, expected)
    ratio = report.raw_size / report.stored_size
    checksums = sum(report.verified.values())
    print(
        f"{path.name:9} {container.format:7} ratio {ratio:4.2f}, {report.chunks:2} chunks, "
        f"{checksums} checksums verified, content {'equal' if same else 'DIFFERS'}"
    )


def show_damage(path: Path) -> None:
    """Flip one bit in the middle of a file, and print what gpuload says about it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with gpuload.open(data) as container:
        for failure in container.verify().failures:
            print(f"with one bit flipped: {failure}")


if __name__ == "__main__":
    main()
