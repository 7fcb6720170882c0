"""cuMemBatchDecompressAsync: every refusal at submission, and the queueing of the work."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import HANDLE, POINTER, SIZE, U32, driver_call, put_optional
from tests.helpers.fakecuda.allocations import device
from tests.helpers.fakecuda.codes import DECOMPRESS_SINCE, SIZE_MAX, Code, Codec, CudaError
from tests.helpers.fakecuda.copies import Range
from tests.helpers.fakecuda.decompress import PARAMS, Chunk, decode

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream


@driver_call("cuMemBatchDecompressAsync", POINTER, SIZE, U32, POINTER, HANDLE, since=12060)
def mem_batch_decompress_async(
    cuda: FakeDriver, params: int, count: int, flags: int, error_index: int, handle: int
) -> None:
    if cuda.settings.driver_version < DECOMPRESS_SINCE:
        cuda.recorder.violation("cuMemBatchDecompressAsync called on a driver that lacks it")
    if cuda.settings.algorithm_mask == 0:
        raise CudaError(Code.NOT_SUPPORTED, "no engine; the error index stays as it is")
    index = SIZE_MAX
    try:
        stream = cuda.scheduler.stream(handle, cuda.current)
        if params == 0 or count == 0 or flags:
            raise CudaError(Code.INVALID_VALUE, f"params {params:#x}, {count}, flags {flags}")
        chunks = [Chunk.read(params + at * PARAMS.size) for at in range(count)]
        for index, chunk in enumerate(chunks):  # noqa: B007 - the index of the chunk that raises
            _check(cuda, stream, chunk)
    except CudaError as refusal:
        put_optional(SIZE, error_index, index)
        cuda.refusals.append(f"operation {index}: {refusal}")
        raise
    _note_shared_targets(cuda, chunks)
    cuda.batches.append(count)
    cuda.scheduler.submit(stream, "decompress", lambda: _run(cuda, stream, chunks))


def _run(cuda: FakeDriver, stream: Stream, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        decode(cuda, stream, chunk)


def _note_shared_targets(cuda: FakeDriver, chunks: list[Chunk]) -> None:
    """Operations of a batch run in any order: no two may write the same bytes."""
    spans = [(c.target, c.target + c.target_size, i) for i, c in enumerate(chunks)]
    spans += [(c.count_address, c.count_address + 4, i) for i, c in enumerate(chunks)]
    spans.sort()
    for (_, end, one), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            cuda.recorder.violation(f"operations {one} and {other} of a batch write the same bytes")


def _check(cuda: FakeDriver, stream: Stream, chunk: Chunk) -> None:
    """Refuse a chunk that the documentation forbids."""
    limit = cuda.settings.maximum_length
    if chunk.algorithm not in tuple(Codec) or not chunk.algorithm & cuda.settings.algorithm_mask:
        _refuse(f"algorithm {chunk.algorithm} with the mask {cuda.settings.algorithm_mask}")
    if any(chunk.padding):
        _refuse("padding that is not zero")
    if chunk.source_size == 0:
        _refuse("no source bytes")
    if chunk.source_size > limit or chunk.target_size > limit:
        _refuse(f"{chunk.source_size} to {chunk.target_size} bytes, above the maximum {limit}")
    if chunk.count_address % 4:
        _refuse(f"a count at {chunk.count_address:#x}, which is not aligned to 4")
    _check_range(cuda, stream, "source", Range(chunk.source, chunk.source_size, write=False))
    target_size = max(chunk.target_size, 1)
    _check_range(cuda, stream, "destination", Range(chunk.target, target_size, write=True))
    _check_range(cuda, stream, "count", Range(chunk.count_address, 4, write=True))


def _check_range(cuda: FakeDriver, stream: Stream, what: str, wanted: Range) -> None:
    address = wanted.address
    if address == 0:
        _refuse(f"a null {what}")
    mapping = cuda.memory.find(address)
    if mapping is None:
        return _refuse(f"{what}: {cuda.memory.epitaph(address)}")
    if not mapping.allocation.capable:
        _refuse(f"{what}: {mapping.allocation} is not capable of decompression")
    if not mapping.allows(device(stream.context.ordinal), write=wanted.write):
        _refuse(f"{what}: {mapping.allocation} is not accessible from the device")
    if address + wanted.size > mapping.end:
        _refuse(f"{what}: {wanted.size} bytes at {address:#x} leave {mapping.allocation}")
    if mapping.freed:
        _refuse(f"{what}: {mapping.allocation} is being freed")
    return None


def _refuse(why: str) -> None:
    raise CudaError(Code.INVALID_VALUE, why)
