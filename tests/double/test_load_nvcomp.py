"""Loads to the double of a device by the double of nvCOMP: windows, trust, damage."""

from __future__ import annotations

import pytest

import gpuload
from gpuload import driver
from gpuload.engines import nvcomp, nvcomp_library
from gpuload.errors import DecompressError, EngineUnavailableError
from tests.helpers.device_loads import (
    BUILDERS,
    QUICK,
    UserArray,
    allocate,
    clean_loads,
    compressed,
    new_stream,
    read,
    text,
)
from tests.helpers.fakenvcomp import FakeNvcomp

CHUNKS, CHUNK = 300, 4096
BAD = 123
NAMES = ["lz4", "snappy", "bgzf"]
#: Of windows that may be written behind their ends.
GUARD = 200 << 20
#: What nvCOMP takes memory for; more than it gets of so small a limit.
ENOUGH = QUICK | {"memory_limit": 64 << 20}

every_format = pytest.mark.parametrize("name", NAMES)
every_trust = pytest.mark.parametrize("trusted", [None, True])


@pytest.fixture(autouse=True)
def fake(cuda, monkeypatch):
    made = FakeNvcomp(cuda, 6000)
    monkeypatch.setattr(nvcomp_library, "_candidates", lambda: [str(made.path)])
    monkeypatch.setattr(nvcomp, "raw_kernel", lambda device_id: None)
    nvcomp_library._find.cache_clear()
    with clean_loads():
        yield made
    nvcomp_library._find.cache_clear()


@pytest.fixture(scope="module")
def files():
    raw = text(CHUNKS * CHUNK + CHUNK)
    parts = [raw[at : at + CHUNK] for at in range(0, CHUNKS * CHUNK, CHUNK)]
    return {name: BUILDERS[name](parts) for name in NAMES}


def loaded(data, **options):
    with gpuload.open(data, **ENOUGH | {"device": 0, "engine": "nvcomp"} | options) as container:
        return bytes(container.load()), container.report


@every_trust
@every_format
def test_a_file(fake, files, name, trusted):
    for verify in (True, "auto"):
        found, report = loaded(files[name].data, trusted=trusted, verify=verify)
        assert found == files[name].raw
        assert report.engine == "nvcomp"
    assert fake.calls


@every_trust
def test_codecs_that_only_it_has(fake, trusted):
    raw = text(2_000_000)
    found, report = loaded(compressed(raw, "zstd", chunk_size=64 << 10), trusted=trusted)
    assert found == raw
    assert report.engine == "nvcomp"


def test_not_for_input_that_is_not_trusted(files):
    with pytest.raises(EngineUnavailableError, match="the input is not trusted"):
        loaded(files["lz4"].data, trusted=False)


@pytest.mark.parametrize(("trusted", "guarded"), [(None, True), (True, False)])
def test_only_trusted_input_is_written_where_it_belongs(monkeypatch, files, trusted, guarded):
    right, reserved = driver.mem_address_reserve, []

    def reserve(size, alignment):
        reserved.append(size)
        return right(size, alignment)

    stream, raw = new_stream(), files["snappy"].raw
    with allocate("DecompressMemory", len(raw), stream) as address:
        monkeypatch.setattr(driver, "mem_address_reserve", reserve)
        options = {"engine": "nvcomp", "device": 0, "trusted": trusted, **ENOUGH}
        with gpuload.open(files["snappy"].data, **options) as container:
            container.load(out=UserArray(address, len(raw)))
        assert (max(reserved) > GUARD) == guarded
        assert read(address, len(raw), stream) == raw
    stream.close()


@pytest.mark.parametrize("name", ["lz4", "snappy"])
def test_damage_is_confirmed_by_the_host(files, name):
    with pytest.raises(DecompressError) as caught:
        loaded(files[name].spoilt(BAD))
    [failure] = caught.value.failures
    assert failure.chunk == BAD
    assert failure.reason.startswith("nvCOMP reports ")


@pytest.mark.parametrize("verify", [True, "auto"])
def test_taken_by_itself_only_where_the_input_is_trusted(cuda, verify):
    cuda.settings.algorithm_mask = cuda.settings.maximum_length = 0
    raw = text(60_000_000)
    data = compressed(raw, "zstd", chunk_size=64 << 10)
    found, report = loaded(data, engine="auto", verify=verify, trusted=True)
    assert found == raw
    assert report.engine == "nvcomp"
    assert set(report.passed_over) == {"hardware", "sm"}
    with gpuload.open(data, device=0) as container:
        assert container.explain()[0].engine == "host"
