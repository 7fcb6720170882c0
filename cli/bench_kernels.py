"""What ``gpuload bench kernels`` measures, in which order.

Importing this imports cuda.core; it is imported once there is known to be a GPU.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import bench_data
from .bench_chunks import compress
from .bench_columns import Work, make_column
from .bench_device import DeviceBench

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .bench_columns import Cell, Column
    from .bench_plan import Plan

    Record = dict[str, Any]

__all__ = ["measure"]


def measure(plan: Plan, device_id: int, names: list[str]) -> Generator[Record]:
    """Measure everything; yield a record for each batch and for each host overhead.

    Parameters
    ----------
    plan : Plan
        What to measure.
    device_id : int
        The device, which is current.
    names : list of str
        The columns, as `describe` returns them.
    """
    chunks = max(-(-plan.size // size) for size in plan.chunk_sizes)
    with ExitStack() as closing:
        bench = closing.enter_context(DeviceBench(device_id, plan.size, chunks, mapped=plan.mapped))
        columns = [make_column(name, device_id, plan.threads) for name in names]
        for column in columns:
            closing.callback(column.close)
        for data in plan.data:
            bench.load(bench_data.make(data, plan.size))
            for codec, chunk_size in itertools.product(plan.codecs, plan.chunk_sizes):
                facts = {"codec": codec, "data": data, "chunk_size": chunk_size}
                compressed = compress(bench.content, codec, chunk_size, threads=plan.threads)
                with bench.stored(compressed.stored) as source:
                    work = Work(bench, compressed, source)
                    yield from (facts | row for row in _batches(plan, columns, work))
                    if (data, chunk_size) == (plan.data[0], plan.chunk_sizes[0]):
                        yield facts | _overhead(columns, work)


def _batches(plan: Plan, columns: list[Column], work: Work) -> Iterator[Record]:
    for count in plan.counts(work.chunks.rows.size):
        raw, stored = work.chunks.raw_size(count), work.chunks.stored_size(count)
        cells = {column.name: column.measure(work, count, plan.repeats) for column in columns}
        yield {
            "kind": "batch",
            "chunks": count,
            "raw_size": raw,
            "stored_size": stored,
            "ratio": raw / stored,
            "results": {name: _rates(cell, raw, stored) for name, cell in cells.items()},
            "sm_to_nvcomp": _advantage(cells),
        }


def _overhead(columns: list[Column], work: Work) -> Record:
    cells = {column.name: column.overhead(work) for column in columns}
    return {
        "kind": "submit",
        "chunks": 1,
        "results": {name: _facts(cell) for name, cell in cells.items() if cell},
    }


def _rates(cell: Cell, raw: int, stored: int) -> Record:
    median = cell.median
    rates = {"gb_per_s": raw, "stored_gb_per_s": stored}
    return {
        **{name: median and size / median / 1e9 for name, size in rates.items()},
        **_facts(cell),
    }


def _facts(cell: Cell) -> Record:
    return {"median": cell.median, **asdict(cell)}


def _advantage(cells: dict[str, Cell]) -> float | None:
    """Return how many times as fast sm is as nvcomp."""
    sm, nvcomp = (cells[name].median if name in cells else None for name in ("sm", "nvcomp"))
    return nvcomp / sm if sm and nvcomp else None
