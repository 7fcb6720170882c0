"""Where the data of a zip file's members is, as their local headers say.

The length of a local header is known only from itself: its extra field may differ from that in the
directory (APPNOTE.TXT, section 4.3.7). So headers are looked at when their members are wanted, and
once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gpuload.containers.array import Grid, Places
from gpuload.containers.raw_chunks import RawGrid, chunk_shape
from gpuload.containers.zip_directory import LOCAL_HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from gpuload.containers.zip_directory import Member
    from gpuload.errors import FormatError
    from gpuload.sources import Source

    Integers = npt.NDArray[np.int64]

__all__ = ["DeflatedGrid", "MemberData", "StoredGrid"]

_T = TypeVar("_T")

_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1
#: Bytes of a name that messages show.
_LONG_NAME = 200
#: Headers that are requested side by side from a source that waits for a network.
_IN_FLIGHT = 16
_UNKNOWN = -1


class MemberData:
    """The data of the members of one zip file; any thread may use it.

    Parameters
    ----------
    source : Source
        The file.
    members : sequence of Member
        Its directory.
    """

    def __init__(self, source: Source, members: Sequence[Member]) -> None:
        self.source, self.members = source, members
        self._offsets = np.full(len(members), _UNKNOWN, np.int64)

    def locate(self, numbers: Integers) -> Integers:
        """Return where the data of members starts.

        Parameters
        ----------
        numbers : ndarray of int64, shape (n,)
            Places of the members in the directory.

        Returns
        -------
        ndarray of int64, shape (n,)
            Offsets in the file; all of the data is before the next member.

        Raises
        ------
        FormatError
            If a member is broken, the first of them.
        OSError, GpuloadError
            As reading does.
        """
        unknown = np.unique(numbers[self._offsets[numbers] == _UNKNOWN])
        ordered = sorted(unknown.tolist(), key=lambda number: self.members[number].header)
        for number, offset in zip(ordered, self.each(self._look, ordered), strict=True):
            self._offsets[number] = offset
        return self._offsets[numbers]

    def start(self, number: int) -> int:
        """Return where the data of one member starts; see `locate`."""
        if self._offsets[number] == _UNKNOWN:
            self._offsets[number] = self._look(number)
        return int(self._offsets[number])

    def each(self, look: Callable[[int], _T], numbers: Sequence[int]) -> list[_T]:
        """Return what `look` says of members, side by side where reading waits for a network."""
        if not self.source.remote or len(numbers) < 2:
            return [look(number) for number in numbers]
        with ThreadPoolExecutor(_IN_FLIGHT) as threads:
            return list(threads.map(look, numbers))

    def _look(self, number: int) -> int:
        member = self.members[number]
        if member.error:
            raise self.broken(number, member.error)
        size = LOCAL_HEADER_SIZE + len(member.name_bytes)
        header = self.source.peek_exact(member.header, size)
        if not header.startswith(_MAGIC):
            raise self.broken(number, f"no local header (50 4b 03 04) but {header[:4].hex(' ')}")
        self._check_flags(number, header)
        self._check_name(number, header)
        start = member.header + size + _number(header[28:30])
        if start + member.stored_size > member.limit:
            raise self.broken(
                number,
                f"its {member.stored_size} bytes of data at byte {start} reach beyond byte "
                f"{member.limit}, where the next member or the directory starts",
            )
        return start

    def _check_flags(self, number: int, header: bytes) -> None:
        if header[6] & _ENCRYPTED:
            raise self.broken(number, "its local header says that it is encrypted")
        method, expected = _number(header[8:10]), 8 if self.members[number].deflated else 0
        if method != expected:
            raise self._differs(number, f"compression method {method}", f"{expected}")

    def _check_name(self, number: int, header: bytes) -> None:
        """Refuse a member that other readers, which go by local headers, take for another one."""
        expected, size = self.members[number].name_bytes, _number(header[26:28])
        name = header[LOCAL_HEADER_SIZE:][:size]
        if size != len(expected) or name != expected:
            told = f"that a name of {size} bytes follows, {name[:_LONG_NAME]!r}"
            raise self._differs(number, told, f"{expected[:_LONG_NAME]!r}")

    def _differs(self, number: int, local: str, directory: str) -> FormatError:
        return self.broken(
            number, f"its local header says {local}, the central directory {directory}"
        )

    def broken(self, number: int, message: str) -> FormatError:
        """Return the error for a member."""
        member = self.members[number]
        return self.source.broken(member.header, f"member {member.name!r}: {message}")


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little")


class DeflatedGrid(Grid):
    """A deflated member, which is one chunk.

    Parameters
    ----------
    data : MemberData
        The zip file's.
    number : int
        The member's place in the directory.
    """

    def __init__(self, data: MemberData, number: int) -> None:
        self._data, self._number = data, number

    def locate(self, chunks: Integers) -> Places:
        """See `Grid.locate`."""
        count, member = chunks.shape[0], self._data.members[self._number]
        start = self._data.start(self._number) if count else 0
        return Places(
            np.zeros(count, np.int64),
            np.full(count, start, np.int64),
            np.full(count, member.stored_size, np.int64),
            ("",),
            raw_sizes=np.full(count, member.raw_size, np.int64),
            checksums=np.full(count, member.crc, np.int64),
        )


class StoredGrid(Grid):
    """The bytes of a stored member, cut into chunks.

    Parameters
    ----------
    data, number
        As for `DeflatedGrid`.
    piece : int
        Bytes of a chunk.
    """

    def __init__(self, data: MemberData, number: int, piece: int) -> None:
        self._data, self._number, self._piece = data, number, piece

    def locate(self, chunks: Integers) -> Places:
        """See `Grid.locate`."""
        member = self._data.members[self._number]
        start = self._data.start(self._number) if chunks.shape[0] else 0
        shape = (member.raw_size,)
        return RawGrid(
            start, shape, chunk_shape(shape, 1, self._piece), 1, checksum=member.crc
        ).locate(chunks)
