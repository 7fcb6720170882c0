"""The files of the benchmark: how they are made, and which tools they are compared with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Command, fill, run

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = Path(__file__).parent
_CONTENTS = _HERE / "contents.py"
_SCRIPT = Path(sys.executable).with_name("gpuload")
GPULOAD: Command = (str(_SCRIPT),) if _SCRIPT.exists() else (sys.executable, "-P", "-m", "gpuload")
DECOMPRESS: Command = (*GPULOAD, "decompress", "{file}", "-o", "{out}", "--force", "-q")
_COMPRESS: Command = (*GPULOAD, "compress", "{raw}", "-o", "{out}", "--force", "-q")


@dataclass(frozen=True)
class Case:
    """One file.

    Attributes
    ----------
    name : str
        What it is.
    file : str
        Its file name.
    make : tuple of Command
        Commands that write it; the first whose tool is installed is taken.
    tools : mapping of str to Command
        Decoders to compare with.
    bound : float
        What gpuload may take of the fastest tool's time: 0.6 where the tools have one thread and
        the file's chunks are independent, 1.0 elsewhere.
    """

    name: str
    file: str
    make: tuple[Command, ...]
    tools: Mapping[str, Command]
    bound: float

    @property
    def installed(self) -> dict[str, Command]:
        """The decoders that this machine has."""
        return {name: tool for name, tool in self.tools.items() if shutil.which(tool[0])}


_LZ4 = {"lz4 -d": ("lz4", "-d", "-q", "-f", "{file}", "{out}")}
CASES = (
    Case(
        "LZ4, 64 KiB blocks",
        "mix.lz4",
        (("lz4", "-q", "-f", "-B4", "{raw}", "{out}"),),
        _LZ4,
        0.6,
    ),
    Case(
        "LZ4, linked blocks",
        "mix.linked.lz4",
        (("lz4", "-q", "-f", "-B4", "-BD", "{raw}", "{out}"),),
        _LZ4,
        1.0,
    ),
    Case(
        "BGZF",
        "mix.bgz",
        (("bgzip", "-@", "2", "-c", "{raw}"), (*_COMPRESS, "--codec", "gzip")),
        {"bgzip -d -@ 2": ("bgzip", "-d", "-@", "2", "-c", "{file}")},
        1.0,
    ),
    Case(
        "gzip, one member",
        "mix.gz",
        (("pigz", "-c", "{raw}"), ("gzip", "-c", "{raw}")),
        {
            "pigz -d": ("pigz", "-d", "-c", "{file}"),
            "gzip -d": ("gzip", "-d", "-c", "{file}"),
        },
        1.0,
    ),
    Case(
        "Zstandard, 1 MiB frames",
        "mix.frames.zst",
        ((*_COMPRESS, "--codec", "zstd", "--chunk-size", "1M"),),
        {"zstd -d -T0": ("zstd", "-d", "-T0", "-q", "-f", "{file}", "-o", "{out}")},
        0.6,
    ),
    Case(
        "Zstandard, one frame",
        "mix.zst",
        (("zstd", "-T0", "-q", "-f", "{raw}", "-o", "{out}"),),
        {"zstd -d": ("zstd", "-d", "-q", "-f", "{file}", "-o", "{out}")},
        1.0,
    ),
    Case(
        "Snappy framing",
        "mix.sz",
        ((*_COMPRESS, "--codec", "snappy"),),
        {"cramjam": (sys.executable, str(_HERE / "snappy_reader.py"), "{file}", "{out}")},
        0.6,
    ),
)

#: One frame with the largest window that is decoded without asking, and one member.
BIG = {
    "one Zstandard frame, 128 MiB window": ("big.zst", ("zstd", "-q", "-1", "--long=27", "-c")),
    "one gzip member": ("big.gz", ("pigz", "-1", "-c")),
}


def make_mix(folder: Path, size: int) -> Path:
    """Return the contents of all files; they are made unless they are there."""
    mix = folder / "mix"
    if not mix.exists() or mix.stat().st_size != size:
        run((sys.executable, str(_CONTENTS), "mix", str(size)), part_of(mix))
        part_of(mix).rename(mix)
    return mix


def part_of(file: Path) -> Path:
    """Return the name of a file while it is made: what has its own name is whole."""
    return file.with_name(f"{file.name}.part")


def make_file(case: Case, mix: Path) -> Path | None:
    """Return a case's file; None where no tool writes it. An older one is made again."""
    file = mix.with_name(case.file)
    if file.exists() and file.stat().st_mtime >= mix.stat().st_mtime:
        return file
    command = next((command for command in case.make if shutil.which(command[0])), None)
    if command is None:
        return None
    part = part_of(file)
    stdout = None if any("{out}" in word for word in command) else part
    run(fill(command, raw=mix, out=part), stdout)
    return part.rename(file)


def make_big(file: Path, compressor: Command, mix: Path, size: int) -> bool:
    """Make a large file through pipes; False where the tool is missing."""
    if not shutil.which(compressor[0]):
        return False
    contents = (sys.executable, str(_CONTENTS), "big", str(size), str(mix))
    with (
        part_of(file).open("wb") as output,
        subprocess.Popen(contents, stdout=subprocess.PIPE) as writer,
    ):
        subprocess.run(compressor, stdin=writer.stdout, stdout=output, check=True)
    part_of(file).rename(file)
    return True
