"""The lines that ``gpuload bench kernels`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .messages import human_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    Record = dict[str, Any]

__all__ = ["errors", "heading", "line", "title"]

_FACTS = ("codec", "data", "ratio", "chunk", "chunks")
_WIDTHS = (8, 8, 6, 8, 9)
_WIDTH, _WIDE = 10, 16


def heading(report: Record) -> Iterator[str]:
    """Yield what stands above the table: the machine, and what the numbers are."""
    device, plan = report["device"], report["plan"]
    driver = f", driver {device['driver']}" if device["driver"] else ""
    yield f"gpuload {report['gpuload']}, {device['name']}, CUDA {device['cuda']}{driver}"
    for name, reason in report["unavailable"].items():
        yield f"no column for {name}: {reason}"
    yield from (f"note: {note}" for note in report["notes"])
    stored = " (of stored ones)" if plan["mapped"] else ""
    runs = f"medians of {plan['repeats']} runs" if plan["repeats"] > 1 else "one run"
    yield f"GB/s of decompressed bytes{stored}, {runs}, {human_size(plan['size'])} a data set"
    yield from _meanings(plan, report["columns"])


def _meanings(plan: Record, columns: list[str]) -> Iterator[str]:
    if plan["mapped"]:
        yield "stored chunks are in host memory; copy: they are copied to the device"
    else:
        yield "stored chunks are in device memory; copy: the content is copied there"
    if "host" in columns:
        yield f"host: {plural(plan['threads'], 'thread')}, from host memory to host memory"


def title(report: Record) -> str:
    """Return the table's first line."""
    return _row(_FACTS, [*report["columns"], *_ratio_title(report)], report)


def line(record: Record, report: Record) -> str:
    """Return a line of the table: of a batch, or of the host's time for one chunk."""
    size, columns = record["chunk_size"], report["columns"]
    facts = [_chunk_size(size), f"{record['chunks']:,}"]
    results = [record["results"].get(name) for name in columns]
    if record["kind"] == "submit":
        cells = [_cell(result, _microseconds) for result in results]
        return _row((record["codec"], "host us", "", *facts), cells, report)
    rate = _both_rates if report["plan"]["mapped"] else _rate
    cells = [_cell(result, rate) for result in results]
    if _ratio_title(report):
        ratio = record["sm_to_nvcomp"]
        cells.append("-" if ratio is None else f"{ratio:.2f}")
    ratio = f"{record['ratio']:.2f}"
    return _row((record["codec"], record["data"], ratio, *facts), cells, report)


def errors(records: list[Record]) -> Iterator[str]:
    """Yield what went wrong, and where."""
    for record in records:
        for name, result in record["results"].items():
            if result["error"]:
                yield (
                    f"{name}, {record['codec']}, {record['data']}, chunks of "
                    f"{_chunk_size(record['chunk_size'])}: {result['error']}"
                )


def _ratio_title(report: Record) -> list[str]:
    return ["sm/nvcomp"] if {"sm", "nvcomp"} <= {*report["columns"]} else []


def _row(facts: tuple[str, ...], cells: list[str], report: Record) -> str:
    width = _WIDE if report["plan"]["mapped"] else _WIDTH
    left = "".join(f"{fact:<{w}}" for fact, w in zip(facts[:2], _WIDTHS, strict=False))
    middle = "".join(f"{fact:>{w}}" for fact, w in zip(facts[2:], _WIDTHS[2:], strict=True))
    return (left + middle + "".join(f"{cell:>{width}}" for cell in cells)).rstrip()


def _cell(result: Record | None, number: Any) -> str:
    if result is None:
        return ""
    if result["error"]:
        return "failed"
    # A star for time in which the device waited for the host.
    return "-" if result["median"] is None else number(result) + "*" * result["waited"]


def _rate(result: Record) -> str:
    return _short(result["gb_per_s"])


def _both_rates(result: Record) -> str:
    return f"{_short(result['gb_per_s'])} ({_short(result['stored_gb_per_s'])})"


def _microseconds(result: Record) -> str:
    return _short(result["median"] * 1e6)


def _short(number: float) -> str:
    """Return a number with three digits or more."""
    decimals = next((d for limit, d in ((100, 0), (10, 1), (1, 2)) if number >= limit), 3)
    return f"{number:,.{decimals}f}"


def _chunk_size(size: int) -> str:
    """Return a size as ``--chunk-size`` takes it."""
    for unit, shift in (("M", 20), ("K", 10)):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)
