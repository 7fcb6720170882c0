"""``gpuload bench FILE...``: how fast this machine loads a file, stage by stage."""

from __future__ import annotations

import contextlib
import importlib
import stat
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from gpuload.errors import EngineUnavailableError, MissingDependencyError
from gpuload.options import ENGINES, WAYS

from .bench_options import device_option, each_once, json_errors, json_option, repeats_option
from .boundary import status_of
from .messages import FAILURES, complain, describe, json_line, printable
from .options import examples, files_argument, force_option, loading_options, size_option
from .outputs import Target, check, open_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .bench_loads import Plan
    from .outputs import Output

Record = dict[str, Any]

__all__ = ["PLOT_SUFFIXES", "command"]

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class _PathOfGroup(click.Context):
    """A context whose command is spelled as its group."""

    @property
    def command_path(self) -> str:
        return self.parent.command_path if self.parent else super().command_path


class _Files(click.Command):
    """A command that stands for its group, and lists the others in it."""

    context_class = _PathOfGroup

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        if ctx.parent and isinstance(ctx.parent.command, click.Group):
            ctx.parent.command.format_commands(ctx.parent, formatter)


def _plot_name(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    if name is not None and PurePath(name).suffix.lower() not in PLOT_SUFFIXES:
        known = ", ".join(PLOT_SUFFIXES)
        raise click.BadParameter(f"{printable(name)} must end in one of {known}")
    return name


@click.command(
    cls=_Files,
    epilog=examples(
        "gpuload bench data.lz4",
        "gpuload bench data.zst --engine nvcomp --engine host --repeats 9",
        "gpuload bench data.lz4 --plot data.png",
        "gpuload bench kernels --codec lz4",
    ),
)
@files_argument
@click.option(
    "--engine",
    "engines",
    type=click.Choice(ENGINES),
    multiple=True,
    callback=each_once,
    help="Who decodes; may be given several times.  [default: every engine that can run here]",
)
@click.option(
    "--way",
    "ways",
    type=click.Choice(WAYS),
    multiple=True,
    callback=each_once,
    help="How stored bytes come to a GPU: mapped, from the file's own pages; read, through a ring "
    "of pinned memory.  [default: both]",
)
@repeats_option(5)
@device_option
@loading_options
@click.option("--no-verify", is_flag=True, help="Skip checksums.")
@size_option(
    "--raw-limit",
    minimum=0,
    liftable=True,
    default="16G",
    help="Leave out what reads a decompressed copy, in TMPDIR, that is larger.  [default: 16G]",
)
@click.option(
    "--plot",
    metavar="OUT",
    callback=_plot_name,
    help="Draw rates, and when each stage was busy, to OUT (.png, .svg or .pdf); for one FILE.",
)
@force_option
@json_option
def command(
    files: tuple[str, ...], *, plot: str | None, force: bool, as_json: bool, **settings: Any
) -> None:
    """Time the load of files, stage by stage, for every engine and way that runs here.

    With a GPU, files are loaded to its memory, else to the host's. Beside loads stand what reads
    the decompressed bytes from a temporary file: a plain copy, and KvikIO where it is installed.

    What every engine decodes is compared with what the host decodes: the exit status is 1 if it
    differs. The engine nvcomp takes files to be valid, as with --trusted.
    """
    with json_errors(as_json=as_json), _plot_output(files, plot, force=force) as output:
        plan, report = _begin(**settings)
        status = 0
        if not as_json:
            _print(*_heading(report))
        for file in files:
            facts, failed = _bench(file, plan, as_json=as_json)
            report["files"].append(facts)
            status = max(status, failed)
        if output and plot:
            _draw(report, plot, output)
    if as_json:
        click.echo(json_line(report | {"ok": not status}))
    if status:
        raise click.exceptions.Exit(status)


@contextlib.contextmanager
def _plot_output(
    files: tuple[str, ...], plot: str | None, *, force: bool
) -> Iterator[Output | None]:
    """Open the plot's file before anything is timed, so that what is wrong with it is found."""
    for file in files:
        if _is_stream(file):
            name = "standard input" if file == "-" else file
            raise click.UsageError(f"{name} can be read only once; name a file")
    if plot is None:
        yield None
        return
    if len(files) > 1:
        raise click.UsageError("--plot takes one FILE")
    check([Target(files[0], plot)], force=force)
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise MissingDependencyError("matplotlib", "plot", "--plot") from None
    with open_output(plot, force=force) as output:
        yield output


def _is_stream(file: str) -> bool:
    """Return whether a name is that of a pipe, or of what is like one."""
    try:
        mode = Path(file).stat().st_mode
    except (OSError, ValueError):
        return file == "-"
    return file == "-" or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _begin(
    *,
    engines: tuple[str, ...],
    ways: tuple[str, ...],
    repeats: int,
    device: int | None,
    no_verify: bool,
    raw_limit: int,
    **options: Any,
) -> tuple[Plan, Record]:
    from .bench_loads import Plan
    from .bench_machine import describe_machine, find_device

    given = {name: value for name, value in options.items() if value is not None}
    given["verify"] = False if no_verify else "auto"
    plan = Plan(engines, ways, repeats, raw_limit, given, find_device(device))
    return plan, describe_machine(plan)


def _heading(report: Record) -> Iterator[str]:
    from .bench_lines import heading

    return heading(report)


def _bench(file: str, plan: Plan, *, as_json: bool) -> tuple[Record, int]:
    """Measure a file; return its record and the exit status that this asks for."""
    from .bench_lines import errors, line, notes, summary, title
    from .bench_rows import measure

    facts: Record = {"file": file, "ok": False, "error": "", "rows": []}
    try:
        with contextlib.closing(measure(file, plan, facts)) as records:
            for record in records:
                if not as_json and not facts["rows"]:
                    _print("", summary(facts), title())
                facts["rows"].append(record)
                if not as_json:
                    _print(line(record))
    except BrokenPipeError:
        raise
    except FAILURES as error:
        facts["error"] = "\n".join(describe(error, file))
        complain(facts["error"].splitlines())
        return facts, status_of(error)
    if not as_json:
        _print(*notes(facts["rows"]))
    complain(errors(facts))
    facts["ok"] = not any(record["error"] for record in facts["rows"])
    return facts, _status(facts, plan)


def _status(facts: Record, plan: Plan) -> int:
    if not facts["ok"]:
        return 1
    # An engine that was asked for by name and takes nothing of the file is wrong usage.
    refused = [row for row in facts["rows"] if row["name"] in plan.engines and row["left_out"]]
    return status_of(EngineUnavailableError()) if refused else 0


def _print(*lines: str) -> None:
    for text in lines:
        click.echo(printable(text))


def _draw(report: Record, plot: str, output: Output) -> None:
    import os

    from gpuload.outputs import write_all

    from .bench_plot import draw

    (facts,) = report["files"]
    if facts["rows"]:
        image = draw(report, facts, PurePath(plot).suffix.lower().lstrip("."))
        write_all(lambda view: os.write(output.fd, view), image)
        output.commit()
