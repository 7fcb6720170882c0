"""Zip files as stores: members by their names.

Members that are deflated are decoded whole, and the last of them are kept.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from gpuload.containers.zip_data import MemberData
from gpuload.containers.zip_directory import read_directory
from gpuload.errors import FormatError, MemoryLimitError
from gpuload.options import Options
from gpuload.sources.listing import ListedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gpuload.containers.zip_directory import Member
    from gpuload.sources import Source

__all__ = ["ZipStore"]

#: What the directory says of names that are there more than once. Who changes a member of a Zarr
#: store in a zip file appends it again, and the last one counts.
_AGAIN = re.compile(r"\d+ members have this name")
#: Folders in folders that are listed.
_DEEPEST = 64


class ZipStore(ListedStore):
    """The members of a zip file.

    Parameters
    ----------
    source : Source
        The file; it is closed with the store.
    options : Options, optional
        `memory_limit` bounds the directory, a member that is deflated, and those that are kept.

    Raises
    ------
    FormatError, UnsupportedCodecError, MemoryLimitError
        As `gpuload.containers.zip_directory.read_directory` does.
    """

    def __init__(self, source: Source, options: Options | None = None) -> None:
        self._limit = (options or Options()).memory_limit
        members = [_last(member) for member in read_directory(source, self._limit)]
        self._data = MemberData(source, members)
        self._numbers = {member.name: number for number, member in enumerate(members)}
        self._source = source
        self.name, self.remote = source.name, source.remote
        self._lock = threading.Lock()
        self._inflated: OrderedDict[int, memoryview] = OrderedDict()
        self._folders: dict[str, set[str]] | None = None

    def sizes(self, keys: Sequence[str]) -> npt.NDArray[np.int64]:
        """See `Store.sizes`."""
        return np.fromiter((self._size(key) for key in keys), np.int64, len(keys))

    def _size(self, key: str) -> int:
        number = self._numbers.get(key)
        return -1 if number is None else self._data.members[number].raw_size

    def readinto(self, key: str, offset: int, view: memoryview) -> None:
        """See `Store.readinto`.

        Raises
        ------
        MemoryLimitError
            If a member is deflated, and larger than `memory_limit`.
        """
        number = self._numbers.get(key)
        if number is None:
            raise FormatError("the member is not there", source=self.location(key), offset=offset)
        member = self._data.members[number]
        if offset + len(view) > member.raw_size:
            message = f"the member ends here, bytes up to {offset + len(view)} were expected"
            raise FormatError(message, source=self.location(key), offset=member.raw_size)
        if member.deflated:
            view[:] = self._whole(number)[offset : offset + len(view)]
        else:
            self._source.read_exact(self._data.start(number) + offset, view)

    def _whole(self, number: int) -> memoryview:
        with self._lock:
            data = self._inflated.get(number)
            if data is not None:
                self._inflated.move_to_end(number)
                return data
        data = memoryview(self._inflate(number))
        with self._lock:
            self._inflated[number] = data
            self._forget()
        return data

    def _forget(self) -> None:
        held = sum(len(data) for data in self._inflated.values())
        while held > self._limit // 4 and len(self._inflated) > 1:
            held -= len(self._inflated.popitem(last=False)[1])

    def _inflate(self, number: int) -> bytes:
        member, start = self._data.members[number], self._data.start(number)
        need = member.raw_size + member.stored_size
        if need > self._limit:
            raise MemoryLimitError(
                f"{self.location(member.name)}: a deflated member that takes {need} bytes to "
                f"decode, memory_limit is {self._limit}; raise it (--memory-limit)"
            )
        stored = self._source.peek_exact(start, member.stored_size)
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more shows a member that is larger than the directory says.
            data = decoder.decompress(stored, member.raw_size + 1)
        except zlib.error as error:
            raise self._data.broken(number, f"its DEFLATE stream is damaged: {error}") from None
        if len(data) != member.raw_size or not decoder.eof:
            raise self._data.broken(number, f"it does not decode to {member.raw_size} bytes")
        if zlib.crc32(data) != member.crc:
            raise self._data.broken(number, "its bytes do not have the CRC-32 of the directory")
        return data

    def folders(self, prefix: str) -> list[str]:
        """See `ListedStore.folders`."""
        if self._folders is None:
            self._folders = _folders(list(self._numbers))
        return sorted(self._folders.get(prefix, ()))

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            self._inflated.clear()
        self._source.close()


def _last(member: Member) -> Member:
    return member._replace(error="") if _AGAIN.fullmatch(member.error) else member


def _folders(names: Sequence[str]) -> dict[str, set[str]]:
    """Return the names of the folders in each folder."""
    found: dict[str, set[str]] = {}
    for name in (name for name in names if name.count("/") < _DEEPEST):
        folder, _, last = name.rpartition("/")
        while folder and last:
            parent, _, last = folder.rpartition("/")
            children = found.setdefault(parent, set())
            if last in children:
                break
            children.add(last)
            folder = parent
    return found
