"""Which kernels compute the checksums of a batch, of which bytes, and how parts become whole again.

The kernels take the parameters of decoders and read them otherwise (gpuload/kernels/sums.cuh): an
operation's `dst_num_bytes` is where in its chunk it starts, and `dst_act_bytes`, unless it is 0,
points to the size of the chunk, which may end before `src_num_bytes`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload import checksums
from gpuload.batch import PARAMS_DTYPE, SUMS, largest_first
from gpuload.chunks import Checksum
from gpuload.kernels.variants import Variant
from gpuload.memory import host_view

if TYPE_CHECKING:
    import numpy.typing as npt
    from cuda.core import Buffer

    from gpuload.chunks import ChunkTable

    Integers = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint32]

__all__ = ["SumPlan", "computable", "is_large", "kernel_of", "make_plan"]

#: The kernel of each `algo`.
_VARIANTS = {
    SUMS[Checksum.CRC32]: Variant("crc32", 32),
    SUMS[Checksum.CRC32C_MASKED]: Variant("crc32c", 32),
    SUMS[Checksum.XXH32]: Variant("xxh32", 4),
    SUMS[Checksum.XXH64_LOW]: Variant("xxh64", 4),
}
_CRCS = (Checksum.CRC32, Checksum.CRC32C_MASKED)
#: A single warp reads some GB/s: chunks with more bytes than `_LARGE` are cut into `_PART` each.
_LARGE, _PART = 1 << 20, 256 << 10


def _by_kind(values: dict[Checksum, int]) -> Integers:
    """Return an array of which the indices are kinds of checksums, whatever a byte can hold."""
    found = np.zeros(256, np.int64)
    found[list(values)] = list(values.values())
    return found


_ALGORITHMS = _by_kind(SUMS)
_LARGEST = _by_kind(dict.fromkeys(Checksum, np.iinfo(np.int64).max) | dict.fromkeys(_CRCS, _LARGE))


def kernel_of(algorithm: int) -> Variant:
    """Return the kernel for an `algo` of `gpuload.batch.SUMS`."""
    return _VARIANTS[algorithm]


def is_large(kind: int, size: int) -> bool:
    """Return whether a chunk with a checksum of a kind is cut into parts."""
    return kind in _CRCS and size > _LARGE


def computable(rows: ChunkTable, *, bounded: bool) -> npt.NDArray[np.bool_]:
    """Return which rows have a checksum that the device computes.

    Parameters
    ----------
    rows : ChunkTable
        n rows.
    bounded : bool
        Whether the device knows the sizes that the file does not state.
    """
    kinds = rows["checksum_kind"]
    known = rows["exact"] | (kinds == Checksum.XXH32_STORED) | bounded
    result: npt.NDArray[np.bool_] = known & (_ALGORITHMS[kinds] != 0)
    return result


@dataclass(frozen=True)
class _Cut:
    """Rows that are cut into parts, which follow one another.

    Attributes
    ----------
    parts : ndarray of int64, shape (n,)
        How many each row has.
    starts, sizes : ndarray of int64, shape (m,)
        Where in its row each part starts, and how many bytes it has at most.
    words : ndarray of int64, shape (n,)
        Which of the words of `actual` has the size of the row, or -1.
    actual : Buffer, optional
        The decoded sizes.
    """

    parts: Integers
    starts: Integers
    sizes: Integers
    words: Integers
    actual: Buffer | None

    def joined(self, sums: Words, kinds: npt.NDArray[np.uint8]) -> Words:
        """Return the sum of each row, from those of all parts."""
        firsts = np.cumsum(self.parts) - self.parts
        whole: Words = sums[firsts]
        cut = self.parts > 1
        sizes = self._present(cut)
        for kind in np.unique(kinds[cut]).tolist():
            which = cut & (kinds == kind)
            of_kind, parts = np.repeat(which, self.parts), self.parts[which]
            first = np.cumsum(parts) - parts
            whole[which] = checksums.combine_crcs(kind, sums[of_kind], sizes[of_kind], first)
        return whole

    def _present(self, cut: npt.NDArray[np.bool_]) -> Integers:
        """Return how many bytes each part of the rows that are cut has in fact."""
        told = np.flatnonzero(cut & (self.words >= 0))
        if not told.size or self.actual is None:
            return self.sizes
        whole = np.full(self.parts.size, np.iinfo(np.int64).max)
        whole[told] = host_view(self.actual).view(np.uint32)[self.words[told]]
        rest = np.maximum(np.repeat(whole, self.parts) - self.starts, 0)
        present: Integers = np.minimum(rest, self.sizes)
        return present


@dataclass(frozen=True)
class SumPlan:
    """Operations, and how the sums of rows come of theirs.

    Attributes
    ----------
    params : ndarray of PARAMS_DTYPE, shape (m,)
        Those of a kernel follow one another, the largest first.
    """

    params: npt.NDArray[np.void]
    _order: npt.NDArray[np.intp]
    _kinds: npt.NDArray[np.uint8]
    _cut: _Cut | None

    def launches(self) -> list[tuple[Variant, int, int]]:
        """Return each kernel, with its first and last (exclusive) operation."""
        algorithms = np.ascontiguousarray(self.params["algo"])
        edges = [0, *(np.flatnonzero(np.diff(algorithms)) + 1).tolist(), algorithms.size]
        return [
            (kernel_of(int(algorithms[first])), first, last)
            for first, last in itertools.pairwise(edges)
        ]

    def sums(self, statuses: Words) -> npt.NDArray[np.uint64]:
        """Return the sum of each row in the form that files store, from the operations' words."""
        sums = np.empty_like(statuses)
        sums[self._order] = statuses
        if self._cut is not None:
            sums = self._cut.joined(sums, self._kinds)
        hidden = self._kinds == Checksum.CRC32C_MASKED
        if hidden.any():
            sums[hidden] = checksums.masked(sums[hidden])
        return sums.astype(np.uint64)


def make_plan(
    rows: ChunkTable,
    which: npt.NDArray[np.intp],
    stored: Integers,
    decoded: Integers,
    actual: Buffer | None,
) -> SumPlan:
    """Return the plan for some rows.

    Parameters
    ----------
    rows : ChunkTable
        n rows.
    which : ndarray of intp, shape (m,)
        At least one, all of them `computable`.
    stored, decoded : ndarray of int64, shape (n,)
        Addresses of the payloads and of the decoded bytes.
    actual : Buffer, optional
        n 32-bit words with the decoded sizes.
    """
    # Taking from a column on its own is faster than from the rows, which lie far apart.
    column = {name: np.ascontiguousarray(rows[name]) for name in _COLUMNS}
    if which.size < rows.size:
        column = {name: values[which] for name, values in column.items()}
        stored, decoded = stored[which], decoded[which]
    kinds = column["checksum_kind"]
    of_stored = kinds == Checksum.XXH32_STORED
    sizes = np.where(of_stored, column["stored_size"], column["raw_size"]).astype(np.int64)
    first_bytes = np.where(of_stored, stored, decoded)
    words = np.where(of_stored | column["exact"], -1, which)
    cut = _cut_large(sizes, kinds, words, actual)
    if cut is not None:
        owner = np.repeat(np.arange(which.size), cut.parts)
        sizes, first_bytes, words = cut.sizes, first_bytes[owner] + cut.starts, words[owner]
    algorithms = _ALGORITHMS[kinds if cut is None else kinds[owner]]
    order = _order(algorithms, sizes)
    params = np.zeros(sizes.size, PARAMS_DTYPE)
    params["src_num_bytes"] = sizes[order]
    params["src"] = first_bytes[order]
    params["algo"] = algorithms[order]
    if cut is not None:
        params["dst_num_bytes"] = cut.starts[order]
    if actual is not None:
        params["dst_act_bytes"] = np.where(words < 0, 0, int(actual.handle) + 4 * words)[order]
    return SumPlan(params, order, kinds, cut)


_COLUMNS = ("checksum_kind", "exact", "raw_size", "stored_size")


def _cut_large(
    sizes: Integers, kinds: npt.NDArray[np.uint8], words: Integers, actual: Buffer | None
) -> _Cut | None:
    large = sizes > _LARGEST[kinds]
    if not large.any():
        return None
    parts = np.where(large, -(-sizes // _PART), 1)
    firsts = np.cumsum(parts) - parts
    starts = (np.arange(int(parts.sum())) - np.repeat(firsts, parts)) * _PART
    rest = np.repeat(sizes, parts) - starts
    each = np.where(np.repeat(large, parts), np.minimum(rest, _PART), rest)
    return _Cut(parts, starts, each, words, actual)


def _order(algorithms: Integers, sizes: Integers) -> npt.NDArray[np.intp]:
    """Return the order of operations: by kernel, and the largest first, which ends soonest."""
    order = largest_first(sizes.astype(np.uint64))
    if (algorithms == algorithms[0]).all():
        return order
    by_kernel: npt.NDArray[np.intp] = order[np.argsort(algorithms[order], kind="stable")]
    return by_kernel
