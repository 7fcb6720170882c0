"""The directory of zip files, and where the data of members is."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from gpuload.containers.zip_data import MemberData
from gpuload.containers.zip_directory import read_directory
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError, UnsupportedCodecError
from gpuload.sources import BytesSource, Source
from tests.containers.zip_files import Entry, zip_file
from tests.helpers.mutations import mutated

DATA = b"some data that repeats, repeats, repeats " * 9


class CountingSource(Source):
    """Bytes, whose reads are counted; beyond `fails_at` they fail."""

    def __init__(self, data: bytes, *, remote: bool = False, fails_from: int = 1 << 60) -> None:
        self.name, self.size, self.remote = "counted", len(data), remote
        self._data, self._fails_from = data, fails_from
        self.reads = 0

    def readinto(self, offset: int, view: memoryview) -> int:
        self.reads += 1
        if offset + len(view) > self._fails_from:
            raise OSError(5, "the disk is broken", self.name)
        part = self._data[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)


def directory(data: bytes):
    return read_directory(BytesSource(data, "a.zip"))


def errors(data: bytes) -> dict[str, str]:
    return {member.name: member.error for member in directory(data)}


def errors_or_damage(data: bytes) -> str:
    """Return what is wrong with member "a", or with the whole file: Python's versions differ."""
    try:
        return errors(data)["a"]
    except FormatError as error:
        return f"{error}"


def data_of(data: bytes, number: int = 0) -> bytes:
    """Return the stored data of a member."""
    members = directory(data)
    start = MemberData(BytesSource(data, "a.zip"), members).start(number)
    return data[start : start + members[number].stored_size]


class TestLine44DataDescriptors:
    def test_sizes_come_from_the_directory(self):
        """The local header has zeros for them."""
        descriptor = b"PK\x07\x08" + struct.pack("<III", 1, 2, 3)
        data = zip_file(
            Entry(b"a", DATA, flags=8, descriptor=descriptor), Entry(b"b", b"behind it")
        )
        assert [member.raw_size for member in directory(data)] == [len(DATA), 9]
        assert data_of(data, 0) == DATA
        assert data_of(data, 1) == b"behind it"

    def test_the_data_is_behind_the_lengths_of_the_local_header(self):
        """Which may have another extra field than the directory."""
        entry = Entry(b"a", DATA, local_extra=b"\x99\x99\x03\x00abc", extra=b"\x98\x98\x00\x00")
        assert data_of(zip_file(entry, Entry(b"b", DATA)), 0) == DATA

    @pytest.mark.parametrize("name", [b"c", b"", b"b-under-another-name", b"B"])
    def test_another_name_in_the_local_header(self, name):
        """Readers that go by local headers would take the member for another one."""
        data = zip_file(Entry(b"a", DATA), Entry(b"b", DATA, local_name=name))
        with pytest.raises(
            FormatError, match=r"'b'.*local header says that a name of .* directory b'b'"
        ):
            data_of(data, 1)
        assert data_of(data, 0) == DATA

    def test_data_that_reaches_into_the_next_member(self):
        """The lengths are those of the local header, so only there it shows."""
        data = zip_file(Entry(b"a", DATA), Entry(b"b", DATA))
        data = data[:28] + struct.pack("<H", 700) + data[30:]
        with pytest.raises(FormatError, match=r"'a'.*reach beyond byte"):
            data_of(data, 0)
        assert data_of(data, 1) == DATA


class TestLine45Zip64:
    FULL = 0xFFFFFFFF

    @pytest.mark.parametrize("which", range(1, 8))
    def test_only_the_fields_that_overflowed(self, which):
        """In the order raw size, stored size, offset (APPNOTE 4.5.3)."""
        first, second = Entry(b"first", b"x" * 50), Entry(b"a", DATA)
        values = [len(DATA), len(DATA), len(first.local())]
        names = ["raw_size", "stored_size", "header_offset"]
        there = [n for n in range(3) if which >> n & 1]
        field = struct.pack(f"<{len(there)}Q", *(values[n] for n in there))
        for n in there:
            setattr(second, names[n], self.FULL)
        second.extra = struct.pack("<HH", 1, len(field)) + field
        data = zip_file(first, second)
        (_, member) = directory(data)
        assert (member.raw_size, member.stored_size, member.header) == tuple(values)
        assert not member.error
        assert data_of(data, 1) == DATA

    def test_without_the_field(self):
        data = zip_file(Entry(b"a", DATA, raw_size=self.FULL, stored_size=self.FULL))
        assert errors_or_damage(data)

    def test_sizes_beyond_everything(self):
        field = struct.pack("<HHQQ", 1, 16, 2**64 - 1, 2**64 - 2)
        bad = Entry(b"a", b"", raw_size=self.FULL, stored_size=self.FULL, extra=field)
        assert "outside of" in errors(zip_file(bad, Entry(b"b")))["a"]

    def test_written_by_the_library(self):
        buffer = io.BytesIO()
        with (
            zipfile.ZipFile(buffer, "w") as archive,
            archive.open("a", "w", force_zip64=True) as file,
        ):
            file.write(DATA)
        assert data_of(buffer.getvalue()) == DATA


class TestLine46Members:
    def test_stored_deflated_and_empty_ones(self):
        data = zip_file(Entry(b"s", DATA), Entry(b"d", DATA, 8), Entry(b"e"), Entry(b"f", b"", 8))
        found = {m.name: (m.deflated, m.raw_size, m.error) for m in directory(data)}
        size = len(DATA)
        assert found["s"] == (False, size, "")
        assert found["d"] == (True, size, "")
        assert found["e"] == (False, 0, "")
        assert found["f"] == (True, 0, "")

    @pytest.mark.parametrize("flags", [1, 0x41])
    def test_encrypted(self, flags):
        found = errors(zip_file(Entry(b"a", DATA, flags=flags), Entry(b"b", DATA)))
        assert "encrypted" in found["a"]
        assert not found["b"]

    def test_encrypted_by_the_local_header(self):
        with pytest.raises(FormatError, match="encrypted"):
            data_of(zip_file(Entry(b"a", DATA, local_flags=1)))


@pytest.mark.parametrize(
    ("method", "name"), [(9, "Deflate64"), (12, "bzip2"), (93, "Zstandard"), (77, "unknown")]
)
def test_other_methods_are_named(method, name):
    found = errors(zip_file(Entry(b"a", DATA, method), Entry(b"b", DATA)))
    assert f"method {method} ({name})" in found["a"]
    assert not found["b"]


@pytest.mark.parametrize(
    "name", [b"../a", b"x/../../a", b"/etc/a", b"..", b"C:\\a", b"\\\\host\\a", b"x\\..\\a"]
)
def test_names_that_escape(name):
    found = errors(zip_file(Entry(name, DATA), Entry(b"b..c/..d", DATA)))
    assert "points out of the archive" in found[name.decode()]
    assert not found["b..c/..d"]


def test_a_member_without_a_name():
    assert "no name" in errors(zip_file(Entry(b"", DATA), Entry(b"b")))[""]


def test_names_that_are_there_twice():
    data = zip_file(Entry(b"a", DATA), Entry(b"b", DATA), Entry(b"a", b"other"))
    found = directory(data)
    assert ["2 members" in member.error for member in found] == [True, False, True]


def test_folders_are_no_members():
    assert list(errors(zip_file(Entry(b"x/"), Entry(b"x/a", DATA)))) == ["x/a"]


def test_names_in_other_alphabets():
    names = ["ä/文.bin", "é"]
    data = zip_file(*(Entry(name.encode(), DATA, flags=0x800) for name in names))
    assert list(errors(data)) == names
    assert list(errors(zip_file(Entry(b"\x82", DATA)))) == ["é"]  # code page 437


class TestOverlaps:
    def test_two_entries_of_one_member(self):
        data = zip_file(Entry(b"a", DATA), Entry(b"b", DATA, header_offset=0), Entry(b"c", DATA))
        found = errors(data)
        assert "overlaps" in found["a"]
        assert "overlaps" in found["b"]
        assert not found["c"]

    def test_a_member_around_others(self):
        inner = zip_file(Entry(b"x", DATA))
        size = len(Entry(b"b", DATA).local())
        outer = Entry(b"a", inner + bytes(size))
        inside = len(Entry(b"a", b"").local()) + 10
        data = zip_file(outer, Entry(b"b", DATA, header_offset=inside), Entry(b"c", DATA))
        found = errors(data)
        assert "overlaps" in found["a"]
        assert "overlaps" in found["b"]
        assert not found["c"]

    def test_a_member_that_reaches_into_the_directory(self):
        found = errors(zip_file(Entry(b"b", DATA), Entry(b"a", DATA, stored_size=3_000)))
        assert "outside of" in found["a"]
        assert not found["b"]

    def test_an_overlap_that_only_the_local_header_shows(self):
        data = zip_file(Entry(b"a", DATA, local_extra=bytes(40)))
        data = data.replace(struct.pack("<HH", 1, 40), struct.pack("<HH", 1, 48), 1)
        with pytest.raises(FormatError, match="reach beyond"):
            data_of(data)


class TestSizes:
    def test_stored_members_whose_sizes_differ(self):
        found = errors(zip_file(Entry(b"a", DATA, raw_size=7), Entry(b"b", DATA)))
        assert "the directory says 7" in found["a"]
        assert not found["b"]

    def test_more_than_deflate_can_be(self):
        found = errors(zip_file(Entry(b"a", DATA, 8, raw_size=2**31), Entry(b"b", DATA)))
        assert f"{2**31} bytes" in found["a"]
        assert not found["b"]

    def test_the_most_that_deflate_can_be(self):
        data = zip_file(Entry(b"a", bytes(1 << 22), 8))
        assert 4 < (1 << 22) / len(data) < 1032
        assert not errors(data)["a"]


class TestLocalHeaders:
    def test_without_their_magic(self):
        with pytest.raises(FormatError, match=r"a.zip: byte 0: member 'a': no local header.*50 4c"):
            data_of(zip_file(Entry(b"a", DATA, local_magic=b"PL\x03\x04")))

    def test_with_another_method(self):
        message = "local header says compression method 8, the central directory 0"
        with pytest.raises(FormatError, match=message):
            data_of(zip_file(Entry(b"a", DATA, local_method=8)))

    def test_long_names_are_shortened(self):
        name = b"n" * 60_000
        with pytest.raises(FormatError, match="name of 60000 bytes") as caught:
            data_of(zip_file(Entry(b"a", DATA, local_name=name)))
        assert len(f"{caught.value}") < 500

    def test_of_a_broken_member(self):
        with pytest.raises(FormatError, match="encrypted"):
            data_of(zip_file(Entry(b"a", DATA, flags=1)))

    @pytest.mark.parametrize("remote", [False, True])
    def test_looked_at_when_they_are_wanted_and_once(self, remote):
        data = zip_file(*(Entry(b"%d" % n, b"%d" % n) for n in range(3_000)))
        source = CountingSource(data, remote=remote)
        members = read_directory(source)
        assert source.reads <= 3
        found = MemberData(source, members)
        wanted = np.array([2_999, 5, 70, 5])
        for _ in range(2):
            starts = found.locate(wanted)
            assert [data[s : s + 4].split(b"P")[0] for s in starts] == [b"2999", b"5", b"70", b"5"]
        assert source.reads <= 6

    def test_that_cannot_be_read(self):
        data = zip_file(Entry(b"a", DATA), Entry(b"b", DATA))
        source = CountingSource(data)
        found = MemberData(source, read_directory(source))
        source._fails_from = 0
        with pytest.raises(OSError, match="the disk is broken"):
            found.start(0)


class TestBounds:
    def test_a_directory_that_takes_too_much_memory(self):
        data = zip_file(*(Entry(b"%d" % n) for n in range(5_000)))
        with pytest.raises(MemoryLimitError, match=r"entries.*memory_limit.*--memory-limit"):
            read_directory(BytesSource(data), 1 << 20)
        assert len(read_directory(BytesSource(data), 6 << 20)) == 5_000

    def test_memory_is_within_the_limit(self):
        data = zip_file(*(Entry(b"folder/%d" % n, local_extra=b"") for n in range(5_000)))
        tracemalloc.start()
        try:
            members = read_directory(BytesSource(data), 6 << 20)
            assert len(members) == 5_000
            assert tracemalloc.get_traced_memory()[1] < 6 << 20
        finally:
            tracemalloc.stop()

    def test_a_directory_of_most_of_a_huge_file(self):
        """Nothing of it is read."""

        class Huge(CountingSource):
            def readinto(self, offset, view):
                assert len(view) < 1 << 20
                end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 9, 9, 3 << 30, 0, 0)
                view[:] = bytes(len(view) - len(end)) + end
                return len(view)

        source = Huge(b"")
        source.size = (3 << 30) + 22
        with pytest.raises(MemoryLimitError, match=f"{3 << 30} bytes"):
            read_directory(source)

    def test_errors_of_reading_are_not_taken_for_damage(self):
        data = zip_file(*(Entry(b"%d" % n, DATA) for n in range(3_000)))
        for fails_from in (0, len(data) - 120_000):
            with pytest.raises(OSError, match="the disk is broken"):
                read_directory(CountingSource(data, fails_from=fails_from))


class TestOtherFiles:
    @pytest.mark.parametrize("data", [b"", b"PK", b"PK\x05\x06", bytes(30), b"PK\x03\x04" * 99])
    def test_no_directory(self, data):
        with pytest.raises(FormatError, match=r"a.zip: .*zip file"):
            directory(data)

    def test_a_later_version(self):
        with pytest.raises(UnsupportedCodecError, match="version 9"):
            directory(zip_file(Entry(b"a", needed=99)))

    def test_bytes_before_the_archive_and_a_comment(self):
        data = zip_file(Entry(b"a", DATA), prefix=bytes(1_000), comment=b"hello" * 99)
        assert data_of(data) == DATA

    def test_a_directory_that_is_said_to_be_elsewhere(self):
        data = bytearray(zip_file(Entry(b"a", DATA)))
        data[-6:-2] = struct.pack("<I", 2**31)
        assert errors_or_damage(bytes(data))

    def test_a_name_that_is_no_utf_8(self):
        with pytest.raises(FormatError, match="damaged"):
            directory(zip_file(Entry(b"\xff\xfe", DATA, flags=0x800)))


@pytest.mark.parametrize("seed", range(4))
def test_damaged(seed):
    """Members, or a GpuloadError; and data inside of the file."""
    rng = random.Random(seed)
    descriptor = b"PK\x07\x08" + bytes(12)
    extra = struct.pack("<HHQQ", 1, 16, len(DATA), len(DATA))
    files = [
        zip_file(Entry(b"a", DATA), Entry(b"x/b", DATA, 8), Entry(b"c", flags=8)),
        zip_file(Entry(b"a", DATA, flags=8, descriptor=descriptor), prefix=b"prefix"),
        zip_file(Entry(b"a", DATA, raw_size=2**32 - 1, stored_size=2**32 - 1, extra=extra)),
    ]
    for _ in range(500):
        data = mutated(rng, files)
        try:
            members = directory(data)
        except GpuloadError:
            continue
        found = MemberData(BytesSource(data), members)
        for number, member in enumerate(members):
            try:
                start = found.start(number)
            except GpuloadError:
                continue
            assert not member.error
            assert 0 <= start <= start + member.stored_size <= len(data)
