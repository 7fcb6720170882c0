"""``gpuload bench``: how fast this machine decodes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from .bench_file import command as files
from .bench_options import device_option, each_once, json_errors, json_option, repeats_option
from .messages import complain, json_line, printable
from .options import examples, parse_size, size_option, threads_option

if TYPE_CHECKING:
    from .bench_plan import Plan

__all__ = ["ENGINES", "command"]

_CODECS = ("lz4", "snappy", "deflate", "zstd")
_DEFAULT_CODECS = ("lz4", "snappy")
_DATA = ("text", "binary", "weights", "field")
#: In the order of the columns.
ENGINES = ("sm", "nvcomp", "hardware", "host")
#: Chunks that every codec and engine takes.
_SMALLEST_CHUNK, _LARGEST_CHUNK = 1 << 10, 512 << 20


class _Bench(click.Group):
    """A group to which everything but the names of its commands is a file to load."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Behind "--" nothing is an option of the group, which has none. Without any argument, the
        # second one goes to the command that says that a file is missing.
        return super().parse_args(ctx, ["--", *(args or ["--"])])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return None, files, args


@click.group(cls=_Bench)
def command() -> None:
    """Measure how fast this machine loads files and decodes."""


def _chunk_sizes(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    sizes = [parse_size(text, minimum=_SMALLEST_CHUNK) for text in texts]
    if sizes and max(sizes) > _LARGEST_CHUNK:
        raise click.BadParameter(f"chunks are at most {_LARGEST_CHUNK >> 20}M")
    return tuple(dict.fromkeys(sizes))


def _counts(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[int | None, ...]:
    return tuple(dict.fromkeys(map(_count, texts)))


def _count(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text)):
        raise click.BadParameter(
            f"'{text}' is no number of chunks from 1 to 999999999, and not all"
        )
    return int(text)


@command.command(
    epilog=examples(
        "gpuload bench kernels",
        "gpuload bench kernels --codec lz4 --data text --chunks all --chunks 256 --chunks 1",
        "gpuload bench kernels --mapped --json > results.json",
    )
)
@click.option(
    "--codec",
    "codecs",
    type=click.Choice(_CODECS),
    multiple=True,
    default=_DEFAULT_CODECS,
    callback=each_once,
    help="What to decode.  [default: lz4 and snappy, for which there are kernels]",
)
@click.option(
    "--data",
    type=click.Choice(_DATA),
    multiple=True,
    default=_DATA,
    callback=each_once,
    help="Python sources, shared libraries, bfloat16 weights, or a rounded float32 field.  "
    "[default: all of them]",
)
@click.option(
    "--chunk-size",
    "chunk_sizes",
    metavar="SIZE",
    multiple=True,
    default=("64K",),
    callback=_chunk_sizes,
    help="Raw bytes a chunk, for example 256K.  [default: 64K]",
)
@click.option(
    "--chunks",
    metavar="N|all",
    multiple=True,
    default=("all",),
    callback=_counts,
    help="How many chunks a batch.  [default: all]",
)
@click.option(
    "--engine",
    "engines",
    type=click.Choice(ENGINES),
    multiple=True,
    callback=each_once,
    help="Who decodes.  [default: every engine that can run here]",
)
@size_option(
    "--size",
    minimum=_SMALLEST_CHUNK,
    default="1G",
    help="Bytes of each data set; it should be several times the GPU's cache.  [default: 1G]",
)
@repeats_option(7)
@device_option
@click.option(
    "--mapped",
    is_flag=True,
    help="Keep the stored chunks in host memory, where the GPU reads them over the link.",
)
@threads_option
@json_option
def kernels(*, device: int | None, as_json: bool, threads: int | None, **settings: Any) -> None:
    """Compare engines: GB/s of decompressed bytes, side by side in one process.

    This needs a GPU, also for --engine host.

    Data is compressed first, then decoded from device memory to device memory, which the GPU's own
    clock measures. The options that name codecs, data, sizes and engines may be given several
    times; everything is measured with everything.

    A copy of the same bytes on the GPU shows what is possible at most. A line with 'host us' is the
    time in microseconds that the host takes to submit one chunk. A star marks rates that hold time
    in which the GPU waited for the host.

    Everything that is decoded is compared with the data: the exit status is 1 if it differs.
    """
    _check_sizes(**settings)
    from gpuload import driver
    from gpuload.options import available_cpus

    from .bench_plan import Plan, describe, find_device

    plan = Plan(**settings, threads=threads or available_cpus())
    with json_errors(as_json=as_json):
        device_id = find_device(device)
        with driver.on_device(device_id):
            report = describe(plan, device_id)
            _measure(plan, device_id, report, as_json=as_json)


def _check_sizes(*, size: int, chunk_sizes: tuple[int, ...], **_: object) -> None:
    if max(chunk_sizes) > size:
        raise click.UsageError(
            f"a chunk of {max(chunk_sizes)} bytes is more than the {size} bytes of --size"
        )


def _measure(plan: Plan, device_id: int, report: dict[str, Any], *, as_json: bool) -> None:
    from .bench_kernels import measure
    from .bench_report import errors, heading, line, title

    if not as_json:
        for text in (*heading(report), "", title(report)):
            click.echo(printable(text))
    report["rows"] = []
    with contextlib.closing(measure(plan, device_id, report["columns"])) as records:
        for record in records:
            report["rows"].append(record)
            if not as_json:
                click.echo(line(record, report))
    wrong = list(errors(report["rows"]))
    if as_json:
        click.echo(json_line(report | {"ok": not wrong}))
    if wrong:
        complain(wrong)
        raise click.exceptions.Exit(1)
