"""What the double reads of a cubin: for which GPU it is, and what its kernels are like.

A cubin is an ELF file for one architecture. `cuobjdump -elf` prints all that is looked at here, in
the words of the comments.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.helpers.fakecuda.codes import Code, CudaError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = b"\x7fELF"
_MACHINE = 190  # EM_CUDA
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ABI_WITH_WIDE_FLAGS = 8
_NOBITS, _FUNCTION, _ENTRY = 8, 2, 0x10
_LARGEST = 64 << 20

# Attributes of .nv.info: a byte of format, one of number, and 16 bits of value or of its length.
_SHORT, _SIZED = (1, 2, 3), 4
_MAX_THREADS, _FRAME_SIZE, _PARAMETER, _REGISTERS = 0x05, 0x11, 0x17, 0x2F


@dataclass
class Entry:
    """A kernel of an image.

    Attributes
    ----------
    parameters : dict
        Offset and size in bytes of each parameter, by its place.
    max_threads : int
        Of a block, as __launch_bounds__ says; 0 where it says nothing.
    shared, local : int
        Bytes of static shared memory of a block, and of local memory of a thread.
    """

    name: str
    parameters: dict[int, tuple[int, int]] = field(default_factory=dict)
    max_threads: int = 0
    registers: int = 0
    shared: int = 0
    local: int = 0


@dataclass(frozen=True)
class Image:
    """A cubin, read.

    Attributes
    ----------
    architecture : (int, int)
        The compute capability that it is for.
    """

    architecture: tuple[int, int]
    entries: dict[str, Entry]

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Return whether a device runs this machine code: the same major version, no older."""
        return self.architecture[0] == capability[0] and self.architecture[1] <= capability[1]


def read_image(address: int) -> Image | None:
    """Read the cubin at an address of the process's memory, which does not tell its length.

    Returns
    -------
    Image or None
        None where there is no ELF file for a GPU: a driver looks at anything else only when
        somebody asks for a kernel.

    Raises
    ------
    CudaError
        If the cubin is damaged.
    """
    if ctypes.string_at(address, len(_MAGIC)) != _MAGIC:
        return None
    if _HEADER.unpack(ctypes.string_at(address, _HEADER.size))[2] != _MACHINE:
        return None
    try:
        return _Elf(address).image()
    except (struct.error, IndexError, ValueError) as error:
        raise CudaError(Code.INVALID_IMAGE, f"a damaged ELF file: {error}") from error


class _Elf:
    """The sections of an ELF file."""

    def __init__(self, address: int) -> None:
        header = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
        self._identity, self._flags = header[0], header[7]
        table, count, names = header[6], header[12], header[13]
        if table > _LARGEST:
            raise ValueError("section headers out of reach")
        raw = ctypes.string_at(address + table, count * _SECTION.size)
        self._headers = [_SECTION.unpack_from(raw, n * _SECTION.size) for n in range(count)]
        self._content = [self._read(address, one) for one in self._headers]
        texts = self._content[names]
        self._names = [_text(texts, one[0]) for one in self._headers]

    def _read(self, address: int, header: tuple[int, ...]) -> bytes:
        kind, offset, size = header[1], header[4], header[5]
        if kind == _NOBITS:
            return b""
        if offset + size > _LARGEST:
            raise ValueError("a section out of reach")
        return ctypes.string_at(address + offset, size)

    def image(self) -> Image:
        """Return what the file is for and what is in it."""
        wide = self._identity[8] >= _ABI_WITH_WIDE_FLAGS
        number = self._flags >> 8 & 0xFF if wide else self._flags & 0xFF
        symbols = dict(self._entry_symbols())
        entries = {name: self._entry(name) for name in symbols.values()}
        for attribute, value in _attributes(self._section(".nv.info")):
            if attribute in (_REGISTERS, _FRAME_SIZE):
                symbol, amount = struct.unpack("<II", value)
                if symbol in symbols:
                    what = "registers" if attribute == _REGISTERS else "local"
                    setattr(entries[symbols[symbol]], what, amount)
        return Image(divmod(number, 10), entries)

    def _section(self, name: str) -> bytes:
        return self._content[self._names.index(name)] if name in self._names else b""

    def _entry_symbols(self) -> Iterator[tuple[int, str]]:
        """Return number and name of the symbols that are FUNC and ENTRY."""
        symbols, texts = self._section(".symtab"), self._section(".strtab")
        for number, symbol in enumerate(_SYMBOL.iter_unpack(symbols)):
            name, info, other = symbol[:3]
            if info & 0xF == _FUNCTION and other & _ENTRY:
                yield number, _text(texts, name)

    def _entry(self, name: str) -> Entry:
        made = Entry(name)
        for attribute, value in _attributes(self._section(f".nv.info.{name}")):
            if attribute == _PARAMETER:
                _, place, offset, flags = struct.unpack("<IHHI", value)
                made.parameters[place] = (offset, flags >> 18)
            elif attribute == _MAX_THREADS:
                x, y, z = struct.unpack("<III", value)
                made.max_threads = x * y * z
        shared = f".nv.shared.{name}"
        if shared in self._names:
            made.shared = self._headers[self._names.index(shared)][5]
        return made


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Return number and value of each attribute of an .nv.info section."""
    at = 0
    while at + 4 <= len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind == _SIZED:
            yield attribute, info[at : at + size]
            at += size
        elif kind not in _SHORT:
            raise ValueError(f"format {kind} of attribute {attribute:#x}")


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()
