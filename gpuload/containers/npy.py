"""NPY files: one array behind a short header (NumPy Enhancement Proposal 1, `numpy.lib.format`).

Headers are parsed by NumPy. Arrays of Python objects are pickles, which are never loaded.
"""

from __future__ import annotations

import io
import threading
import tokenize
import warnings
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from numpy.lib import format as npy_format

from gpuload.array_codecs import Filter, Pipeline, Swap, Transpose
from gpuload.containers.array import ArrayAsset, ArrayIndex
from gpuload.containers.raw_chunks import PIECE, RawGrid, chunk_shape, shape_error
from gpuload.errors import FormatError, UnsupportedCodecError
from gpuload.sources.single_store import SourceStore

if TYPE_CHECKING:
    import numpy as np

    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["HEADER_LIMIT", "MAGIC", "NpyHeader", "parse_header", "raw_asset", "read"]

MAGIC = b"\x93NUMPY"
#: Most characters of a header: what `numpy.load` takes from files that nobody vouches for.
_TEXT_LIMIT = 10_000
#: Most bytes from the start of a file to its elements.
HEADER_LIMIT = 12 + 4 * _TEXT_LIMIT
_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
    EOFError,
    tokenize.TokenError,
)
#: NumPy warns of headers that Python 2 wrote, which is of no interest to who loads them; and
#: filters of warnings are not thread-safe.
_quiet = threading.Lock()


@dataclass(frozen=True)
class NpyHeader:
    """The header of an npy file.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the elements, in the byte order of the host.
    swap : int
        Bytes of the units that are stored in the other byte order; 0 for none.
    fortran : bool
        Whether the first axis varies fastest.
    shape : tuple of int
        Elements along each axis.
    size : int
        Bytes of the header: the elements are behind it.
    """

    dtype: np.dtype[Any]
    swap: int
    fortran: bool
    shape: tuple[int, ...]
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters that make elements of an array of what is stored."""
        swap = (Swap(self.swap),) if self.swap else ()
        if not self.fortran:
            return swap
        order = tuple(reversed(range(len(self.shape))))
        return *swap, Transpose(order, self.dtype.itemsize)


def parse_header(data: bytes) -> NpyHeader:
    """Return what the first bytes of an npy file say.

    Parameters
    ----------
    data : bytes
        The header at least, or the first `HEADER_LIMIT` bytes.

    Raises
    ------
    FormatError
        If it is none, or cut short, or of an array that cannot be.
    UnsupportedCodecError
        If the array is of Python objects, or of elements that gpuload does not know.
    """
    if not data.startswith(MAGIC):
        raise FormatError(f"no npy header (93 4e 55 4d 50 59) but {data[:6].hex(' ') or 'nothing'}")
    text, size = _text(data)
    try:
        stored = _parse(text)
    except UnsupportedCodecError:
        raise
    except _DAMAGE as error:
        message = f"{error}".splitlines()[0][:200] if f"{error}" else "it nests too deeply"
        raise FormatError(f"the npy header is broken: {message}") from None
    return _checked(stored, size)


def _text(data: bytes) -> tuple[bytes, int]:
    """Return the text of a header, as ASCII, and where it ends."""
    version, width = tuple(data[6:8]), 2 if data[6:7] == b"\x01" else 4
    if version not in ((1, 0), (2, 0), (3, 0)):
        shown = ".".join(map(str, version))
        raise UnsupportedCodecError(f"npy format version {shown}; gpuload reads 1.0, 2.0 and 3.0")
    length, start = int.from_bytes(data[8 : 8 + width], "little"), 8 + width
    if length > HEADER_LIMIT - start:
        raise FormatError(f"an npy header of {length} bytes; {HEADER_LIMIT - start} are the limit")
    if len(data) < start + length:
        raise FormatError("the npy header is cut short")
    try:
        text = data[start : start + length].decode("utf-8" if version == (3, 0) else "latin-1")
    except UnicodeDecodeError:
        raise FormatError("the npy header is no UTF-8, which version 3.0 asks for") from None
    return text.encode("ascii", "backslashreplace"), start + length


def _parse(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    # Names of fields in other alphabets are escaped, and one function of NumPy reads all versions.
    stream = io.BytesIO(len(text).to_bytes(4, "little") + text)
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return npy_format.read_array_header_2_0(stream, max_header_size=_TEXT_LIMIT)


def _checked(stored: tuple[tuple[int, ...], bool, np.dtype[Any]], size: int) -> NpyHeader:
    shape, fortran, dtype = stored
    if dtype.hasobject:
        raise UnsupportedCodecError(
            f"elements of type {dtype} are Python objects, which need pickle; gpuload never loads "
            "pickles, since they can run any code"
        )
    if dtype.subdtype is not None or not dtype.itemsize:
        raise UnsupportedCodecError(f"elements of type {dtype}, which are no elements of an array")
    if error := shape_error(shape, dtype.itemsize):
        raise FormatError(f"the npy header is broken: {error}")
    native = dtype.newbyteorder("=")
    fortran = fortran and len(shape) > 1
    return NpyHeader(native, _swapped(dtype), fortran, tuple(map(int, shape)), size)


def _swapped(dtype: np.dtype[Any]) -> int:
    """Return the bytes of the units of a type that are in the other byte order."""
    if dtype.isnative:
        return 0
    if dtype.kind == "V":
        raise UnsupportedCodecError(f"a structured type in the other byte order: {dtype}")
    units = {"c": 2, "U": dtype.itemsize // 4}
    return dtype.itemsize // units.get(dtype.kind, 1)


def raw_asset(
    name: str, header: NpyHeader, offset: int, *, piece: int = PIECE, checksum: int = -1
) -> ArrayAsset:
    """Return an array whose elements are in a file as they are.

    Parameters
    ----------
    name : str
        What to call it.
    header : NpyHeader
        What it is like.
    offset : int
        Where its elements start.
    piece : int
        Bytes of a chunk.
    checksum : int
        CRC-32 of its elements; -1 for none.
    """
    shape, itemsize, fortran = header.shape, header.dtype.itemsize, header.fortran
    stored = shape[::-1] if fortran else shape
    chunks = chunk_shape(stored, itemsize, piece, clipped=not fortran)
    chunks = chunks[::-1] if fortran else chunks
    return ArrayAsset(
        name=name,
        dtype=header.dtype,
        shape=shape,
        chunk_shape=chunks,
        clipped=not fortran,
        pipeline=Pipeline(header.filters),
        grid=RawGrid(offset, shape, chunks, itemsize, checksum=checksum, fortran=fortran),
    )


def read(source: Source, options: Options) -> ArrayIndex:
    """Read the header of an npy file.

    Parameters
    ----------
    source : Source
        The file; belongs to the index from now on.
    options : Options
        `strict` makes bytes behind the array an error.

    Raises
    ------
    FormatError
        If the header is broken, or the file too short for the array.
    UnsupportedCodecError
        If the elements are Python objects, or of a type that gpuload does not know.
    """
    try:
        header = parse_header(source.peek(0, HEADER_LIMIT))
    except (FormatError, UnsupportedCodecError) as error:
        raise type(error)(f"{error}", source=source.name, offset=0) from None
    end = header.size + header.nbytes
    if end > source.size:
        raise source.broken(
            source.size, f"the file ends here; the array of {header.nbytes} bytes ends at {end}"
        )
    index = ArrayIndex("npy", SourceStore(source), [raw_asset("", header, header.size)], end)
    if end < source.size:
        message = f"{source.size - end} bytes behind the array"
        if options.strict:
            raise source.broken(end, message)
        index.warnings.append(f"{source.name}: byte {end}: {message}; ignored")
    return index
