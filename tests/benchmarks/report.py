"""The benchmark's results as Markdown, and the machine that they come from."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MARKED = re.compile(r"(?<=<!-- speed:begin -->\n).*?(?=<!-- speed:end -->)", re.DOTALL)
#: MiB that `gpuload decompress` may take, however large its input.
_PEAK_BOUND = 400
_VERSION_FLAGS = {"lz4": "--version", "zstd": "--version", "bgzip": "--version", "pigz": "-V"}


def machine() -> dict[str, Any]:
    """Return what the results depend on."""
    return {
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "tools": {tool: _version(tool) for tool in _VERSION_FLAGS if shutil.which(tool)},
    }


def _cpu() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.processor()


def _version(tool: str) -> str:
    result = subprocess.run(
        [tool, _VERSION_FLAGS[tool]], capture_output=True, text=True, check=False
    )
    found = re.search(r"\d+(\.\d+)+", result.stdout + result.stderr)
    return found[0] if found else "unknown"


def judged(value: float, bound: float | None, form: str) -> str:
    over = bound is not None and value > bound
    return f"{value:{form}}{' (over)' if over else ''}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(results: dict[str, Any]) -> str:
    """Return all results as README.md shows them."""
    parts = [_introduction(results), _streams(results["streams"])]
    parts += [_costs(results["costs"])] if results["costs"] else []
    parts += [_big(results["big"])] if results["big"] else []
    return "\n\n".join(parts) + "\n"


def _introduction(results: dict[str, Any]) -> str:
    where = results["machine"]
    tools = ", ".join(f"{name} {version}" for name, version in where["tools"].items())
    return (
        f"Whole processes, {results['size'] >> 20:,} MiB of Python sources and shared libraries, "
        f"files and output in memory, on {where['cpus']} cores ({where['cpu']}), "
        f"Python {where['python']}; medians of {results['runs']} runs side by side, from "
        f"`tests/benchmarks/streams.py`. Tools: {tools}; the Snappy reader is a script around "
        "cramjam's single-threaded stream reader."
    )


def _streams(streams: list[dict[str, Any]]) -> str:
    header = (
        *("file", "ratio", "native tool", "its seconds", "gpuload's", "gpuload / fastest"),
        *("bound", "peak MiB"),
    )
    return table(header, [row for stream in streams for row in _rows(stream)])


def _rows(stream: dict[str, Any]) -> list[tuple[str, ...]]:
    tools = list(stream["tools"].items()) or [("-", None)]
    rows = []
    for name, tool in tools:
        seconds = f"{tool['median']:.2f}" if tool else "-"
        rows.append(["", "", name, seconds, "", "", "", ""])
    own = stream["gpuload"]
    compared = stream["compared"]
    rows[0][:2] = [stream["name"], f"{stream['ratio']:.2f}"]
    rows[0][4:] = [
        f"{own['median']:.2f}",
        "-" if compared is None else judged(compared, stream["bound"], ".2f"),
        f"{stream['bound']:.1f}",
        f"{own['peak'] / (1 << 20):.0f}",
    ]
    return [tuple(row) for row in rows]


def _costs(costs: dict[str, tuple[float, int | None]]) -> str:
    rows = [
        (name, judged(ms, bound, ".0f"), str(bound or "-")) for name, (ms, bound) in costs.items()
    ]
    return table(("small costs", "ms", "bound"), rows)


def _big(big: list[dict[str, Any]]) -> str:
    rows = [
        (
            f"{row['size'] / (1 << 30):g} GiB: {row['name']}",
            f"{row['seconds']:.1f}",
            judged(row["peak"] / (1 << 20), _PEAK_BOUND, ".0f"),
            str(_PEAK_BOUND),
        )
        for row in big
    ]
    return table(("large streams, to /dev/null", "seconds", "peak MiB", "bound"), rows)


def put_into(readme: Path, text: str) -> None:
    """Replace what stands between the marks ``speed:begin`` and ``speed:end``."""
    replaced, count = _MARKED.subn(lambda _: text, readme.read_text())
    if count != 1:
        raise ValueError(f"{readme} has no marks <!-- speed:begin --> and <!-- speed:end -->")
    readme.write_text(replaced)
