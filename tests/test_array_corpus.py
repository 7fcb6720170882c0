"""Every file of arrays of the corpus: the elements that its manifest promises, or an error."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import gpuload
from gpuload.errors import GpuloadError
from tests.conftest import corpus_entries, corpus_folder

pytest.importorskip("zarr", reason="zarr is not installed")

FORMATS = ("zarr", "npz", "zip", "safetensors")
ENTRIES = [entry for entry in corpus_entries("container") if entry["format"] in FORMATS]
#: Where they are loaded to; the tests on the double and on GPUs have others.
HOST = {"device": "cpu"}


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def allowed(entry: dict) -> set[str]:
    return {entry["expect"], entry.get("also_accept", entry["expect"])}


def loaded(container, wanted: dict, where: dict) -> np.ndarray:
    array = container.load(wanted["name"], **where)
    assert str(array.device) != "cpu" or where["device"] == "cpu"
    return array.to_host()


def assert_as_promised(entry: dict, where: dict, **options) -> None:
    """Load every array of a file, and compare it with the manifest."""
    wanted = entry.get("arrays") or entry.get("members") or []
    try:
        container = gpuload.open(corpus_folder() / entry["file"], **options)
    except GpuloadError:
        assert "error" in allowed(entry)
        return
    with container:
        failed = 0
        for array in wanted:
            failed += not _is_as_promised(container, array, allowed(entry), where)
        if not wanted:
            failed = _all_fail(container, where)
        assert failed or "ok" in allowed(entry)


def _is_as_promised(container, wanted: dict, either: set[str], where: dict) -> bool:
    try:
        found = loaded(container, wanted, where)
    except (GpuloadError, KeyError):
        assert wanted.get("expect") == "error" or "error" in either, wanted["name"]
        return False
    if wanted.get("expect") == "error":
        assert "ok" in either, f"{wanted['name']} should have been refused"
        return True
    assert digest(found) in (wanted["sha256"], wanted.get("sha256_native")), wanted["name"]
    assert list(found.shape) == wanted.get("shape", [wanted.get("size")])
    dtype = wanted.get("dtype", "|u1")
    assert found.dtype.name == dtype or found.dtype == np.dtype(dtype).newbyteorder("=")
    return True


def _all_fail(container, where: dict) -> bool:
    """Return whether a file whose manifest names no arrays has one that does not load."""
    failed = False
    for name in container:
        try:
            loaded(container, {"name": name}, where)
        except GpuloadError:
            failed = True
    return failed


@pytest.mark.filterwarnings("ignore::gpuload.errors.FormatWarning")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_on_the_host(entry):
    assert_as_promised(entry, HOST)
