"""What ``gpuload doctor`` says of the GPU kernels, and how it compiles them ahead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from gpuload.errors import GpuloadError

from .messages import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuload.kernels.compiler import Compiled

__all__ = ["check_architectures", "kernel_lines", "kernels", "warm_up"]

_NOT_KEPT = (
    "the compiled kernels cannot be kept, and every process will compile them again; "
    "GPULOAD_CACHE_DIR may name another folder"
)

_ARCHITECTURE = re.compile(r"sm_([1-9][0-9]{1,2})")
_OLDEST = 75


def check_architectures(
    _: click.Context, __: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse what is no architecture; one that is newer than NVRTC is left to it.

    Raises
    ------
    click.BadParameter
        If a name has not the form, is too old for the kernels, or is one that there is not.
    """
    for name in names:
        match = _ARCHITECTURE.fullmatch(name)
        if match is None or int(match[1]) < _OLDEST:
            raise click.BadParameter(
                f"'{printable(name)}' is no architecture such as sm_90 that the kernels can be "
                f"compiled for; sm_{_OLDEST} (compute capability 7.5) is the oldest"
            )
        _check_exists(int(match[1]))
    return names


def _check_exists(number: int) -> None:
    from gpuload.kernels import nvrtc

    compiler = nvrtc.find()
    known = compiler.architectures if compiler else ()
    if compiler and number not in known and number < max(known, default=0):
        names = ", ".join(f"sm_{other}" for other in known if other >= _OLDEST)
        raise click.BadParameter(f"{compiler} does not compile for sm_{number}, but for {names}")


def kernels() -> dict[str, Any]:
    """Return what compiles kernels, or why nothing does, and where the compiled ones are kept."""
    from gpuload.kernels import cache, compiler, nvrtc

    reason, folder = compiler.unavailable(), cache.cache_folder()
    return {
        "compiler": None if reason else str(nvrtc.find()),
        "unavailable": reason or None,
        "cache": None if folder is None else str(folder),
        "compiled": None,
        "errors": [],
    }


def warm_up(report: dict[str, Any], wanted: Iterable[str]) -> None:
    """Compile all kernels; ``compiled`` and ``errors`` of the report say how that went.

    Parameters
    ----------
    report : dict
        Of the command: `kernels` is its ``kernels``, and `devices.devices` a part of it.
    wanted : iterable of str
        Architectures, such as ``sm_90``. Without any, those of the devices.
    """
    from gpuload.kernels import compiler

    record = report["kernels"]
    record["compiled"] = []
    if record["unavailable"]:
        record["errors"].append(record["unavailable"])
        return
    for architecture in dict.fromkeys(wanted) or _architectures(report):
        try:
            for compiled in compiler.warm_up(architecture):
                record["compiled"].append(_record(compiled))
        except GpuloadError as error:
            record["errors"].append(str(error))
    problems = {row["problem"] for row in record["compiled"]} - {None}
    record["errors"] += [f"{_NOT_KEPT}: {problem}" for problem in sorted(problems)]


def _architectures(report: dict[str, Any]) -> dict[str, None]:
    """Return the architectures of the devices, each once; what is wrong with one is an error."""
    from gpuload.kernels import compiler

    found: dict[str, None] = {}
    errors = report["kernels"]["errors"]
    for device in report["devices"]:
        try:
            found[compiler.architecture(device["device"])] = None
        except GpuloadError as error:
            errors.append(str(error))
    if report["no_devices"]:
        errors.append(f"{report['no_devices']}; --arch says what to compile for without a GPU")
    return found


def _record(compiled: Compiled) -> dict[str, Any]:
    return {
        "architecture": compiled.architecture,
        "codec": compiled.codec,
        "seconds": round(compiled.seconds, 3),
        "cached": compiled.cached,
        "problem": compiled.problem or None,
    }


def kernel_lines(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the labels and the facts of `kernels`."""
    reason = record["unavailable"]
    yield "compiler", f"no: {reason}" if reason else record["compiler"]
    yield "cache", record["cache"] or "none: this user has no home folder"
    for row in record["compiled"] or ():
        how = "found in the cache" if row["cached"] else f"compiled in {row['seconds']:.2f} s"
        yield row["architecture"], f"{row['codec']:<8} {how}"
