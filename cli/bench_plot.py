"""The picture of ``gpuload bench FILE... --plot``: rates, and when each stage was busy.

Its background is transparent. Text, axes and bars have a contrast of 3.9 or more on white and on
the near-black of dark pages (WCAG 2 asks for 3 of graphics and of large text), and are told apart
by their labels, not by their colours.
"""

from __future__ import annotations

import importlib
import io
import warnings
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gpuload.stages import STAGES

from .bench_lines import label, rate_text
from .messages import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    Record = dict[str, Any]

__all__ = ["draw"]

_GREY = "#757d87"
_BLUE, _ORANGE, _GREEN, _PINK = "#2a78d6", "#c8641e", "#0a8f6c", "#b5689a"
_LANES = (_BLUE, _ORANGE, _GREEN, _PINK)
#: Inches.
_WIDTH, _ROW, _AROUND = 10, 0.42, 1.4
#: Characters of a file's name that are shown.
_NAME = 40
_STYLE = {
    "font.size": 13,
    "text.color": _GREY,
    "text.parse_math": False,  # a file's name may have dollars in it
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _GREY,
    "axes.titlecolor": _GREY,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 14,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.left": False,
    "figure.constrained_layout.h_pad": 0.12,
    "svg.hashsalt": "gpuload",
}
#: Dates would make each picture another one.
_METADATA = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw(report: Record, facts: Record, kind: str) -> bytes:
    """Return a picture of what was measured of a file; without stages it has no timeline.

    Parameters
    ----------
    report : dict
        The machine.
    facts : dict
        The file, with at least one row.
    kind : str
        "png", "svg" or "pdf".
    """
    matplotlib = importlib.import_module("matplotlib")
    figures = importlib.import_module("matplotlib.figure")
    rows = [row for row in facts["rows"] if not row["left_out"] and not row["error"]]
    timed = _fastest(rows)
    lanes = [len(rows), *([len(timed["stages"])] if timed else [])]
    heights = [count * _ROW + _AROUND for count in lanes]
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name whose letters the font has not
        figure = figures.Figure((_WIDTH, sum(heights)), layout="constrained")
        panels = figure.subplots(len(lanes), squeeze=False, height_ratios=heights)[:, 0]
        _draw_rates(panels[0], rows)
        panels[0].set_title(f"{_name(facts)} on {_machine(report)}: GB/s of decompressed bytes")
        if timed:
            _draw_timeline(panels[1], timed)
        image = io.BytesIO()
        figure.savefig(image, format=kind, dpi=160, transparent=True, metadata=_METADATA[kind])
    return image.getvalue()


def _fastest(rows: list[Record]) -> Record | None:
    """Return the fastest load with stages, to a device if there is one."""
    loads = [row for row in rows if row.get("stages")]
    return max(loads, key=lambda row: (row["to"] != "cpu", row["gb_per_s"]), default=None)


def _name(facts: Record) -> str:
    name = printable(PurePath(facts["file"]).name)
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _machine(report: Record) -> str:
    return report["device"]["name"] if report["device"] else f"{report['cpus']} CPU cores"


def _draw_rates(axes: Any, rows: list[Record]) -> None:
    colors = [_BLUE if row["kind"] == "load" else _GREY for row in rows]
    rates = [row["gb_per_s"] for row in rows]
    bars = axes.barh(range(len(rows)), rates, height=0.7, color=colors)
    axes.bar_label(bars, [rate_text(rate) for rate in rates], padding=4)
    axes.margins(x=0.1)  # the labels stand behind the bars
    _lanes(axes, [label(row) for row in rows])


def _draw_timeline(axes: Any, row: Record) -> None:
    stages = {name: row["stages"][name] for name in STAGES if name in row["stages"]}
    for lane, stage in enumerate(stages.values()):
        spans = [(start * 1e3, (stop - start) * 1e3) for start, stop in _union(stage["intervals"])]
        color = _LANES[lane % len(_LANES)]
        # The edge shows what is shorter than a pixel.
        axes.broken_barh(spans, (lane - 0.35, 0.7), color=color, linewidth=0.4)
    _lanes(axes, [f"{name} {rate_text(stages[name]['busy'] * 1e3)} ms" for name in stages])
    axes.set_xlim(left=0)
    axes.set_xlabel("ms since the load began")
    gigabytes = row["raw_size"] / 1e9
    axes.set_title(f"{label(row)}: when each stage was busy, {rate_text(gigabytes)} GB")


def _lanes(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # from top to bottom


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return when any of the intervals was."""
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
