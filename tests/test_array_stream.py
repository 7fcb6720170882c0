"""Large members of NPZ files, which are decoded piece by piece."""

from __future__ import annotations

import struct
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuload
from gpuload import array_stream
from gpuload.errors import ChecksumError, DecompressError, GpuloadError

RNG = np.random.default_rng(5)
MIB = 1 << 20
#: Where they are loaded to; the tests on the double have another.
HOST = {"device": "cpu"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Take small chunks for large ones, and small pieces."""
    monkeypatch.setattr(array_stream, "_LARGE", 1000)
    monkeypatch.setattr(array_stream, "PIECE", 4096)
    monkeypatch.setattr(array_stream, "_FEED", 700)


def field(shape=(60, 50), dtype=np.float32) -> np.ndarray:
    values = np.add.outer(np.arange(shape[0]), 3 * np.arange(shape[1]))
    return (values + RNG.integers(0, 9, shape)).astype(dtype)


def written(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


def payload_of(path, name="a.npy"):
    """Return where a member's payload is, and its size."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(name)
    header = path.read_bytes()[member.header_offset :][:30]
    names = sum(struct.unpack("<HH", header[26:30]))
    return member.header_offset + 30 + names, member.compress_size


INDICES = [..., (slice(3, 50, 7), slice(None, None, -2)), 5, ([3, 1], [2, 2])]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_selections(tmp_path, order, index):
    data = np.asarray(field(), order=order)
    path = written(tmp_path / "x.npz", a=data, tiny=np.float32(3), none=np.zeros((0, 4)))
    with gpuload.open(path) as container:
        found = container.load_many({"a": index, "tiny": ..., "none": ...}, **HOST)
        assert container.report.verified == {"crc32": 2}
    assert (found["a"].to_host() == data[index]).all()
    assert found["tiny"].to_host() == 3
    assert found["none"].shape == (0, 4)


def test_members_larger_than_memory_limit(tmp_path):
    arrays = {f"a{n}": field((400, 300)) for n in range(3)}
    path = written(tmp_path / "x.npz", **arrays)
    with gpuload.open(path, memory_limit=64 << 10, verify=False) as container:
        found = container.load_many(dict.fromkeys(arrays, ...), **HOST)
        assert container.report.unverified == {"crc32": 3}
    assert all((found[name].to_host() == data).all() for name, data in arrays.items())


def test_members_of_zip_files(tmp_path):
    content = RNG.integers(0, 7, 50_000, np.uint8).tobytes()
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.bin", content)
    with gpuload.open(tmp_path / "x.zip") as container:
        assert container.load("a.bin", **HOST).to_host().tobytes() == content
        assert container.verify().verified == {"crc32": 1}


def test_damage(tmp_path):
    data = field()
    path = written(tmp_path / "x.npz", a=data, b=data)
    start, size = payload_of(path)
    content = bytearray(path.read_bytes())
    content[start + size // 2] ^= 0x40
    path.write_bytes(content)
    with gpuload.open(path) as container:
        with pytest.raises(DecompressError, match=r"x\.npz.*'?a'?.*chunk 0"):
            container.load("a", **HOST)
        assert (container.load("b", **HOST).to_host() == data).all()
        assert [failure.asset for failure in container.verify().failures] == ["a"]
    with gpuload.open(path, on_error="skip") as container:
        with pytest.warns(gpuload.errors.FormatWarning, match="chunk 0"):
            found = container.load_many({"a": ..., "b": 3}, **HOST)
        assert not found["a"].to_host().any()
        assert (found["b"].to_host() == data[3]).all()


def replaced(path, stream, crc=None, size=None):
    """Replace the payload of the only member, and what the directory tells of it."""
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.infolist()
    start, old = payload_of(path)
    content = path.read_bytes()
    behind = bytearray(content[start + old :])
    entry = behind.index(b"PK\1\2")
    told = (member.CRC if crc is None else crc, len(stream), size or member.file_size)
    behind[entry + 16 : entry + 28] = struct.pack("<III", *told)
    end = behind.index(b"PK\5\6")
    place = struct.unpack_from("<I", behind, end + 16)[0] + len(stream) - old
    struct.pack_into("<I", behind, end + 16, place)
    path.write_bytes(content[:start] + stream + bytes(behind))


def deflated(data):
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


@pytest.fixture
def member(tmp_path):
    """Return a file of one array, and the bytes of its member."""
    data = field((30, 40))
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        np.save(tmp_path / "a.npy", data)
        archive.write(tmp_path / "a.npy", "a.npy")
    return path, (tmp_path / "a.npy").read_bytes()


def test_bytes_behind_the_stream(member):
    path, content = member
    replaced(path, deflated(content) + b"more")
    with gpuload.open(path) as container, pytest.raises(DecompressError, match="bytes follow"):
        container.load(**HOST)


def test_a_stream_that_ends_early_with_bytes_behind_it(member):
    path, content = member
    replaced(path, deflated(content[:-100]) + b"more", zlib.crc32(content), size=len(content))
    with gpuload.open(path) as container, pytest.raises(DecompressError) as caught:
        container.load(**HOST)
    assert caught.value.failures[0].actual_size == len(content) - 100


def test_wrong_checksum(member):
    path, content = member
    replaced(path, deflated(content), crc=7)
    with gpuload.open(path) as container, pytest.raises(ChecksumError, match="CRC-32"):
        container.load(**HOST)
    with gpuload.open(path, verify=False) as container:
        assert container.load(**HOST).to_host().tobytes() == content[128:]


@pytest.mark.parametrize("change", [-100, 100], ids=["short", "long"])
def test_another_size(member, change):
    path, content = member
    longer = (content + bytes(200))[: len(content) + change]
    replaced(path, deflated(longer), crc=zlib.crc32(longer), size=len(content))
    with gpuload.open(path) as container, pytest.raises(DecompressError, match="decodes to"):
        container.load(**HOST)


def test_a_stream_that_is_cut_short(member):
    path, content = member
    replaced(path, deflated(content)[:-20])
    with gpuload.open(path) as container, pytest.raises(DecompressError, match="damaged"):
        container.load(**HOST)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_bytes(member, data):
    path, content = member
    stream = bytearray(deflated(content))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    kept = path.read_bytes()
    try:
        replaced(path, bytes(stream))
        with gpuload.open(path) as container:
            found = container.load(**HOST).to_host().tobytes()
    except GpuloadError:
        return
    finally:
        path.write_bytes(kept)
    assert found == content[128:]
