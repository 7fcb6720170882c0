"""Every zip, npz and safetensors file of the corpus, by the reference loader."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from gpuload.containers import npz, safetensors
from gpuload.containers import zip as zip_file
from gpuload.errors import GpuloadError
from gpuload.options import Options
from gpuload.sources import LocalFile
from tests.conftest import corpus_entries, corpus_folder
from tests.containers.array_reading import DamagedError, asset_named, load

if TYPE_CHECKING:
    from gpuload.containers.array import ArrayIndex

READERS = {"zip": zip_file.read, "npz": npz.read, "safetensors": safetensors.read}
ENTRIES = [entry for entry in corpus_entries("container") if entry["format"] in READERS]
#: Files of the whole corpus.
WHOLE = {"zip": 22, "npz": 9, "safetensors": 9}


def outcome(index: ArrayIndex, name: str) -> str:
    """Return the SHA-256 of an array, or "error"."""
    try:
        return hashlib.sha256(load(index, asset_named(index, name)).tobytes()).hexdigest()
    except (GpuloadError, DamagedError):
        return "error"


def accepted(expected: dict, entry: dict) -> set[str]:
    digest = expected.get("sha256_native", expected.get("sha256", "error"))
    return {digest, entry.get("also_accept", digest).replace("ok", digest)}


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["file"] for entry in ENTRIES])
def test_file(entry):
    expected = entry.get("arrays", entry.get("members", []))
    if entry["format"] == "safetensors":
        pytest.importorskip("ml_dtypes")
    try:
        index = READERS[entry["format"]](LocalFile(corpus_folder() / entry["file"]), Options())
    except GpuloadError as error:
        told = f"{error}"
        assert "error" in (entry["expect"], entry.get("also_accept")), told
        assert not any("sha256" in each for each in expected) or "also_accept" in entry, told
        assert entry["file"] in told, "the message names the file"
        return
    with index.store:
        found = {asset.name for asset in index.assets}
        assert found == {each["name"] for each in expected}
        outcomes = {each["name"]: outcome(index, each["name"]) for each in expected}
        for each in expected:
            asset = asset_named(index, each["name"])
            assert outcomes[each["name"]] in accepted(each, entry), each["name"]
            if "shape" in each and outcomes[each["name"]] != "error":
                assert asset.shape == tuple(each["shape"])
                assert asset.dtype.name == _type_name(each["dtype"])
        failed = "error" in outcomes.values()
        assert failed == (entry["expect"] == "error") or "also_accept" in entry


def _type_name(text: str) -> str:
    import numpy as np

    return text if text == "bfloat16" else np.dtype(text).name


def test_the_corpus_is_whole():
    if corpus_folder().parent.name == "tests":
        pytest.skip("the whole corpus is not beside this checkout; the small copy was used")
    counts = {name: sum(e["format"] == name for e in ENTRIES) for name in READERS}
    assert counts == WHOLE
