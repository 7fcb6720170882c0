"""``gpuload compress``: standard streams with independent chunks."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from .inputs import Batch, open_input
from .options import (
    examples,
    force_option,
    json_beside_output_option,
    quiet_option,
    size_option,
    threads_option,
)
from .outputs import Target, check, name_write_errors
from .progress import encoding_bar

if TYPE_CHECKING:
    from gpuload.compression import CompressReport

__all__ = ["command"]

_SUFFIXES = {"lz4": ".lz4", "gzip": ".gz", "zstd": ".zst", "snappy": ".sz"}
_CODECS = {
    **{suffix: codec for codec, suffix in _SUFFIXES.items()},
    ".bgz": "gzip",
    ".zstd": "zstd",
    ".snappy": "snappy",
}

# Written out, as asking the writers would import their libraries for a help text.
_LIMITS = """\b
Chunk sizes in bytes, and levels (the default in brackets):
  lz4     64K, 256K, 1M or 4M   [64K]     1 to 12        [1]
  gzip    1K to 65280           [65280]   0 to 12        [6]
  zstd    1K to 1G              [1M]      -131072 to 22  [3]
  snappy  1K to 64K             [64K]     none

"""


@click.command(
    epilog=_LIMITS
    + examples(
        "gpuload compress data --codec lz4",
        "gpuload compress data -o data.zst --level 19 --chunk-size 1M",
        "gpuload compress - -o data.gz < data",
    )
)
@click.argument("file", metavar="FILE")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="Write here; '-' is standard output.  [default: beside FILE]",
)
@click.option(
    "--codec",
    type=click.Choice(list(_SUFFIXES)),
    help="What to write.  [default: what the suffix of OUT says]",
)
@size_option("--chunk-size", help="Raw bytes a chunk, for example 256K; see below.")
@click.option("--level", type=int, metavar="N", help="Compression level; see below.")
@threads_option
@force_option
@json_beside_output_option
@quiet_option
def command(
    file: str,
    output: str | None,
    codec: str | None,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Compress a file into independent chunks that other tools read, too.

    lz4 is an LZ4 frame with independent blocks, gzip is BGZF, zstd is a frame a chunk with the
    public seek table, snappy is the Snappy framing format.

    The codec may be left out if OUT ends in .lz4, .gz, .bgz, .zst, .zstd, .sz or .snappy. A file
    that is there already stays, unless --force is given.
    """
    codec = codec or _codec_of(output)
    target = Target(file, _default_output(file, codec) if output is None else output)
    check([target], force=force)
    batch = Batch(keep_going=False, as_json=as_json, json_to_stderr=target.output == "-")
    with batch.guard(file):
        report = _compress(target, codec, force=force, quiet=quiet, **settings)
        batch.report({"ok": True, "output": target.output, **_fields(report)})


def _codec_of(output: str | None) -> str:
    suffix = Path(output or "").suffix.lower()
    if suffix not in _CODECS:
        raise click.UsageError(
            f"give --codec {'|'.join(_SUFFIXES)}, or -o OUT with a suffix that says it: "
            f"{' '.join(sorted(_CODECS))}"
        )
    return _CODECS[suffix]


def _default_output(file: str, codec: str) -> str:
    if file == "-":
        return "-"
    if "://" in file and not os.path.lexists(file):
        raise click.UsageError("give -o for a FILE that is a URL")
    return file + _SUFFIXES[codec]


def _compress(
    target: Target, codec: str, *, force: bool, quiet: bool, **settings: Any
) -> CompressReport:
    import gpuload

    dest: str | BinaryIO = sys.stdout.buffer if target.output == "-" else target.output
    with (
        open_input(target.file) as source,
        name_write_errors(target.output),
        encoding_bar(source.name, quiet=quiet) as progress,
    ):
        try:
            return gpuload.compress(
                source, dest, codec=codec, overwrite=force, progress=progress, **settings
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def _fields(report: CompressReport) -> dict[str, Any]:
    fields = dataclasses.asdict(report)
    return {"file": fields.pop("source"), **fields, "ratio": round(report.ratio, 4)}
