"""Groups, consolidated metadata, and metadata that is broken."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import warnings

import numpy as np
import pytest

from gpuload.containers import zarr as reader
from gpuload.errors import FormatError, GpuloadError, MemoryLimitError, MissingDependencyError
from gpuload.options import Options
from tests.containers.zarr_files import document_2, document_3, sharded, written
from tests.containers.zarr_reading import DamagedError, asset_named, load

zarr = pytest.importorskip("zarr", reason="zarr-python is not installed")

GROUP_2 = {"zarr_format": 2}
GROUP_3 = {"zarr_format": 3, "node_type": "group", "attributes": {}}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def read(path, **options):
    return reader.read(path, Options(**options))


def hierarchy(path, version):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.create_group(str(path), zarr_format=version, overwrite=True)
        for number, name in enumerate(["b", "a", "g/c", "g/h/d"]):
            array = root.create_array(name, shape=(5,), chunks=(2,), dtype="i2")
            array[...] = number
        root.create_group("empty/er")
    return path


def check(path, consolidated):
    with read(path).store as store:
        index = reader.read(store, Options())
        assert index.format == "zarr"
        assert index.details["consolidated"] is consolidated
        assert [asset.name for asset in index.assets] == ["a", "b", "g/c", "g/h/d"]
        for number, name in enumerate(["b", "a", "g/c", "g/h/d"]):
            assert load(index, asset_named(index, name)).tolist() == [number] * 5


@pytest.mark.parametrize("version", [2, 3])
def test_groups_are_listed(tmp_path, version):
    check(hierarchy(tmp_path / "g", version), consolidated=False)


@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata(tmp_path, version):
    path = hierarchy(tmp_path / "g", version)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path))
    for file in [*path.rglob(".zarray"), *path.glob("*/**/zarr.json")]:
        file.unlink()
    check(path, consolidated=True)


@pytest.mark.parametrize("version", [2, 3])
def test_an_inner_group_is_opened_by_its_path(tmp_path, version):
    path = hierarchy(tmp_path / "g", version)
    assert [asset.name for asset in read(path / "g").assets] == ["c", "h/d"]
    assert [asset.name for asset in read(path / "g" / "c").assets] == [""]
    assert read(path / "empty").assets == []


def test_what_is_zarr(tmp_path):
    assert reader.is_zarr(hierarchy(tmp_path / "g", 2))
    assert reader.is_zarr(hierarchy(tmp_path / "g", 3) / "g")
    assert not reader.is_zarr(tmp_path)
    with pytest.raises(FormatError, match="no Zarr group or array"):
        read(tmp_path)


@pytest.mark.parametrize("document", [document_2, document_3])
def test_a_broken_array_leaves_the_others_alone(tmp_path, document):
    version = 2 if document is document_2 else 3
    path = hierarchy(tmp_path / "g", version)
    kind = "<i4" if version == 2 else "int32"
    bad = written(path / "bad", document(kind, 0))
    file = next(iter(bad.iterdir()))
    for text in (b"", b"[]", b"{", b"\xff", b"null", b'{"a": 1}', b"[" * 10**5, b"1" * 10**5):
        file.write_bytes(text)
        index = read(path)
        asset = asset_named(index, "bad")
        assert asset.error.startswith(f"{file}: ")
        assert asset.grid is None
        assert load(index, asset_named(index, "a")).tolist() == [1] * 5
        file.unlink()
        file.write_bytes(text)
        with pytest.raises(FormatError, match="bad/"):
            read(bad)


BROKEN = {
    "shape": [[-1], [1.5], [True], "x", None, {}, [4, 4], [2**70], [1] * 40, 4],
    "chunks": [[0], [-1], [2, 2], "x", None, [2**70], [1.0]],
    "chunk_grid": [
        {"name": "regular"},
        {"name": "regular", "configuration": {"chunk_shape": [0]}},
        {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        {"name": "regular", "configuration": {"chunk_shape": [2**70]}},
        {"name": "regular", "configuration": []},
        {"configuration": {}},
        7,
        None,
    ],
    "chunk_key_encoding": [{"name": "v2", "configuration": {"separator": "-"}}, 3, {"name": 3}],
    "dimension_separator": ["-", 3, ["."], None],
    "order": ["A", 1, None, ["C"]],
    "filters": [3, [3], [{}], [{"id": 3}], {"id": "delta"}, [{"id": "delta", "dtype": "<q9"}]],
    "compressor": [3, {}, {"id": None}, [], "zlib"],
    "codecs": [
        [],
        {},
        3,
        [3],
        [{}],
        [LITTLE, LITTLE],
        [{"name": "gzip"}, LITTLE],
        [{"name": "bytes"}],
        [{"name": "bytes", "configuration": {"endian": "middle"}}],
        [{"name": "transpose", "configuration": {"order": [1]}}, LITTLE],
        [{"name": "transpose", "configuration": {"order": "F"}}, LITTLE],
        [{"name": "transpose"}, LITTLE],
        [LITTLE, {"name": "transpose", "configuration": {"order": [0]}}],
        [LITTLE, {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}],
        [sharded([3])],
        [sharded([0])],
        [sharded([1, 1])],
        [sharded([1], index=())],
        [sharded([1], location="middle")],
        [sharded([1], endian="middle")],
        [sharded([1], codecs=[{"name": "gzip"}])],
    ],
    "data_type": [3, None, [], {}, {"names": ["a"], "formats": ["<i4"]}],
    "dtype": [3, None, {}],
    "dimension_names": [["a", "b"], 3],
    "zarr_format": [4, "3", None, [3]],
    "node_type": ["arrays", None],
    "storage_transformers": [3],
}


@pytest.mark.parametrize("document", [document_2, document_3])
@pytest.mark.parametrize("key", BROKEN)
def test_broken_metadata(tmp_path, document, key):
    whole = document("<i4" if document is document_2 else "int32", 0)
    if key not in whole and key not in {"dimension_separator", "dimension_names", "filters"}:
        return
    if document is document_3 and key in {"dimension_separator", "filters"}:
        return
    if document is document_2 and key == "dimension_names":
        return
    file = ".zarray" if document is document_2 else "zarr.json"
    path = written(tmp_path / "a", whole)
    for value in BROKEN[key]:
        (path / file).write_text(json.dumps(whole | {key: value}))
        with pytest.raises(FormatError, match=rf"a/{file}: "):
            read(path)


@pytest.mark.parametrize("document", [document_2, document_3])
def test_missing_keys(tmp_path, document):
    whole = document("<i4" if document is document_2 else "int32", 0)
    optional = {"fill_value", "order", "filters"} if document is document_2 else {"attributes"}
    file = ".zarray" if document is document_2 else "zarr.json"
    for key in set(whole) - optional:
        path = written(tmp_path / "a", whole)
        (path / file).write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
        with pytest.raises(FormatError, match=rf"a/{file}: "):
            read(path)


UNSUPPORTED = {
    "data_type": ["int4", "string", {"name": "vlen-bytes"}, "<i4", "r7", "float32x", "O"],
    "chunk_grid": [{"name": "rectilinear", "configuration": {}}],
    "chunk_key_encoding": [{"name": "fanout", "configuration": {}}],
    "storage_transformers": [[{"name": "other"}]],
    "other": [1, {"must_understand": True}],
    "codecs": [
        [sharded([2]), {"name": "gzip"}],
        [{"name": "numcodecs.pcodec"}],
        [sharded([2], index=("bytes", "gzip"))],
        [sharded([2], codecs=[LITTLE, {"name": "numcodecs.bz2"}])],
        [LITTLE, {"name": "zlib"}],
        [{"name": "delta", "configuration": {"dtype": "<i4"}}, LITTLE],
    ],
}


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_is_not_supported(tmp_path, key):
    for value in UNSUPPORTED[key]:
        path = written(tmp_path / "a", document_3("int32", 0) | {key: value})
        (asset,) = read(path).assets
        assert asset.error
        assert asset.grid is None


def test_optional_extensions(tmp_path):
    more = {"other": {"must_understand": False}, "dimension_names": [None]}
    (asset,) = read(written(tmp_path / "a", document_3("int32", 0, **more))).assets
    assert asset.error == ""


def test_short_names(tmp_path):
    more = {"chunk_key_encoding": "default", "codecs": [LITTLE, "crc32c"]}
    (asset,) = read(written(tmp_path / "a", document_3("int32", 0, **more))).assets
    assert asset.codecs == ("crc32c",)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc", "a//b", "a\0b", "\ud800"])
@pytest.mark.parametrize("version", [2, 3])
def test_names_stay_inside(tmp_path, name, version):
    out = written(tmp_path / "out", document_2("<i4", 0))
    (out / "0").write_bytes(bytes(8))
    path = tmp_path / "g"
    path.mkdir()
    if version == 2:
        told = {f"{name}/.zarray": document_2("<i4", 0), "good/.zarray": document_2("<i4", 1)}
        root = {"zarr_consolidated_format": 1, "metadata": told}
        (path / ".zmetadata").write_text(json.dumps(root))
    else:
        told = {name: document_3("int32", 0), "good": document_3("int32", 1)}
        inline = {"kind": "inline", "must_understand": False, "metadata": told}
        (path / "zarr.json").write_text(json.dumps(GROUP_3 | {"consolidated_metadata": inline}))
    index = read(path)
    assert "points out" in asset_named(index, name).error
    assert load(index, asset_named(index, "good")).tolist() == [1] * 4


def test_broken_consolidated_metadata(tmp_path):
    for told in (3, {"kind": "other"}, {"kind": "inline"}, {"kind": "inline", "metadata": []}):
        (tmp_path / "zarr.json").write_text(json.dumps(GROUP_3 | {"consolidated_metadata": told}))
        with pytest.raises(FormatError, match=r"zarr\.json"):
            read(tmp_path)
    (tmp_path / "zarr.json").unlink()
    for told in ({}, {"zarr_consolidated_format": 2}, {"zarr_consolidated_format": 1}):
        (tmp_path / ".zmetadata").write_text(json.dumps(told))
        with pytest.raises(FormatError, match=r"\.zmetadata"):
            read(tmp_path)


def test_links_in_circles_end(tmp_path):
    path = hierarchy(tmp_path / "g", 3)
    (path / "g" / "again").symlink_to(path / "g")
    index = read(path)
    assert {"a", "g/c", "g/again/c"} <= {asset.name for asset in index.assets}
    assert any("not looked into" in warning for warning in index.warnings)
    (path / "g" / "more").symlink_to(path / "g")
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        read(path, memory_limit=1 << 20)


def test_too_much_metadata(tmp_path):
    path = written(tmp_path / "a", document_3("int32", 0, attributes={"a": "x" * 10**6}))
    with pytest.raises(MemoryLimitError, match=r"zarr\.json.*memory_limit"):
        read(path, memory_limit=1 << 20)


def test_elements_that_are_too_large(tmp_path):
    for kind in ("<U2000000000", "|S2000000000", "|V2000000000", "|S0"):
        (asset,) = read(written(tmp_path / "a", document_2(kind, None))).assets
        assert asset.error


def test_without_zarr_python(tmp_path, monkeypatch):
    path = written(tmp_path / "a", document_3("int32", 0))
    for name in [name for name in sys.modules if name.partition(".")[0] == "zarr"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(MissingDependencyError, match=r"gpuload\[zarr\]"):
        read(path)
    with pytest.raises(MissingDependencyError, match=r"gpuload\[zarr\]"):
        reader.zarr_array(path)


def test_without_ml_dtypes_other_arrays_are_fine(tmp_path, monkeypatch):
    written(tmp_path / "g", GROUP_3)
    (tmp_path / "g" / "zarr.json").write_text(json.dumps(GROUP_3))
    written(tmp_path / "g" / "a", document_3("bfloat16", 0))
    written(tmp_path / "g" / "b", document_3("int32", 0))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    a, b = read(tmp_path / "g").assets
    assert "ml_dtypes" in a.error
    assert b.error == ""


# Mutations

WHOLE = [
    document_2("<i4", 0, filters=[{"id": "delta", "dtype": "<i4"}], compressor={"id": "zlib"}),
    document_2(">f8", "NaN", order="F", dimension_separator="/", compressor={"id": "blosc"}),
    document_3("float32", "0x7fc00000", codecs=[LITTLE, {"name": "zstd"}, {"name": "crc32c"}]),
    document_3("int16", 3, codecs=[sharded([1], [sharded([1]), {"name": "gzip"}])]),
    document_3("complex64", [0, "NaN"], codecs=[sharded([1], location="start", index=("bytes",))]),
]
STRANGE = [None, True, -1, 0, 1, 2**63, 2**64, 10**30, 1.5, 1e400, "", "x", "NaN", "|O", "\ud800"]
STRANGE += [[], {}, [[]], [0], [-1], [2**62] * 3, {"name": "x"}, {"id": "x"}, "bytes", "<i4"]


def places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inside:
            yield from places(each, (*path, key))


def mutated(document, rng):
    copy = json.loads(json.dumps(document))
    path = rng.choice([p for p in places(copy) if p])
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    if rng.random() < 0.2:
        del holder[path[-1]]
    else:
        holder[path[-1]] = rng.choice([*STRANGE, document])
    return copy


@pytest.mark.parametrize("number", range(len(WHOLE)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mutated_metadata(tmp_path, number):
    rng, document = random.Random(number), WHOLE[number]
    file = written(tmp_path / "a", document) / (".zarray" if number < 2 else "zarr.json")
    for key in ("0", "1", "c/0", "c/1"):
        (tmp_path / "a" / key).parent.mkdir(exist_ok=True)
        (tmp_path / "a" / key).write_bytes(rng.randbytes(60))
    for _ in range(400):
        changed = mutated(mutated(document, rng) if rng.random() < 0.5 else document, rng)
        file.write_text(json.dumps(changed))
        explored(tmp_path / "a")


@pytest.mark.parametrize("number", range(len(WHOLE)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mutated_text(tmp_path, number):
    rng, document = random.Random(number), WHOLE[number]
    file = written(tmp_path / "a", document) / (".zarray" if number < 2 else "zarr.json")
    text = file.read_bytes()
    for _ in range(400):
        changed = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice(b'0123456789[]{}",:-.ex\xff')
        file.write_bytes(changed)
        explored(tmp_path / "a")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mutated_consolidated_metadata(tmp_path, version):
    rng = random.Random(version)
    for _ in range(400):
        document = mutated(rng.choice(WHOLE[:2] if version == 2 else WHOLE[2:]), rng)
        if version == 2:
            file, told = ".zmetadata", {"x/.zarray": document, ".zgroup": GROUP_2}
            root = {"zarr_consolidated_format": 1, "metadata": told}
        else:
            file, told = "zarr.json", {"x": document, "g": GROUP_3}
            root = GROUP_3 | {"consolidated_metadata": {"kind": "inline", "metadata": told}}
        (tmp_path / file).write_text(json.dumps(mutated(root, rng) if rng.random() < 0.5 else root))
        explored(tmp_path)


def explored(path):
    """Read arrays; GpuloadErrors, and chunks that do not decode, are fine."""
    with contextlib.suppress(GpuloadError):
        index = read(path)
        for asset in index.assets:
            assert asset.error or len(asset.fill) == asset.dtype.itemsize
            with contextlib.suppress(GpuloadError, DamagedError):
                tried(index, asset)


def tried(index, asset):
    small = all(n < 100 for n in asset.shape)
    if asset.grid and small and np.prod(asset.chunk_shape, dtype=float) < 10**4:
        load(index, asset)
    elif asset.grid:
        asset.grid.locate(np.zeros((1, len(asset.shape)), np.int64))
