"""Shards: indexes at either end, with and without a checksum, nested, missing, damaged."""

from __future__ import annotations

import struct
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import numpy as np
import pytest

from gpuload.containers import zarr as reader
from gpuload.containers.shards import ChunkKeys, KeyGrid, ShardGrid, ShardLevel
from gpuload.errors import FormatError, MemoryLimitError
from gpuload.options import Options
from gpuload.sources.stores import Store
from tests.containers.zarr_files import document_3, sharded, written
from tests.containers.zarr_reading import asset_named, load

MISSING = 2**64 - 1
KEYS = ChunkKeys("a/c/", "/", "")


class Memory(Store):
    """Objects in memory, which counts what is asked of it."""

    name = "memory"

    def __init__(self, objects, *, remote=False):
        self.objects, self.remote = objects, remote
        self.asked, self.reads = [], []
        self.lock = threading.Lock()

    def sizes(self, keys):
        with self.lock:
            self.asked += keys
        return np.array([len(self.objects.get(key, "")) or -1 for key in keys], np.int64)

    def readinto(self, key, offset, view):
        with self.lock:
            self.reads.append((key, offset, len(view)))
        view[:] = self.objects[key][offset : offset + len(view)]


def index_of(pairs, *, checksum=True, order="<"):
    data = b"".join(struct.pack(f"{order}QQ", *pair) for pair in pairs)
    return data + (google_crc32c.value(data).to_bytes(4, "little") if checksum else b"")


def shard_of(chunks, *, at_start=False, checksum=True, order="<"):
    """Return a shard of chunks that are bytes, or None where they are missing."""
    size = 16 * len(chunks) + 4 * checksum
    at, pairs, data = size if at_start else 0, [], b""
    for chunk in chunks:
        pairs.append((MISSING, MISSING) if chunk is None else (at, len(chunk)))
        at += len(chunk or b"")
        data += chunk or b""
    index = index_of(pairs, checksum=checksum, order=order)
    return index + data if at_start else data + index


def coordinates(*rows):
    return np.array(rows, np.int64)


def found(store, places):
    """Return the stored bytes of chunks; None for those that are missing."""
    parts = []
    for which, offset, size in zip(places.objects, places.offsets, places.sizes, strict=True):
        data = store.objects[places.keys[which]] if which >= 0 else None
        parts.append(None if data is None else data[offset : offset + size])
    return parts


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("at_start", [False, True])
def test_a_shard(at_start, checksum, order, remote):
    how = {"at_start": at_start, "checksum": checksum, "order": order}
    objects = {
        "a/c/0/0": shard_of([b"one", b"2", None, b"", b"five!", b"6"], **how),
        "a/c/1/1": shard_of([b"A", b"B", b"C", b"D", b"E", b"F"], **how),
    }
    store = Memory(objects, remote=remote)
    grid = ShardGrid(store, KEYS, (ShardLevel((2, 3), **how),))
    rows = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (2, 0), (2, 5), (3, 4)]
    parts = found(store, grid.locate(coordinates(*rows)))
    assert parts == [b"one", b"2", None, None, b"", b"five!", b"6", None, b"C", b"E"]
    assert sorted(set(store.asked)) == ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"]
    assert {size for _, _, size in store.reads} == {6 * 16 + 4 * checksum}
    assert len(store.reads) == 2


def test_an_index_is_read_once():
    store = Memory({f"a/c/{n}": shard_of([b"x"] * 4) for n in range(3)})
    grid = ShardGrid(store, KEYS, (ShardLevel((4,)),))
    for _ in range(3):
        grid.locate(np.arange(12).reshape(-1, 1))
    assert len(store.reads) == 3


def test_what_is_kept_of_indexes_is_bounded():
    store = Memory({f"a/c/{n}": shard_of([b"x"] * 4) for n in range(3)})
    grid = ShardGrid(store, KEYS, (ShardLevel((4,)),), memory_limit=8 * 128)
    for _ in range(2):
        assert grid.locate(np.arange(12).reshape(-1, 1)).sizes.tolist() == [1] * 12
    assert len(store.reads) == 6
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        ShardGrid(store, KEYS, (ShardLevel((4,)),), 16).locate(coordinates((0,)))


def test_no_chunks_and_no_axes():
    store = Memory({"a/c": shard_of([b"only"])})
    grid = ShardGrid(store, ChunkKeys("a/c", "/", ""), (ShardLevel(()),))
    assert found(store, grid.locate(np.zeros((1, 0), np.int64))) == [b"only"]
    assert found(store, grid.locate(np.zeros((0, 0), np.int64))) == []
    grid = ShardGrid(store, KEYS, (ShardLevel((4, 4)),))
    assert grid.locate(np.zeros((0, 2), np.int64)).objects.size == 0
    assert KeyGrid(store, KEYS).locate(np.zeros((0, 2), np.int64)).objects.size == 0


@pytest.mark.parametrize("remote", [False, True])
def test_nested_shards(remote):
    """The index of an inner shard is at its place inside the outer one."""
    inner = [shard_of([b"%d%d" % (n, m) for m in range(4)]) for n in range(3)]
    other = shard_of([None, b"x", None, b"y"])
    objects = {"a/c/0": shard_of([*inner, None]), "a/c/1": shard_of([other, None, other, other])}
    store = Memory(objects, remote=remote)
    grid = ShardGrid(store, KEYS, (ShardLevel((4,)), ShardLevel((4,))))
    parts = found(store, grid.locate(np.arange(48).reshape(-1, 1)))
    first = [b"%d%d" % (n, m) for n in range(3) for m in range(4)] + [None] * 4
    some = [None, b"x", None, b"y"]
    assert parts == first + some + [None] * 4 + some + some + [None] * 16


def damaged(pair, *, size=0, **how):
    store = Memory({"a/c/0": bytes(size) + index_of([(0, 1), pair], **how)})
    grid = ShardGrid(store, KEYS, (ShardLevel((2,), **how),))
    assert grid.locate(coordinates((0,))).sizes.tolist() == [1], "the other chunk is usable"
    grid.locate(coordinates((1,)))


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize(
    "pair",
    [
        (0, 10**6),
        (10**6, 1),
        (2**63, 1),
        (1, 2**63),
        (MISSING, 1),
        (1, MISSING),
        (MISSING - 1, 2),
        (2**63, 2**63),
        (137, 1),
    ],
)
def test_chunks_outside_of_the_shard(pair, checksum):
    where = r"^memory/a/c/0: byte 116: .*chunk 1 in"
    with pytest.raises(FormatError, match=where):
        damaged(pair, size=100, checksum=checksum)


def test_the_last_byte_is_inside():
    damaged((135, 1), size=100)
    damaged((136, 0), size=100)


def test_a_wrong_checksum():
    data = bytearray(shard_of([b"abc", b"d"]))
    data[-1] ^= 1
    grid = ShardGrid(Memory({"a/c/0": data}), KEYS, (ShardLevel((2,)),))
    with pytest.raises(FormatError, match=r"^memory/a/c/0: byte 4: .*CRC-32C"):
        grid.locate(coordinates((0,)))


@pytest.mark.parametrize("size", [1, 16, 35])
def test_a_shard_that_is_cut_short(size):
    grid = ShardGrid(Memory({"a/c/0": bytes(size)}), KEYS, (ShardLevel((2,)),))
    with pytest.raises(FormatError, match=rf"^memory/a/c/0: .*{size} bytes.*36"):
        grid.locate(coordinates((0,)))


def test_a_shard_of_more_chunks_than_there_is_memory():
    grid = ShardGrid(Memory({"a/c/0": bytes(100)}), KEYS, (ShardLevel((2**55,)),))
    with pytest.raises(FormatError, match="100 bytes"):
        grid.locate(coordinates((2**55 - 1,)))


def test_a_nested_shard_that_is_cut_short():
    objects = {"a/c/0": shard_of([b"0123456789", shard_of([b"x"])])}
    grid = ShardGrid(Memory(objects), KEYS, (ShardLevel((2,)), ShardLevel((1,))))
    assert grid.locate(coordinates((1,))).sizes.tolist() == [1]
    with pytest.raises(FormatError, match="10 bytes"):
        grid.locate(coordinates((0,)))


def test_threads():
    objects = {f"a/c/{n}": shard_of([b"%d" % m for m in range(8)]) for n in range(64)}
    store = Memory(objects)
    grid = ShardGrid(store, KEYS, (ShardLevel((8,)),), memory_limit=8 * 1024)
    chunks = np.arange(512).reshape(-1, 1)
    wanted = found(store, grid.locate(chunks))
    with ThreadPoolExecutor(4) as threads:
        for places in threads.map(grid.locate, [chunks] * 8):
            assert found(store, places) == wanted


def test_keys():
    assert ChunkKeys("", ".", "0").of(coordinates((1, 2), (10, 0))) == ["1.2", "10.0"]
    assert ChunkKeys("x/", "/", "0").of(np.zeros((1, 0), np.int64)) == ["x/0"]
    store = Memory({"a/c/1/2": b"abc"})
    places = KeyGrid(store, KEYS).locate(coordinates((1, 1), (1, 2)))
    assert found(store, places) == [None, b"abc"]


class TestWrittenByZarrPython:
    @pytest.fixture(autouse=True)
    def zarr(self):
        self.zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def same(self, path, values, **how):
        array = self.zarr.create_array(
            str(path), shape=values.shape, dtype=values.dtype, zarr_format=3, **how
        )
        array[...] = values
        index = reader.read(path, Options())
        assert load(index, index.assets[0]).tolist() == values.tolist()
        return index.assets[0]

    def codec(self, chunk_shape, codecs, **how):
        return self.zarr.codecs.ShardingCodec(chunk_shape=chunk_shape, codecs=codecs, **how)

    @pytest.mark.parametrize("index", [("bytes",), ("bytes", "crc32c")])
    @pytest.mark.parametrize("location", ["start", "end"])
    def test_indexes(self, tmp_path, location, index):
        codecs = self.zarr.codecs
        made = {"bytes": codecs.BytesCodec(), "crc32c": codecs.Crc32cCodec()}
        how = {"index_location": location, "index_codecs": [made[name] for name in index]}
        serializer = self.codec((4, 3), [codecs.BytesCodec(), codecs.ZstdCodec()], **how)
        values = np.arange(20 * 13, dtype="i4").reshape(20, 13)
        values[8:16, 6:12] = 0  # a shard that is not stored
        values[0:4, 0:3] = 0  # a chunk that is not in its shard
        asset = self.same(
            tmp_path / "a", values, chunks=(8, 6), serializer=serializer, compressors=None
        )
        assert asset.chunk_shape == (4, 3)
        assert asset.codecs == ("sharding_indexed", "zstd")

    def test_nested(self, tmp_path):
        codecs = self.zarr.codecs
        plain = [codecs.BytesCodec(endian="big"), codecs.GzipCodec()]
        transposed = [codecs.TransposeCodec(order=(1, 0)), *plain]
        inner = self.codec((2, 3), transposed, index_location="start")
        outer = self.codec((4, 6), [inner])
        values = np.arange(20 * 13, dtype="i4").reshape(20, 13)
        asset = self.same(tmp_path / "a", values, chunks=(8, 6), serializer=outer, compressors=None)
        assert asset.chunk_shape == (2, 3)
        assert asset.codecs[:2] == ("sharding_indexed", "sharding_indexed")

    def test_filters_around_shards_are_left_to_zarr_python(self, tmp_path):
        codecs = self.zarr.codecs
        values = np.arange(64, dtype="i4").reshape(8, 8)
        array = self.zarr.create_array(
            str(tmp_path / "a"),
            shape=(8, 8),
            dtype="i4",
            chunks=(4, 4),
            filters=[codecs.TransposeCodec(order=(1, 0))],
            serializer=self.codec((2, 4), [codecs.BytesCodec()]),
            compressors=None,
        )
        array[...] = values
        index = reader.read(tmp_path / "a", Options())
        assert "on_unsupported" in index.assets[0].error
        assert reader.load_with_zarr(index.store).tolist() == values.tolist()


def test_metadata_of_shards(tmp_path):
    pytest.importorskip("zarr", reason="zarr-python is not installed")
    path = written(tmp_path / "a", document_3("int16", 7, codecs=[sharded([1], endian="big")]))
    (path / "c").mkdir()
    shard = shard_of([b"\x01\x00", None], order=">")
    (path / "c" / "1").write_bytes(shard)
    index = reader.read(path, Options())
    assert load(index, asset_named(index, "")).tolist() == [7, 7, 1, 7]
