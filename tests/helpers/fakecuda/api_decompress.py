"""cuMemBatchDecompressAsync: every refusal at submission, and the queueing of the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.fakecuda.abi import HANDLE, POINTER, SIZE, U32, driver_call, put_optional
from tests.helpers.fakecuda.codes import SIZE_MAX, Code, Codec, CudaError
from tests.helpers.fakecuda.decompress import PARAMS, Chunk, decode
from tests.helpers.fakecuda.memory import device

if TYPE_CHECKING:
    from tests.helpers.fakecuda.driver import FakeDriver
    from tests.helpers.fakecuda.streams import Stream


@driver_call("cuMemBatchDecompressAsync", POINTER, SIZE, U32, POINTER, HANDLE, since=12060)
def mem_batch_decompress_async(
    cuda: FakeDriver, params: int, count: int, flags: int, error_index: int, handle: int
) -> None:
    if cuda.settings.algorithm_mask == 0:
        raise CudaError(Code.NOT_SUPPORTED, "no engine; the error index stays as it is")
    put_optional(SIZE, error_index, SIZE_MAX)
    stream = cuda.scheduler.stream(handle, cuda.current)
    if params == 0 or count == 0 or flags:
        raise CudaError(Code.INVALID_VALUE, f"params {params:#x}, count {count}, flags {flags}")
    chunks = []
    for index in range(count):
        chunk = Chunk.read(params + index * PARAMS.size)
        _check(cuda, stream, chunk, index, error_index)
        chunks.append(chunk)
    cuda.batches.append(count)
    cuda.scheduler.submit(stream, "decompress", lambda: _run(cuda, stream, chunks))


def _run(cuda: FakeDriver, stream: Stream, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        decode(cuda, stream, chunk)


def _check(cuda: FakeDriver, stream: Stream, chunk: Chunk, index: int, out: int) -> None:
    why = _refusal(cuda, stream, chunk)
    if why is not None:
        put_optional(SIZE, out, index)
        cuda.refusals.append(f"operation {index}: {why}")
        raise CudaError(Code.INVALID_VALUE, why)


def _refusal(cuda: FakeDriver, stream: Stream, chunk: Chunk) -> str | None:
    """Return why the documentation forbids a chunk, or None."""
    limit = cuda.settings.maximum_length
    if chunk.algorithm not in tuple(Codec) or not chunk.algorithm & cuda.settings.algorithm_mask:
        return f"algorithm {chunk.algorithm} with the mask {cuda.settings.algorithm_mask}"
    if any(chunk.padding):
        return "padding that is not zero"
    if chunk.source_size == 0:
        return "no source bytes"
    if chunk.source_size > limit or chunk.target_size > limit:
        return f"{chunk.source_size} to {chunk.target_size} bytes, above the maximum {limit}"
    if chunk.count_address % 4:
        return f"a count at {chunk.count_address:#x}, which is not aligned to 4"
    ranges = (
        ("source", chunk.source, chunk.source_size, False),
        ("destination", chunk.target, max(chunk.target_size, 1), True),
        ("count", chunk.count_address, 4, True),
    )
    problems = (_range_problem(cuda, stream, *one) for one in ranges)
    return next((text for text in problems if text), None)


def _range_problem(
    cuda: FakeDriver, stream: Stream, what: str, address: int, size: int, write: bool
) -> str | None:
    if address == 0:
        return f"a null {what}"
    mapping = cuda.memory.find(address)
    if mapping is None:
        return f"{what}: {cuda.memory.epitaph(address)}"
    if not mapping.allocation.capable:
        return f"{what}: {mapping.allocation} is not capable of decompression"
    if not mapping.allows(device(stream.context.ordinal), write=write):
        return f"{what}: {mapping.allocation} is not accessible from the device"
    if address + size > mapping.end:
        return f"{what}: {size} bytes at {address:#x} leave {mapping.allocation}"
    if mapping.freed:
        return f"{what}: {mapping.allocation} is being freed"
    return None
