"""Headers of gzip members, built by hand after RFC 1952, section 2.3."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.codecs.gzip_header import MemberHeader, read_member_header
from gpuload.errors import FormatError, GpuloadError, UnsupportedCodecError
from gpuload.sources import BytesSource, LocalFile

if TYPE_CHECKING:
    from pathlib import Path

FHCRC, FEXTRA, FNAME, FCOMMENT = 2, 4, 8, 16
BC = b"BC\x02\x00\x1b\x00"


def member_header(
    *,
    extra: bytes | None = None,
    name: bytes | None = None,
    comment: bytes | None = None,
    crc: int | None = None,
    method: int = 8,
    flags: int = 0,
) -> bytes:
    """Return a header; `crc` is added to the right FHCRC."""
    flags |= FEXTRA * (extra is not None) | FNAME * (name is not None)
    flags |= FCOMMENT * (comment is not None) | FHCRC * (crc is not None)
    header = (
        bytes([0x1F, 0x8B, method, flags]) + (1_700_000_000).to_bytes(4, "little") + b"\x02\x03"
    )
    if extra is not None:
        header += len(extra).to_bytes(2, "little") + extra
    if name is not None:
        header += name + b"\0"
    if comment is not None:
        header += comment + b"\0"
    if crc is not None:
        header += ((zlib.crc32(header) + crc) & 0xFFFF).to_bytes(2, "little")
    return header


def parse(data: bytes, offset: int = 0) -> MemberHeader:
    return read_member_header(BytesSource(data).peek, offset, "a.gz")


ALL_FIELDS = member_header(extra=b"AB\x03\x00xyz" + BC, name=b"na\xefve", comment=b"words", crc=0)


def test_fixed_fields_only() -> None:
    header = parse(member_header() + b"payload")
    assert header == MemberHeader(size=10, flags=0, mtime=1_700_000_000, os=3)
    assert header.bgzf_block_size is None


def test_all_fields() -> None:
    header = parse(ALL_FIELDS + b"payload")
    assert header.size == len(ALL_FIELDS)
    assert header.flags == FHCRC | FEXTRA | FNAME | FCOMMENT
    assert header.subfields == ((b"AB", b"xyz"), (b"BC", b"\x1b\x00"))
    assert header.name == "naïve"
    assert header.comment == "words"


def test_empty_fields() -> None:
    header = parse(member_header(extra=b"", name=b"", comment=b"", crc=0))
    assert (header.size, header.name, header.comment) == (16, "", "")


def test_a_member_that_is_not_the_first() -> None:
    data = b"\x1f" * 1000 + ALL_FIELDS
    assert parse(data, 1000) == parse(ALL_FIELDS)


def test_the_reference_tool_agrees() -> None:
    buffer = io.BytesIO()
    with gzip.GzipFile("name.bin", "wb", fileobj=buffer, mtime=7) as file:
        file.write(b"content")
    data = buffer.getvalue()
    header = parse(data)
    assert (header.name, header.mtime, header.os) == ("name.bin", 7, 255)
    assert zlib.decompress(data[header.size : -8], wbits=-15) == b"content"


@pytest.mark.parametrize(
    ("extra", "size"),
    [
        (BC, 0x1C),
        (b"RA\x01\x00-" + BC, 0x1C),
        (b"BC\x02\x00\xff\xff", 1 << 16),
        (b"BC\x01\x00\x1b", None),
        (b"BC\x03\x00\x1b\x00\x00", None),
        (b"BC\x03\x00\x1b\x00\x00" + BC, 0x1C),
        (b"CB\x02\x00\x1b\x00", None),
        (b"", None),
    ],
)
def test_bgzf_block_size(extra: bytes, size: int | None) -> None:
    assert parse(member_header(extra=extra)).bgzf_block_size == size


@pytest.mark.parametrize("extra", [b"A", b"AB\x09\x00short", b"AB\xff\xff", b"\0" * 7])
def test_malformed_subfields_are_ignored(extra: bytes) -> None:
    header = parse(member_header(extra=extra, crc=0))
    assert header.size == 14 + len(extra)
    assert header.bgzf_block_size is None


def test_subfields_before_malformed_ones_count() -> None:
    assert parse(member_header(extra=BC + b"AB\x09\x00")).bgzf_block_size == 0x1C


def test_largest_extra_field() -> None:
    extra = b"ZZ" + (65531).to_bytes(2, "little") + bytes(65531)
    header = parse(member_header(extra=extra, name=b"n", crc=0))
    assert header.size == 12 + 65535 + 2 + 2
    assert header.name == "n"


def test_long_name() -> None:
    name = b"n" * (1 << 20)
    assert parse(member_header(name=name, comment=b"c", crc=0)).comment == "c"


@pytest.mark.parametrize("field", ["name", "comment"])
def test_name_without_end_is_refused(field: str) -> None:
    text = b"n" * (3 << 20)
    with pytest.raises(FormatError, match=rf"F{field.upper()} has no end within 1048576 bytes"):
        parse(member_header(**{field: text}))


def test_wrong_header_crc() -> None:
    data = member_header(name=b"n", crc=1)
    right = zlib.crc32(data[:-2]) & 0xFFFF
    message = rf"a\.gz: byte 12: FHCRC is 0x{right + 1:04x}, but the header's is 0x{right:04x}"
    with pytest.raises(FormatError, match=message):
        parse(data)


def test_wrong_magic() -> None:
    with pytest.raises(FormatError, match="byte 0: no gzip member starts here: found 1f 8c"):
        parse(b"\x1f\x8c" + member_header()[2:])


@pytest.mark.parametrize("method", [0, 7, 9, 255])
def test_other_methods(method: int) -> None:
    with pytest.raises(UnsupportedCodecError, match=f"byte 2: gzip compression method {method};"):
        parse(member_header(method=method))


@pytest.mark.parametrize("bit", [5, 6, 7])
def test_reserved_flags(bit: int) -> None:
    with pytest.raises(FormatError, match=f"byte 3: gzip flags 0x{1 << bit:02x}"):
        parse(member_header(flags=1 << bit))


def test_cut_anywhere() -> None:
    for size in range(len(ALL_FIELDS)):
        with pytest.raises(FormatError, match=f"byte {size}: the source ends here"):
            parse(ALL_FIELDS[:size])


def test_error_tells_which_member_it_is() -> None:
    with pytest.raises(FormatError, match=r"byte 104: .*header of the gzip member at byte 100"):
        parse(bytes(100) + member_header()[:4], 100)


@given(data=st.binary(max_size=64), flags=st.integers(0, 31))
def test_any_bytes_give_a_header_or_an_error_of_ours(data: bytes, flags: int) -> None:
    with contextlib.suppress(GpuloadError):
        data = bytes([0x1F, 0x8B, 8, flags]) + data
        assert 10 <= parse(data).size <= len(data)


@pytest.mark.parametrize(
    ("file", "name", "comment", "identifiers"),
    [
        ("all_header_fields_crc.gz", "a.c", "source text", [b"AB"]),
        ("counts_go.gz", "field.bin", "go compress/gzip", [b"GO"]),
        ("extra_64k.gz", None, None, [b"ZZ"]),
        ("field_header_fields.gz", "field.bin", "grid of floats", [b"CD", b"AB"]),
    ],
)
def test_corpus(
    corpus: Path, file: str, name: str | None, comment: str | None, identifiers: list[bytes]
) -> None:
    with LocalFile(corpus / "gzip" / file) as source:
        header = read_member_header(source.peek, 0, source.name)
        payload = source.peek(header.size, source.size)
    assert (header.name, header.comment) == (name, comment)
    assert [identifier for identifier, _ in header.subfields] == identifiers
    decoder = zlib.decompressobj(wbits=-15)
    decoder.decompress(payload)
    assert decoder.eof
    assert len(decoder.unused_data) == 8


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("fhcrc_perl.gz", FormatError),
        ("reserved_flags.gz", FormatError),
        ("method_9.gz", UnsupportedCodecError),
        ("zero_bytes.gz", FormatError),
    ],
)
def test_bad_headers_of_the_corpus(corpus: Path, file: str, error: type[GpuloadError]) -> None:
    with LocalFile(corpus / "gzip/bad" / file) as source, pytest.raises(error):
        read_member_header(source.peek, 0, source.name)
