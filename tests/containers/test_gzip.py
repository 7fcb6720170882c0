"""The gzip reader, also of BGZF: files built by hand, and the corpus."""

from __future__ import annotations

import gzip as reference
import itertools
import json
import random
import shutil
import subprocess
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from gpuload.chunks import CHUNK_DTYPE, Checksum, Codec
from gpuload.containers import gzip
from gpuload.errors import FormatError, UnsupportedCodecError
from gpuload.options import Options
from gpuload.sources import BytesSource, LocalFile
from tests.containers.container_tests import ContainerTests, columns

if TYPE_CHECKING:
    from pathlib import Path

    from gpuload.containers.base import Index

#: The end-of-file marker as the SAM specification, section 4.1.2, spells it out.
EOF = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
FHCRC, FEXTRA, FNAME = 2, 4, 8
COMMON = ("offset", "stored_size", "raw_size")


def deflate(content: bytes, level: int = 6) -> bytes:
    compressor = zlib.compressobj(level, wbits=-15)
    return compressor.compress(content) + compressor.flush()


def block(
    content: bytes,
    *,
    before: bytes = b"",
    name: bytes | None = None,
    crc: bool = False,
    level: int = 6,
    bsize: int = 0,
    isize: int | None = None,
) -> bytes:
    """Return a BGZF block; `before` stands before BC, `bsize` is added to the right BSIZE."""
    payload = deflate(content, level)
    text = b"" if name is None else name + b"\0"
    size = 18 + len(before) + len(text) + 2 * crc + len(payload) + 8
    extra = before + b"BC\x02\0" + (size - 1 + bsize).to_bytes(2, "little")
    flags = FEXTRA | FNAME * (name is not None) | FHCRC * crc
    header = bytes([0x1F, 0x8B, 8, flags, 0, 0, 0, 0, 0, 255])
    header += len(extra).to_bytes(2, "little") + extra + text
    if crc:
        header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    isize = len(content) if isize is None else isize
    return (
        header + payload + zlib.crc32(content).to_bytes(4, "little") + isize.to_bytes(4, "little")
    )


def read(data: bytes, **options: Any) -> Index:
    return gzip.read(BytesSource(data, "a.gz"), Options(**options))


def decode_rows(data: bytes, index: Index) -> bytes:
    """Decode every row with zlib and check its size and checksum."""
    parts = []
    for row in index.chunks:
        payload = data[int(row["offset"]) : int(row["offset"] + row["stored_size"])]
        decoder = zlib.decompressobj(wbits=-15 if row["codec"] == Codec.DEFLATE else 31)
        part = decoder.decompress(payload)
        if row["codec"] == Codec.DEFLATE:
            assert decoder.eof
            assert not decoder.unused_data
            assert (len(part), zlib.crc32(part)) == (row["raw_size"], row["checksum"])
        parts.append(part)
    return b"".join(parts)


def cuts(*blocks: bytes) -> set[int]:
    """Return where a file of these blocks can be cut so that it seems whole.

    That is between two blocks, and one byte later: the first byte of a magic is trailing garbage.
    """
    ends = set(itertools.accumulate(len(part) for part in blocks))
    return ends | {end + 1 for end in ends}


FIRST, SECOND = b"first " * 40, b"second " * 30
BGZF = block(FIRST) + block(SECOND) + EOF
ODD_BLOCKS = block(FIRST, before=b"RA\x01\0-", crc=True), block(SECOND, name=b"n"), EOF
ODD = b"".join(ODD_BLOCKS)
PLAIN = reference.compress(FIRST, mtime=0)
PLAIN_HEADER = 10
CUTS = cuts(block(FIRST), block(SECOND))


class TestGzipContract(ContainerTests):
    reader = gzip
    good: ClassVar = {
        "plain": PLAIN,
        "plain members": PLAIN + PLAIN,
        "bgzf": BGZF,
        "other headers": ODD,
        "no end block": BGZF[: -len(EOF)],
        "then plain": BGZF + PLAIN,
        "zero padding": BGZF + bytes(100),
    }
    whole_prefixes: ClassVar = {
        "plain": range(PLAIN_HEADER, 1000),
        "plain members": range(PLAIN_HEADER, 1000),
        "bgzf": CUTS,
        "other headers": cuts(*ODD_BLOCKS),
        "no end block": CUTS,
        "then plain": CUTS | cuts(BGZF) | set(range(len(BGZF) + PLAIN_HEADER, 1000)),
        "zero padding": CUTS | set(range(len(BGZF), 1000)),
    }
    may_warn = ("no end block",)
    large = block(random.Random(1).randbytes(60_000), level=0) * 20 + EOF


@pytest.mark.parametrize("first", [b"", b"\x1f", b"\x1f\x8c", b"\x8b\x1f", b"\0" * 16])
def test_is_no_magic(first: bytes) -> None:
    assert not gzip.is_magic(first)


def test_is_magic() -> None:
    assert gzip.is_magic(b"\x1f\x8b")
    assert gzip.is_magic(PLAIN[:16])


# --- plain gzip


def test_plain_file_is_one_row() -> None:
    index = read(PLAIN)
    assert index.format == "gzip"
    assert index.serial == "one serial DEFLATE stream: where members end is only found by decoding"
    assert columns(index, "offset", "stored_size", "codec", "exact", "checksum_kind") == [
        (0, len(PLAIN), Codec.GZIP, False, Checksum.NONE)
    ]


def test_members_do_not_make_rows() -> None:
    empty = reference.compress(b"", mtime=0)
    index = read(PLAIN + empty + PLAIN + bytes(512))
    assert columns(index, "offset", "stored_size") == [(0, 2 * len(PLAIN) + len(empty) + 512)]


def test_upper_bound_holds_for_the_most_compressible_file() -> None:
    content = bytes(10 << 20)
    size = read(reference.compress(content, 9)).chunks["raw_size"][0]
    assert len(content) <= size < 1.02 * len(content)


def test_isize_does_not_decide_the_slot() -> None:
    forged = PLAIN[:-4] + b"\xff\xff\xff\xff"
    assert columns(read(forged), "raw_size") == columns(read(PLAIN), "raw_size")


def test_details_of_the_first_member() -> None:
    header = b"\x1f\x8b\x08\x1c\x07\x00\x00\x00\x00\x03\x07\x00AB\x03\x00xyzname\0words\0"
    assert read(header + PLAIN[10:]).details == {
        "name": "name",
        "comment": "words",
        "mtime": 7,
        "os": 3,
        "subfields": ["AB"],
    }


@pytest.mark.parametrize("extra", [b"BC\x01\0\x1b", b"BC\x03\0\x1b\0\0", b"CB\x02\0\x1b\0", b"B"])
def test_other_subfields_are_plain_gzip(extra: bytes) -> None:
    header = b"\x1f\x8b\x08\x04" + bytes(6) + len(extra).to_bytes(2, "little") + extra
    assert read(header + PLAIN[10:]).format == "gzip"


def test_first_header_is_checked() -> None:
    with pytest.raises(FormatError, match=r"a\.gz: byte 3: gzip flags 0x20"):
        read(b"\x1f\x8b\x08\x20" + PLAIN[4:])
    with pytest.raises(UnsupportedCodecError, match="method 9"):
        read(b"\x1f\x8b\x09\x00" + PLAIN[4:])


def test_bgzf_block_behind_a_plain_member_is_plain_gzip() -> None:
    index = read(PLAIN + BGZF)
    assert index.format == "gzip"
    assert len(index.chunks) == 1


# --- BGZF


def test_blocks_are_rows() -> None:
    index = read(BGZF)
    sizes = [len(block(FIRST)), len(block(SECOND))]
    assert index.format == "bgzf"
    assert index.batchable
    assert index.exact
    assert columns(index, *COMMON, "dst_offset", "checksum") == [
        (18, sizes[0] - 26, len(FIRST), 0, zlib.crc32(FIRST)),
        (sizes[0] + 18, sizes[1] - 26, len(SECOND), len(FIRST), zlib.crc32(SECOND)),
        (sum(sizes) + 18, 2, 0, len(FIRST + SECOND), 0),
    ]
    assert columns(index, "codec", "checksum_kind") == [(Codec.DEFLATE, Checksum.CRC32)] * 3
    assert (index.details["blocks"], index.details["eof_block"]) == (3, True)
    assert not index.warnings


def test_other_headers() -> None:
    index = read(ODD)
    assert decode_rows(ODD, index) == FIRST + SECOND
    assert [int(row["offset"]) for row in index.chunks[:2]] == [
        18 + 5 + 2,
        len(ODD) - len(EOF) - len(block(SECOND)) - 2 + 18 + 2,
    ]


def test_common_header_with_other_fixed_fields() -> None:
    # MTIME, XFL and OS differ from what htslib writes.
    stamped = bytearray(block(SECOND))
    stamped[4:10] = b"\x01\x02\x03\x04\x02\x03"
    data = block(FIRST) + bytes(stamped) + EOF
    assert decode_rows(data, read(data)) == FIRST + SECOND


def test_empty_block_in_the_middle_is_no_end() -> None:
    data = block(FIRST) + EOF + block(b"") + block(SECOND) + EOF
    index = read(data)
    assert columns(index, "raw_size") == [(len(FIRST),), (0,), (0,), (len(SECOND),), (0,)]
    assert decode_rows(data, index) == FIRST + SECOND
    assert not index.warnings


def test_only_the_end_block() -> None:
    index = read(EOF)
    assert columns(index, *COMMON) == [(18, 2, 0)]
    assert index.details["eof_block"]


def test_missing_end_block_warns() -> None:
    data = BGZF[: -len(EOF)]
    index = read(data)
    assert not index.details["eof_block"]
    assert index.warnings == [
        f"a.gz: byte {len(data)}: the end-of-file block of BGZF is missing; "
        "the file may be cut short"
    ]
    with pytest.raises(FormatError, match="end-of-file block of BGZF is missing"):
        read(data, strict=True)


def test_largest_block() -> None:
    content = random.Random(2).randbytes(1 << 15) + bytes(1 << 15)
    data = block(content) + EOF
    assert decode_rows(data, read(data)) == content


def test_stored_deflate() -> None:
    data = block(FIRST, level=0) + EOF
    assert decode_rows(data, read(data)) == FIRST


@pytest.mark.parametrize("isize", [(1 << 16) + 1, 1 << 31, 0xFFFFFFFF])
def test_isize_above_64_kib(isize: int) -> None:
    data = block(FIRST) + block(SECOND, isize=isize) + EOF
    place = len(block(FIRST) + block(SECOND)) - 4
    with pytest.raises(FormatError, match=f"a.gz: byte {place}: ISIZE is {isize}, .* at most"):
        read(data)


def test_isize_above_what_deflate_can_expand() -> None:
    with pytest.raises(FormatError, match=r"ISIZE is 2065, but 2 bytes .* at most 2064"):
        read(block(b"", isize=2065) + EOF)


@pytest.mark.parametrize("size", [1, 8, 18, 26, 27])
def test_bsize_smaller_than_header_and_trailer(size: int) -> None:
    for data in (EOF, block(FIRST) + EOF):
        start = len(data) - len(EOF)
        broken = data[: start + 16] + (size - 1).to_bytes(2, "little") + data[start + 18 :]
        with pytest.raises(FormatError, match=f"byte {start}: BSIZE gives this .* {size} bytes"):
            read(broken)


def test_bsize_smaller_than_a_longer_header() -> None:
    smaller = block(FIRST, before=b"RA\x10\0" + bytes(16), bsize=-len(deflate(FIRST)) - 8)
    with pytest.raises(FormatError, match="byte 0: BSIZE gives this BGZF block 38 bytes"):
        read(smaller)


def test_bsize_beyond_the_end() -> None:
    data = block(FIRST) + block(SECOND, bsize=1)
    with pytest.raises(FormatError, match=f"byte {len(data)}: the file ends inside the BGZF block"):
        read(data)


def test_bsize_that_misses_the_next_block() -> None:
    # The trailer is read from a wrong place, and what follows is no member.
    data = block(FIRST, bsize=3) + block(SECOND) + EOF
    with pytest.raises(FormatError):
        read(data, strict=True)


def test_plain_member_behind_blocks() -> None:
    data = BGZF + PLAIN + PLAIN
    index = read(data)
    assert index.chunks.dtype == CHUNK_DTYPE
    assert index.format == "bgzf"
    assert index.serial.startswith(f"from byte {len(BGZF)} on one serial DEFLATE stream")
    assert columns(index, "offset", "stored_size", "dst_offset", "codec", "exact")[3:] == [
        (len(BGZF), 2 * len(PLAIN), len(FIRST + SECOND), Codec.GZIP, False)
    ]
    assert decode_rows(BGZF + PLAIN, index) == FIRST + SECOND + FIRST


def test_broken_header_behind_blocks() -> None:
    with pytest.raises(FormatError, match=f"byte {len(BGZF) + 3}: gzip flags"):
        read(BGZF + b"\x1f\x8b\x08\xe0" + PLAIN[4:])
    with pytest.raises(FormatError, match="the source ends here"):
        read(BGZF + b"\x1f\x8b")


@pytest.mark.parametrize("padding", [1, 511, (2 << 20) + 5])
def test_zero_padding_is_ignored(padding: int) -> None:
    index = read(BGZF + bytes(padding), strict=True)
    assert len(index.chunks) == 3


@pytest.mark.parametrize("zeros", [0, 1, 100, (1 << 20) + 7])
def test_trailing_garbage_warns(zeros: int) -> None:
    data = BGZF + bytes(zeros) + b"garbage"
    index = read(data)
    assert len(index.chunks) == 3
    assert index.warnings == [
        f"a.gz: byte {len(BGZF) + zeros}: 7 bytes after the last BGZF block are no gzip member; "
        "ignored"
    ]
    with pytest.raises(FormatError, match=r"7 bytes after the last BGZF block are no gzip member$"):
        read(data, strict=True)


# --- reference tools and the corpus


@pytest.mark.skipif(not shutil.which("bgzip"), reason="needs the bgzip tool")
def test_bgzip(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    path = tmp_path / "content"
    path.write_bytes(content)
    data = subprocess.run(["bgzip", "-c", path], check=True, capture_output=True).stdout
    index = read(data, strict=True)
    assert decode_rows(data, index) == content
    assert len(index.chunks) > 3


@pytest.mark.parametrize(
    ("file", "blocks", "eof_block"),
    [("bgzf.gz", 5, True), ("bgzf_l9.gz", 7, True), ("bgzf_no_eof.gz", 4, False)],
)
def test_bgzf_of_the_corpus(corpus: Path, file: str, blocks: int, eof_block: bool) -> None:
    data = (corpus / "gzip" / file).read_bytes()
    index = read(data)
    assert decode_rows(data, index) == reference.decompress(data)
    assert index.details["blocks"] == len(index.chunks) == blocks
    assert index.details["eof_block"] is eof_block
    assert len(index.warnings) == (not eof_block)


def test_every_good_file_of_the_corpus(corpus: Path) -> None:
    for entry in json.loads((corpus / "manifest.json").read_text()):
        if entry["format"] == "gzip" and entry["kind"] == "stream" and entry["expect"] == "ok":
            with LocalFile(corpus / entry["file"]) as source:
                index = gzip.read(source, Options())
            size = int(index.chunks["raw_size"].sum())
            assert size == entry["size"] if index.exact else size >= entry["size"], entry["file"]
            assert index.format == ("bgzf" if "bgzf" in entry["file"] else "gzip")


@pytest.mark.parametrize("file", ["bgzf_trunc", "fhcrc_perl", "reserved_flags", "zero_bytes"])
def test_bad_files_of_the_corpus(corpus: Path, file: str) -> None:
    with LocalFile(corpus / f"gzip/bad/{file}.gz") as source, pytest.raises(FormatError):
        gzip.read(source, Options())


@pytest.mark.parametrize("size", [10**16, 10**18, 2**63 - 1])
@pytest.mark.parametrize("before", [b"", block(b"first")])
def test_sizes_that_cannot_be(size: int, before: bytes) -> None:
    """A server may state any size; what could come of it is more than a table can say."""

    class Huge(BytesSource):
        def peek(self, offset: int, size: int) -> bytes:
            return super().peek(offset, size).ljust(size, b"\0")

    source = Huge(before + reference.compress(b"content"))
    source.size = size
    index = gzip.read(source, Options())
    row = index.chunks[-1]
    assert row["stored_size"] == size - len(before)
    assert row["raw_size"] >= 2**62
    assert int(row["dst_offset"]) + int(row["raw_size"]) < 2**63
