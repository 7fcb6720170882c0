"""The lines that ``gpuload bench FILE...`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuload.stages import STAGES

from .messages import human_size, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    Record = dict[str, Any]

__all__ = ["errors", "heading", "label", "line", "notes", "rate_text", "summary", "title"]

#: What loads go through; nothing writes.
_STAGES = tuple(name for name in STAGES if name != "write")
_HEADS = ("", "GB/s", "ms", "cores", *_STAGES, "host", "GPU")
_WIDTHS = (18, 8, 9, 7, *(7 for _ in _STAGES), 7, 7)
_NAMES = {"raw": "raw copy", "kvikio": "KvikIO"}


def heading(report: Record) -> Iterator[str]:
    """Yield what stands above everything: the machine, and what the numbers are."""
    plan = report["plan"]
    yield f"gpuload {report['gpuload']}, {_machine(report)}"
    for name, reason in report["unavailable"].items():
        yield f"no rows for {name}: {reason}"
    runs = f"medians of {plan['repeats']} runs" if plan["repeats"] > 1 else "one run"
    yield f"GB/s of decompressed bytes, {runs} after one that does not count, files in the cache"
    yield "stages: ms in which any thread or stream worked on them; they overlap"
    yield "host, GPU: MiB that a load takes there beyond its result"


def _machine(report: Record) -> str:
    device = report["device"]
    if device is None:
        return f"no GPU, so that only the host decodes, to its memory: {report['no_device']}"
    driver = f", driver {device['driver']}" if device["driver"] else ""
    return f"{device['name']}, CUDA {device['cuda']}{driver}"


def summary(facts: Record) -> str:
    """Return the line that says what a file is."""
    stored, raw = human_size(facts["stored_size"]), human_size(facts["raw_size"])
    ratio = f"{facts['ratio']:.2f} times" if facts["ratio"] else "empty"
    chunks = plural(facts["chunks"], "chunk")
    return f"{facts['file']}: {facts['format']}, {chunks}, {stored}; decompressed {raw}, {ratio}"


def title() -> str:
    """Return a table's first line."""
    return _row(_HEADS)


def line(record: Record) -> str:
    """Return a line of the table."""
    return _row((label(record), *_cells(record)))


def label(record: Record) -> str:
    """Return what a row measures, in short."""
    name, way = _NAMES.get(record["name"], record["name"]), record["way"]
    target = "to memory" if record["to"] == "cpu" else "to GPU"
    return str(name) if record["name"] == "kvikio" else f"{name} {way or target}"


def _cells(record: Record) -> list[str]:
    if record["left_out"] or record["error"]:
        return ["failed" if record["error"] else "-"]
    cells = [record["gb_per_s"], record["median"] * 1e3, record["busy_cores"]]
    numbers = [rate_text(cell) for cell in cells]
    if record["kind"] != "load":
        return numbers
    stages = record["stages"]
    busy = [rate_text(stages[name]["busy"] * 1e3) if name in stages else "" for name in _STAGES]
    peaks = [record["peak_host"], record["peak_device"]]
    return [*numbers, *busy, *(f"{-(-peak // (1 << 20)):,}" if peak else "" for peak in peaks)]


def notes(records: list[Record]) -> Iterator[str]:
    """Yield what the numbers of a table do not say: what is missing, and what was not checked."""
    missing: dict[str, list[str]] = {}
    for record in records:
        for reason in filter(None, (record["left_out"], *_caveats(record))):
            missing.setdefault(reason, []).append(label(record))
    yield from (f"{', '.join(names)}: {reason}" for reason, names in missing.items())


def _caveats(record: Record) -> Iterator[str]:
    if "ways" in record and record["way"] and record["way"] not in record["ways"]:
        yield "stored bytes did not come that way"
    if record.get("unverified"):
        counts = (f"{count:,} {kind}" for kind, count in record["unverified"].items())
        yield f"checksums that were not checked: {', '.join(counts)}"
    if record.get("engine", record["name"]) != record["name"]:
        passed_over = record["passed_over"].get(record["name"], "")
        yield f"decoded by {record['engine']}" + (f": {passed_over}" if passed_over else "")


def errors(facts: Record) -> Iterator[str]:
    """Yield what went wrong with a file's rows."""
    for record in facts["rows"]:
        if record["error"]:
            yield f"{facts['file']}: {label(record)}: {record['error']}"


def _row(cells: tuple[str, ...]) -> str:
    first, *others = (
        f"{cell:>{width}}" if column else f"{cell:<{width}}"
        for column, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=False))
    )
    return "".join((first, *others)).rstrip()


def rate_text(number: float) -> str:
    """Return a number with three digits or more."""
    decimals = next((d for limit, d in ((100, 0), (10, 1), (1, 2)) if number >= limit), 3)
    return f"{number:,.{decimals}f}"
