"""What ``gpuload bench FILE...`` compares loads with: reading the same bytes uncompressed.

A plain copy to host memory, one to the device through pinned memory, and KvikIO. They read a
temporary file that has just been written, so that it is in the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import driver
from gpuload.arrays import Array
from gpuload.errors import DriverError
from gpuload.host_memory import allocate
from gpuload.options import available_cpus
from gpuload.outputs import write_all
from gpuload.sources import LocalFile

from .bench_clock import Runs, digest
from .bench_loads import complete
from .messages import FAILURES, describe, human_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gpuload.device_array import DeviceArray

    from .bench_loads import Plan

    #: Gives a function that reads everything once.
    Reader = AbstractContextManager[Callable[[], Array]]

Record = dict[str, Any]

__all__ = ["RawFile", "measure", "raw_file"]

#: Bytes that one thread reads at a time.
_PIECE = 8 << 20
#: Pieces of pinned memory.
_SLOTS = 16
#: What a full disk answers.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class RawFile:
    """The decompressed bytes in a file, or why there is no such file."""

    path: str
    size: int
    digest: str
    reason: str = ""


@contextlib.contextmanager
def raw_file(content: Array, checksum: str, limit: int) -> Iterator[RawFile]:
    """Write decompressed bytes to a temporary file, where there is room for it.

    Parameters
    ----------
    content : Array
        The bytes.
    checksum : str
        Their digest.
    limit : int
        Most bytes to write.
    """
    size, folder = content.nbytes, tempfile.gettempdir()
    reason = _too_large(size, limit, folder)
    with tempfile.NamedTemporaryFile(prefix="gpuload-bench-", dir=folder, buffering=0) as file:
        if not reason:
            try:
                write_all(file.write, content.to_host())
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                reason = f"{folder} is full"
        yield RawFile(file.name, size, checksum, reason)


def _too_large(size: int, limit: int, folder: str) -> str:
    needed = f"the {human_size(size)} of the decompressed copy"
    if size > limit:
        return f"{needed} are more than --raw-limit"
    if size > shutil.disk_usage(folder).free:
        return f"there is no room for {needed} in {folder}; TMPDIR names another folder"
    return ""


def measure(raw: RawFile, plan: Plan) -> Iterator[Record]:
    """Yield a record for each reference."""
    threads = plan.options.get("threads") or available_cpus()
    yield _measure("raw", None, raw, _to_host(raw, threads), plan)
    if plan.device_id is not None:
        to_device = {"raw": _pinned, "kvikio": _kvikio}
        for name, reader in to_device.items():
            yield _measure(name, plan.device_id, raw, reader(raw, threads, plan.device_id), plan)


def _measure(name: str, device_id: int | None, raw: RawFile, reader: Reader, plan: Plan) -> Record:
    record: Record = {
        "kind": "reference",
        "name": name,
        "way": None,
        "to": "cpu" if device_id is None else f"cuda:{device_id}",
        "left_out": raw.reason or (_kvikio_missing() if name == "kvikio" else ""),
        "error": "",
    }
    if record["left_out"]:
        return record
    runs = Runs()
    try:
        with reader as read:
            if digest(read()) != raw.digest:
                return record | {"error": "the bytes that were read are not those of the file"}
            for _ in range(plan.repeats):
                with runs.measure():
                    array = read()
                del array
    except FAILURES as error:
        return record | {"error": "\n".join(describe(error))}
    return record | {"raw_size": raw.size, **runs.record(raw.size)}


@contextlib.contextmanager
def _to_host(raw: RawFile, threads: int) -> Iterator[Callable[[], Array]]:
    """Read with ``preadv`` on several threads into new memory."""
    with LocalFile(raw.path) as source, ThreadPoolExecutor(threads) as pool:

        def read() -> Array:
            memory = allocate(raw.size, raw.path)

            def piece(at: int) -> None:
                source.read_exact(at, memoryview(memory[at : at + _PIECE]))

            _all(pool, piece, raw.size)
            return Array(memory)

        yield read


def _all(pool: ThreadPoolExecutor, piece: Callable[[int], None], size: int) -> None:
    for _ in pool.map(piece, range(0, size, _PIECE)):
        pass


@contextlib.contextmanager
def _pinned(raw: RawFile, threads: int, device_id: int) -> Iterator[Callable[[], Array]]:
    """Read into pinned memory, which is allocated once, and copy from there to the device."""
    from gpuload.memory import StagingRing, copy, staging_memory

    with ExitStack() as undo:
        undo.enter_context(driver.on_device(device_id))
        source = undo.enter_context(LocalFile(raw.path))
        memory = staging_memory(device_id, undo)
        ring = undo.enter_context(StagingRing(memory, _SLOTS, _PIECE, device_id=device_id))
        pool = undo.enter_context(ThreadPoolExecutor(threads))
        stream = driver.device(device_id).default_stream

        def read() -> Array:
            target = _allocate(raw.size, device_id)
            address: int = target.__cuda_array_interface__["data"][0]

            def piece(at: int) -> None:
                size = min(_PIECE, raw.size - at)
                with driver.on_device(device_id), ring.acquire() as slot:
                    source.read_exact(at, memoryview(slot.view[:size]))
                    copy(address + at, slot.address, size, stream)
                    slot.release(stream)

            _all(pool, piece, raw.size)
            complete(device_id)
            return target

        yield read


def _allocate(size: int, device_id: int) -> DeviceArray:
    from gpuload import device_array

    stream = driver.device(device_id).default_stream
    owner = device_array.allocate(size, device_id, stream)
    return device_array.DeviceArray(
        int(owner.handle),
        (size,),
        np.dtype(np.uint8),
        device_id=device_id,
        stream=stream,
        owner=owner,
    )


@contextlib.contextmanager
def _kvikio(raw: RawFile, threads: int, device_id: int) -> Iterator[Callable[[], Array]]:
    """Read with KvikIO, on as many threads."""
    kvikio = importlib.import_module("kvikio")
    defaults = importlib.import_module("kvikio.defaults")
    with driver.on_device(device_id), defaults.set("num_threads", threads):

        def read() -> Array:
            target = _allocate(raw.size, device_id)
            complete(device_id)  # KvikIO's streams do not wait for the allocation
            try:
                with kvikio.CuFile(raw.path) as file:
                    file.pread(target).get()
            except RuntimeError as error:
                raise DriverError(str(error)) from error
            return target

        yield read


def _kvikio_missing() -> str:
    """Return why KvikIO can't be used; empty if it can."""
    if importlib.util.find_spec("kvikio") is None:
        return "KvikIO is not installed"
    try:
        importlib.import_module("kvikio")
    except (ImportError, OSError) as error:
        return f"KvikIO does not load: {error}"
    return ""
