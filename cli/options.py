"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuload.options import ENGINES

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "UNLIMITED",
    "array_options",
    "engine_options",
    "examples",
    "files_argument",
    "force_option",
    "json_beside_output_option",
    "json_option",
    "loading_options",
    "on_error_option",
    "parse_size",
    "quiet_option",
    "size_option",
    "threads_option",
]

Command = TypeVar("Command", bound="Callable[..., Any]")

#: What ``unlimited`` stands for: more than any file holds.
UNLIMITED = 2**63 - 1
#: Dictionaries are a few hundred KiB at most; the zstd tool, too, refuses more than this.
_DICTIONARY_LIMIT = 32 << 20

_SIZE = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*(?:([kmgtp])(?:i?b)?|b|bytes)?", re.IGNORECASE
)


def examples(*lines: str) -> str:
    """Return command lines as the end of a help text; the backspace keeps click from wrapping."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def size_option(
    *names: str, minimum: int = 1, liftable: bool = False, **attributes: Any
) -> Callable[[Command], Command]:
    """Return a click option for a number of bytes: ``65536``, ``64K``, ``1.5GiB``, ``2g``.

    Parameters
    ----------
    *names : str
        As click takes them.
    minimum : int
        Smallest size that makes sense.
    liftable : bool
        Whether ``unlimited`` is a size too.
    **attributes
        More attributes of the option.
    """

    def parse(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
        return None if text is None else parse_size(text, minimum=minimum, liftable=liftable)

    return click.option(*names, metavar="SIZE", callback=parse, **attributes)


def parse_size(text: str, *, minimum: int = 1, liftable: bool = False) -> int:
    """Return the bytes that a size such as ``64K`` stands for; units are powers of 1024.

    Raises
    ------
    click.BadParameter
        If it is no size, or one that makes no sense.
    """
    text = text.strip()
    if liftable and text.lower() == "unlimited":
        return UNLIMITED
    size = _bytes_of(text)
    if size is None:
        lift = " or unlimited" if liftable else ""
        raise click.BadParameter(f"'{text}' is no size such as 65536, 512M, 1GiB{lift}")
    if not minimum <= size <= UNLIMITED:
        raise click.BadParameter(f"{text} is not between {minimum} and {UNLIMITED} bytes")
    return size


def _bytes_of(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    factor = 1024 ** (" kmgtp".index(unit.lower()) if unit else 0)
    return int(float(number) * factor) if "." in number else int(number) * factor


def _read_dictionary(_: click.Context, __: click.Parameter, path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        content = file.read(_DICTIONARY_LIMIT + 1)
    if not content:
        raise click.BadParameter(f"{click.format_filename(path)} is empty")
    if len(content) > _DICTIONARY_LIMIT:
        raise click.BadParameter(f"{click.format_filename(path)} is larger than 32 MiB")
    return content


files_argument = click.argument("files", metavar="FILE...", nargs=-1, required=True)
force_option = click.option(
    "-f", "--force", is_flag=True, help="Overwrite existing files, and write to a terminal."
)
_JSON = "Print a JSON object for each file, one a line"
json_option = click.option("--json", "as_json", is_flag=True, help=f"{_JSON}.")
json_beside_output_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help=f"{_JSON}; on standard error where the bytes go to standard output.",
)
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="No progress bar and no warnings; errors remain."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1, max=4096),
    metavar="N",
    help="Threads to use.  [default: one for each CPU]",
)

_ENGINE = (
    click.option(
        "--engine",
        type=click.Choice(["auto", *ENGINES]),
        help="Who decodes: hardware is the decompression engine of Blackwell GPUs, sm kernels of "
        "gpuload's own, nvcomp NVIDIA's library, host the CPU; auto is, chunk by chunk, the first "
        "that can and is the fastest by what was measured, nvcomp only with --trusted.  "
        "[default: auto]",
    ),
    click.option(
        "--device",
        type=click.IntRange(min=0),
        metavar="N",
        help="The GPU that may decode, as gpuload doctor numbers them.",
    ),
    click.option(
        "--trusted/--untrusted",
        # Without either, the library takes its precautions and keeps hardware.
        default=None,
        help="Whether the files are known to be valid. The engines hardware and nvcomp cannot "
        "bound what bad data makes them write: --trusted lets auto take both, without guards; "
        "--untrusted keeps both away. Without either, hardware works behind guards.",
    ),
)

_LOADING = (
    threads_option,
    size_option(
        "--memory-limit",
        help="Working memory, for example 512M.  [default: 384M]",
    ),
    size_option(
        "--max-output",
        minimum=0,
        liftable=True,
        help="Refuse files that decode to more; 'unlimited' lifts it.  "
        "[default: the larger of 1G and 100 times the input]",
    ),
    size_option(
        "--max-window",
        "window_limit",
        liftable=True,
        help="Refuse Zstandard windows that are larger.  [default: 128M]",
    ),
    click.option(
        "--dictionary",
        metavar="FILE",
        callback=_read_dictionary,
        help="Dictionary that the file was made with (Zstandard, LZ4).",
    ),
    click.option(
        "--strict", is_flag=True, help="Fail where a file deviates from its format harmlessly."
    ),
)


def loading_options(command: Command) -> Command:
    """Add the options of reading a file, named as the fields of `gpuload.options.Options`."""
    return _all_of(_LOADING, command)


def array_options(command: Command) -> Command:
    """Add the options of files of arrays, named likewise."""
    missing = click.option(
        "--missing",
        type=click.Choice(("fill", "error")),
        help="What missing chunks of arrays are.  [default: fill]",
    )
    unsupported = click.option(
        "--on-unsupported",
        type=click.Choice(("error", "host")),
        help="Whether zarr-python decodes arrays with codecs that gpuload does not know (host).  "
        "[default: error]",
    )
    return missing(unsupported(command))


def engine_options(command: Command) -> Command:
    """Add the options that say who decodes, named likewise."""
    return _all_of(_ENGINE, command)


def _all_of(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def on_error_option(*choices: str, help: str) -> Callable[[Command], Command]:  # noqa: A002
    """Return the option that says what to do about a chunk that does not decode."""
    return click.option("--on-error", type=click.Choice(choices), help=f"{help}  [default: raise]")
