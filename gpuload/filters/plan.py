"""Which operations of kernels undo a filter, and what they are told.

They take the parameters of decoders and read them otherwise (gpuload/kernels/unit.cuh, scale.cu and
delta.cu). Large units are cut into parts, each of which a block of threads makes, so that a few of
them keep a device as busy as many small ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuload.array_codecs import (
    BitUnshuffle,
    Delta,
    FixedScaleOffset,
    PackBits,
    Skip,
    Swap,
    Transpose,
    Unshuffle,
)
from gpuload.batch import PARAMS_DTYPE
from gpuload.engines import operations
from gpuload.kernels.variants import BLOCK, Variant

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

    from gpuload.array_codecs import Filter

    Integers = npt.NDArray[np.int64]
    Launches = list[tuple[Variant, int, int]]

__all__ = [
    "ALGORITHMS",
    "DELTA_DTYPE",
    "SCALE_DTYPE",
    "UNIT_DTYPE",
    "FilterPlan",
    "Units",
    "decoded_sizes",
    "make_plan",
    "supported",
]

#: ``FilterAlgo`` in gpuload/kernels/unit.cuh.
ALGORITHMS = {
    "unshuffle": 1024,
    "bit_unshuffle": 1025,
    "delta": 1026,
    "scale": 1027,
    "packbits": 1028,
    "swap": 1029,
    "boxes": 1030,
}
_HEAD = [("src", "<i8"), ("dst", "<i8"), ("algo", "<i4")]
#: `PARAMS_DTYPE` of gpuload.batch, as each kernel reads it.
UNIT_DTYPE = np.dtype(
    [
        ("size", "<u8"),
        ("room", "<u8"),
        ("start", "<u8"),
        *_HEAD,
        ("element", "<u4"),
        ("total", "<u8"),
        ("unused", "<u8"),
    ]
)
SCALE_DTYPE = np.dtype(
    [
        ("size", "<u8"),
        ("room", "<u8"),
        ("unused", "<u8"),
        *_HEAD,
        ("kinds", "<u4"),
        ("scale", "<f8"),
        ("offset", "<f8"),
    ]
)
DELTA_DTYPE = np.dtype(
    [
        ("size", "<u8"),
        ("room", "<u8"),
        ("sums", "<i8"),
        *_HEAD,
        ("kinds", "<u4"),
        ("stage", "<u4"),
        ("parts", "<u4"),
        ("unused", "<u8"),
    ]
)
#: Decoded bytes of a part, at least, and parts of all units together, about and at most: their
#: parameters are to be few beside what they do.
_PART, _PARTS = 64 << 10, 16_384
#: Elements that parts are multiples of: kernels take as many at once.
_TOGETHER = 32
_SUM, _ADD_UP, _RUN = range(3)
_SIGNED, _FLOAT = 16, 32


def supported(step: Filter) -> str:
    """Return why the host has to undo a filter; empty if a device can.

    Of `Skip` and `Transpose` nothing is to be undone: they are other addresses and strides of the
    boxes that are copied in the end.
    """
    if isinstance(step, Delta):
        return _delta_refusal(step)
    if isinstance(step, FixedScaleOffset):
        return _scale_refusal(step)
    known = (BitUnshuffle, PackBits, Skip, Swap, Transpose, Unshuffle)
    return "" if isinstance(step, known) else f"there is no kernel for {type(step).__name__}"


def _delta_refusal(step: Delta) -> str:
    for dtype in (step.dtype, step.astype):
        if dtype.kind not in "iu":
            return f"running sums of {dtype} depend on their order"
        if not dtype.isnative:
            return f"delta of {dtype.str}, which is not in the device's byte order"
    return ""


def _scale_refusal(step: FixedScaleOffset) -> str:
    for dtype, kinds in ((step.dtype, "f"), (step.astype, "iuf")):
        if dtype.kind not in kinds or (dtype.kind == "f" and dtype.itemsize not in (4, 8)):
            return f"fixed scale-offset from {step.astype} to {step.dtype}"
        if not dtype.isnative:
            return f"fixed scale-offset of {dtype.str}, which is not in the device's byte order"
    return ""


def decoded_sizes(step: Filter, sizes: Integers) -> Integers:
    """Return how many bytes come out of a filter, for `PackBits` the most that may."""
    if isinstance(step, Delta | FixedScaleOffset):
        return sizes // step.astype.itemsize * step.dtype.itemsize
    if isinstance(step, Skip):
        return np.maximum(sizes - step.size, 0)
    return np.maximum(sizes - 1, 0) * 8 if isinstance(step, PackBits) else sizes


@dataclass(frozen=True)
class Units:
    """n buffers that a filter is undone in.

    Attributes
    ----------
    src, dst : ndarray of int64, shape (n,)
        Addresses of what goes in, and of where to.
    sizes, decoded : ndarray of int64, shape (n,)
        Bytes that go in and that come out.
    """

    src: Integers
    dst: Integers
    sizes: Integers
    decoded: Integers

    def __getitem__(self, which: slice | npt.NDArray[np.bool_]) -> Units:
        columns = (self.src, self.dst, self.sizes, self.decoded)
        return Units(*(column[which] for column in columns))


@dataclass(frozen=True)
class FilterPlan:
    """Operations that undo a filter.

    Attributes
    ----------
    owner : ndarray of intp, shape (m,)
        Which unit each is of.
    launches : list of tuple of (Variant, int, int)
        Kernels, one after the other, with their first and last (exclusive) operation.
    extra : int
        Bytes of memory, behind the operations, that the device needs.
    """

    owner: npt.NDArray[np.intp]
    launches: Launches
    _params: npt.NDArray[np.void]
    extra: int = 0

    @property
    def count(self) -> int:
        """How many operations there are."""
        return self._params.size

    @property
    def extra_start(self) -> int:
        """Where in a block of memory those bytes start."""
        return -(-operations.size_of(self.count) // 16) * 16

    @property
    def size(self) -> int:
        """Bytes of memory for all of it."""
        return self.extra_start + self.extra

    def params(self, block: int) -> npt.NDArray[np.void]:
        """Return the parameters; `block` is the address of the memory."""
        if "sums" in (self._params.dtype.names or ()):
            # What is there counts sums from 1 on; 0 is none.
            sums = self._params["sums"]
            self._params["sums"] = np.where(sums, block + self.extra_start + 8 * (sums - 1), 0)
        return self._params.view(PARAMS_DTYPE)

    def damaged(self, statuses: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.bool_]:
        """Return which of `count` units a kernel found something wrong with."""
        found = np.zeros(count, np.bool_)
        if self.launches[0][0].codec == "packbits":
            found[self.owner[statuses != 0]] = True
        return found


def make_plan(step: Filter, units: Units) -> FilterPlan:
    """Return the plan for some units, at least one, of which none is without bytes.

    Raises
    ------
    ValueError
        If a device cannot do it.
    """
    reason = supported(step)
    if reason or isinstance(step, Skip | Transpose):
        raise ValueError(reason or f"{type(step).__name__} is nothing that is undone")
    if isinstance(step, Delta):
        return _delta(step, units)
    if isinstance(step, FixedScaleOffset):
        return _scale(step, units)
    return _plain(step, units)


class _Cut:
    """Parts of units, of whole elements that come out."""

    def __init__(self, decoded: Integers, element: int) -> None:
        wanted = max(_PART, int(decoded.sum()) // _PARTS)
        self.part = max(1, wanted // (_TOGETHER * element)) * _TOGETHER * element
        self.counts = np.maximum(1, -(-decoded // self.part))
        self.owner = np.repeat(np.arange(decoded.size), self.counts)
        self.firsts = np.cumsum(self.counts) - self.counts
        self.starts: Integers = (np.arange(self.owner.size) - self.firsts[self.owner]) * self.part
        self.rooms = np.minimum(decoded[self.owner] - self.starts, self.part)


_NAMES = {
    Unshuffle: "unshuffle",
    BitUnshuffle: "bit_unshuffle",
    PackBits: "packbits",
    Swap: "swap",
}


def _plain(step: Filter, units: Units) -> FilterPlan:
    element = 8 if isinstance(step, PackBits) else int(getattr(step, "element_size", 1))
    cut = _Cut(units.decoded, element)
    params, name = np.zeros(cut.owner.size, UNIT_DTYPE), _NAMES[type(step)]
    params["size"], params["src"] = units.sizes[cut.owner], units.src[cut.owner]
    params["room"], params["start"] = cut.rooms, cut.starts
    params["dst"] = units.dst[cut.owner] + cut.starts
    params["algo"], params["element"] = ALGORITHMS[name], element
    params["total"] = units.decoded[cut.owner]
    return FilterPlan(cut.owner, _single(name, cut.owner.size), params)


def _scale(step: FixedScaleOffset, units: Units) -> FilterPlan:
    cut = _Cut(units.decoded, step.dtype.itemsize)
    params = np.zeros(cut.owner.size, SCALE_DTYPE)
    _place(params, cut, units, step)
    params["algo"], params["kinds"] = ALGORITHMS["scale"], _kinds(step)
    params["scale"], params["offset"] = step.scale, step.offset
    return FilterPlan(cut.owner, _single("scale", cut.owner.size), params)


def _delta(step: Delta, units: Units) -> FilterPlan:
    """Sum up the parts of units that have several, then what stands before each, then run."""
    cut = _Cut(units.decoded, step.dtype.itemsize)
    params = np.zeros(cut.owner.size, DELTA_DTYPE)
    _place(params, cut, units, step)
    params["algo"], params["kinds"] = ALGORITHMS["delta"], _kinds(step)
    params["stage"] = _RUN
    several = cut.counts[cut.owner] > 1
    if not several.any():
        return FilterPlan(cut.owner, _single("delta", cut.owner.size), params)
    params["sums"][several] = 1 + np.arange(np.count_nonzero(several))
    first, units_cut = params[several], np.flatnonzero(cut.counts > 1)
    first["stage"] = _SUM
    second = np.zeros(units_cut.size, DELTA_DTYPE)
    second["algo"], second["stage"] = ALGORITHMS["delta"], _ADD_UP
    second["sums"] = params["sums"][cut.firsts[units_cut]]
    second["parts"] = cut.counts[units_cut]
    owner = np.concatenate([cut.owner[several], units_cut, cut.owner])
    ends = np.cumsum([0, first.size, second.size, params.size]).tolist()
    launches = [(_variant("delta"), ends[i], ends[i + 1]) for i in range(3)]
    return FilterPlan(owner, launches, np.concatenate([first, second, params]), 8 * first.size)


def _place(
    params: npt.NDArray[np.void], cut: _Cut, units: Units, step: Delta | FixedScaleOffset
) -> None:
    before = cut.starts // step.dtype.itemsize * step.astype.itemsize
    params["size"] = cut.rooms // step.dtype.itemsize * step.astype.itemsize
    params["room"], params["src"] = cut.rooms, units.src[cut.owner] + before
    params["dst"] = units.dst[cut.owner] + cut.starts


def _kinds(step: Delta | FixedScaleOffset) -> int:
    return _kind(step.astype) | step.dtype.itemsize << 8


def _kind(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize | {"i": _SIGNED, "u": 0, "f": _FLOAT}[dtype.kind]


def _variant(name: str) -> Variant:
    return Variant(name, BLOCK)


def _single(name: str, count: int) -> Launches:
    return [(_variant(name), 0, count)]
