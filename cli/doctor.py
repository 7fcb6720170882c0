"""``gpuload doctor``: what this machine has, and what to install to get more."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import sys
from typing import Any

import click

from .devices import device_lines, devices
from .kernels import check_architectures, kernel_lines, kernels, warm_up
from .messages import complain, json_line, printable
from .options import examples

__all__ = ["command"]

#: Optional packages, the extra that brings each, and what it is for.
_EXTRAS = (
    ("fsspec", "remote", "reading URLs"),
    ("aiohttp", "remote", "reading http and https URLs"),
    ("rapidgzip", "gzip", "one-member gzip files on several threads"),
    ("zarr", "zarr", "metadata of Zarr arrays"),
    ("numcodecs", "zarr", "whole Blosc chunks, and codecs that are left to zarr-python"),
    ("ml_dtypes", "arrays", "bfloat16 and fp8 elements"),
    ("matplotlib", "plot", "plots of benchmarks"),
)


@click.command(
    epilog=examples(
        "gpuload doctor",
        "gpuload doctor --json",
        "gpuload doctor --warmup",
        "gpuload doctor --warmup --arch sm_90 --arch sm_100",
    )
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--warmup", is_flag=True, help="Compile the kernels for the GPUs here, and keep them."
)
@click.option(
    "--arch",
    "architectures",
    metavar="ARCH",
    multiple=True,
    callback=check_architectures,
    help="With --warmup: compile for this architecture instead, such as sm_90, which needs no GPU. "
    "May be given several times.",
)
def command(*, as_json: bool, warmup: bool, architectures: tuple[str, ...]) -> None:
    """Show the codecs, libraries, GPU software and GPUs at hand, and how to get more.

    Nothing is required: what is missing is listed with the command that installs it.

    With --warmup the GPU kernels are compiled and kept on disk, where every process of this user
    finds them; otherwise the first load that needs one does it. The exit status is then 1 if
    anything could not be compiled or kept, or there is nothing to compile for.
    """
    if architectures and not warmup:
        raise click.UsageError("--arch says what to compile for: use it with --warmup")
    report = _report()
    if warmup:
        warm_up(report, architectures)
    if as_json:
        click.echo(json_line(report))
    else:
        _print(report)
    if report["kernels"]["errors"]:
        complain(report["kernels"]["errors"])
        raise click.exceptions.Exit(1)


def _report() -> dict[str, Any]:
    import gpuload
    from gpuload.options import available_cpus

    return {
        "gpuload": gpuload.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": platform.platform(),
        "threads": available_cpus(),
        "codecs": _codecs(),
        "gpu": _gpu(),
        "kernels": kernels(),
        **devices(),
        "extras": [_extra(*row) for row in _EXTRAS],
    }


def _codecs() -> list[dict[str, Any]]:
    from gpuload.codecs import libraries

    names = ("codec", "library", "version", "purpose")
    return [dict(zip(names, row, strict=True)) for row in libraries()]


def _gpu() -> list[dict[str, Any]]:
    driver = _driver_version()
    return [
        _part("CUDA driver", driver, "an NVIDIA driver: https://www.nvidia.com/drivers"),
        _part("cuda-bindings", _version("cuda-bindings"), "pip install cuda-bindings"),
        _part("cuda-core", _version("cuda-core"), "pip install cuda-core"),
        _part("NVRTC", _nvrtc_version(), _pip("cuda")),
        _nvcomp(),
    ]


def _extra(package: str, extra: str, purpose: str) -> dict[str, Any]:
    return {**_part(package, _version(package), _pip(extra)), "purpose": purpose}


def _part(name: str, version: str | None, install: str) -> dict[str, Any]:
    return {"name": name, "version": version, "install": None if version else install}


def _pip(extra: str) -> str:
    return f"pip install 'gpuload[{extra}]'"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_version() -> str | None:
    """Return the CUDA version that the driver supports; None without a driver."""
    library = _library("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    if library is None:
        return None
    version = ctypes.c_int()
    # cuDriverGetVersion may be called without cuInit, and touches no device.
    if not hasattr(library, "cuDriverGetVersion") or library.cuDriverGetVersion(
        ctypes.byref(version)
    ):
        return "of unknown version"
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _nvrtc_version() -> str | None:
    from gpuload.kernels import nvrtc

    found = nvrtc.find()
    return "{}.{}".format(*found.version) if found else None


def _nvcomp() -> dict[str, Any]:
    from gpuload.engines import nvcomp_library

    reason = nvcomp_library.unavailable()
    version = None if reason else "{}.{}".format(*nvcomp_library.load().version)
    part = _part("nvCOMP", version, _pip("nvcomp"))
    problem = reason.removesuffix(f": {part['install']}")
    return part if problem in ("", "nvCOMP is not installed") else {**part, "problem": problem}


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _print(report: dict[str, Any]) -> None:
    click.echo(f"gpuload {report['gpuload']}")
    for label in ("python", "platform", "threads"):
        _print_fact(label, report[label])
    click.echo("codecs")
    for row in report["codecs"]:
        library = f"{row['library']} {row['version'] or 'not installed'}"
        _print_fact(row["codec"], f"{library:<20} {row['purpose']}")
    for section in ("gpu", "extras"):
        click.echo(section)
        for part in report[section]:
            _print_fact(part["name"], _state(part))
    click.echo("kernels")
    for label, fact in kernel_lines(report["kernels"]):
        _print_fact(label, fact)
    for heading, facts in device_lines(report):
        click.echo(heading)
        for label, fact in facts.items():
            _print_fact(label, fact)


def _print_fact(label: str, fact: object) -> None:
    click.echo(f"  {label:<18} {printable(str(fact))}")


def _state(part: dict[str, Any]) -> str:
    state = part["version"] or f"{part.get('problem', 'not found')}; {part['install']}"
    return f"{state} ({part['purpose']})" if "purpose" in part else str(state)
