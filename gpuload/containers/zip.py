"""Zip files: members are arrays of bytes.

A deflated member is one chunk. A stored one is cut into several only if it is large: the directory
has one CRC-32 for all of it, which is checked where it is one chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload.array_codecs import Compression, Pipeline
from gpuload.containers.array import ArrayAsset, ArrayIndex
from gpuload.containers.raw_chunks import PIECE
from gpuload.containers.zip_data import DeflatedGrid, MemberData, StoredGrid
from gpuload.containers.zip_directory import read_directory
from gpuload.sources.single_store import SourceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuload.containers.zip_directory import Member
    from gpuload.options import Options
    from gpuload.sources import Source

__all__ = ["DEFLATE", "ONE_CHUNK", "details", "member_asset", "piece_size", "read"]

#: Largest stored member that is one chunk, in bytes.
ONE_CHUNK = 64 << 20
DEFLATE = Pipeline((Compression("deflate"),))


def read(source: Source, options: Options, members: Sequence[Member] | None = None) -> ArrayIndex:
    """Read the directory of a zip file.

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
        An asset of bytes for each member; those that are broken have an error.

    Raises
    ------
    FormatError, UnsupportedCodecError, MemoryLimitError
        As `read_directory` does.
    """
    if members is None:
        members = read_directory(source, options.memory_limit)
    data = MemberData(source, members)
    assets = [member_asset(data, number) for number in range(len(members))]
    unchecked = [a.name for a, m in zip(assets, members, strict=True) if is_unchecked(m)]
    return ArrayIndex("zip", SourceStore(source), assets, source.size, details(members, unchecked))


def is_unchecked(member: Member) -> bool:
    """Return whether the CRC-32 of a member is of more than a chunk, so that nobody checks it."""
    return not member.error and not member.deflated and member.raw_size > ONE_CHUNK


def details(members: Sequence[Member], unchecked: list[str]) -> dict[str, Any]:
    """Return the facts about members: counts, and the names of those whose CRC is not checked."""
    deflated = sum(member.deflated for member in members)
    facts: dict[str, Any] = {"stored": len(members) - deflated, "deflated": deflated}
    return facts | ({"unchecked": unchecked} if unchecked else {})


def piece_size(size: int) -> int:
    """Return the bytes of the chunks of a stored member of so many bytes."""
    return ONE_CHUNK if size <= ONE_CHUNK else PIECE


def member_asset(data: MemberData, number: int) -> ArrayAsset:
    """Return a member as an array of bytes."""
    member = data.members[number]
    if member.error:
        return ArrayAsset(member.name, np.dtype(np.uint8), (0,), (1,), error=_told(data, number))
    piece = piece_size(member.raw_size)
    size = member.raw_size if member.deflated else min(piece, member.raw_size)
    return ArrayAsset(
        name=member.name,
        dtype=np.dtype(np.uint8),
        shape=(member.raw_size,),
        chunk_shape=(max(1, size),),
        clipped=True,
        pipeline=DEFLATE if member.deflated else Pipeline(),
        codecs=("deflate",) if member.deflated else (),
        grid=DeflatedGrid(data, number) if member.deflated else StoredGrid(data, number, piece),
    )


def _told(data: MemberData, number: int) -> str:
    member = data.members[number]
    return f"byte {member.header}: {member.error}"
