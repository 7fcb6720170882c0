"""NPZ files: npy files in a zip file, as `numpy.savez` and `numpy.savez_compressed` write them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from gpuload.array_codecs import Compression, Pipeline, Skip
from gpuload.checksums import combine_crc32
from gpuload.containers import zip as zip_file
from gpuload.containers.array import ArrayAsset, ArrayIndex
from gpuload.containers.npy import HEADER_LIMIT, MAGIC, NpyHeader, parse_header, raw_asset
from gpuload.containers.zip_data import DeflatedGrid, MemberData
from gpuload.containers.zip_directory import read_directory
from gpuload.errors import FormatError, UnsupportedCodecError
from gpuload.sources.single_store import SourceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuload.containers.zip_directory import Member
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["read"]

_SUFFIX = ".npy"
#: Stored bytes of a member that are looked at for the header: nearly always the first are enough.
_FIRST, _MORE = 1 << 10, 64 << 10


def read(source: Source, options: Options, members: Sequence[Member] | None = None) -> ArrayIndex:
    """Read the directory of an npz file, and the header of each array.

    Parameters
    ----------
    source : Source
        The file; belongs to the index from now on.
    options : Options
        `memory_limit` bounds the directory.
    members : sequence of Member, optional
        The directory, if it has been read already.

    Returns
    -------
    ArrayIndex
        Arrays by their names without ``.npy``, other members as bytes; those that are broken, or of
        Python objects, have an error.

    Raises
    ------
    FormatError, UnsupportedCodecError, MemoryLimitError
        As `gpuload.containers.zip_directory.read_directory` does.
    """
    if members is None:
        members = read_directory(source, options.memory_limit)
    data = MemberData(source, members)
    names = _asset_names(members)
    assets = data.each(lambda number: _asset(data, number, names[number]), range(len(members)))
    unchecked = [a.name for a, m in zip(assets, members, strict=True) if zip_file.is_unchecked(m)]
    facts = zip_file.details(members, unchecked)
    return ArrayIndex("npz", SourceStore(source), assets, source.size, facts)


def _asset_names(members: Sequence[Member]) -> list[str]:
    """Return the names of the arrays: those of files, where another member has the short name."""
    taken = {member.name for member in members}
    short = [member.name.removesuffix(_SUFFIX) for member in members]
    return [
        member.name if name in taken or not name else name
        for name, member in zip(short, members, strict=True)
    ]


def _asset(data: MemberData, number: int, name: str) -> ArrayAsset:
    member = data.members[number]
    if not member.name.endswith(_SUFFIX):
        return zip_file.member_asset(data, number)
    try:
        start = data.start(number)
        header, front = _header(data, number, start)
        _check_size(member, header)
    except (FormatError, UnsupportedCodecError) as error:
        message = f"{error}".removeprefix(f"{data.source.name}: ")
        return ArrayAsset(name, np.dtype(np.uint8), (0,), (1,), error=message)
    if member.deflated:
        return _deflated(data, number, name, header)
    checksum = _without_front(member.crc, front, header.nbytes)
    piece = zip_file.piece_size(member.raw_size)
    return raw_asset(name, header, start + header.size, piece=piece, checksum=checksum)


def _header(data: MemberData, number: int, start: int) -> tuple[NpyHeader, bytes]:
    """Return the header of an array, and its bytes."""
    front = _front(data, number, start, _FIRST)
    if _is_cut(front):
        front = _front(data, number, start, _MORE)
    header = parse_header(front)
    return header, front[: header.size]


def _is_cut(front: bytes) -> bool:
    """Return whether the first bytes of an npy file lack some of its header."""
    width = 2 if front[6:7] == b"\x01" else 4
    size = 8 + width + int.from_bytes(front[8 : 8 + width], "little")
    return MAGIC.startswith(front[:6]) and len(front) < min(HEADER_LIMIT, max(size, 12))


def _front(data: MemberData, number: int, start: int, most: int) -> bytes:
    """Return the first decoded bytes of a member, from at most so many stored ones."""
    member = data.members[number]
    stored = data.source.peek_exact(start, min(most, member.stored_size))
    if not member.deflated:
        return stored
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, HEADER_LIMIT)
    except zlib.error as error:
        raise data.broken(number, f"its DEFLATE stream is damaged: {error}") from None


def _check_size(member: Member, header: NpyHeader) -> None:
    there = member.raw_size - header.size
    if there != header.nbytes:
        raise FormatError(
            f"its shape {header.shape} of {header.dtype} takes {header.nbytes} bytes, the member "
            f"has {there} behind the npy header"
        )


def _without_front(crc: int, front: bytes, rest: int) -> int:
    """Return the CRC-32 of the `rest` bytes of a member behind its front.

    That of the whole is the sum of the front's, moved by the bytes behind it, and this one.
    """
    return crc ^ combine_crc32([zlib.crc32(front), 0], [len(front), rest])


def _deflated(data: MemberData, number: int, name: str, header: NpyHeader) -> ArrayAsset:
    steps = (Compression("deflate"), Skip(header.size), *header.filters)
    return ArrayAsset(
        name=name,
        dtype=header.dtype,
        shape=header.shape,
        chunk_shape=tuple(max(1, length) for length in header.shape),
        clipped=True,
        pipeline=Pipeline(steps),
        codecs=("deflate",),
        grid=DeflatedGrid(data, number),
    )
