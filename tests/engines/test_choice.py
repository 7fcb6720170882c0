"""Who decodes which rows, and why not another: no device, and what one could do is pretended.

Here it is about what engines can do; which of them is the fastest is in test_choice_by_speed.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuload import driver
from gpuload.chunks import Codec, make_table
from gpuload.driver import Capabilities
from gpuload.engines import nvcomp_library, rates
from gpuload.engines.choice import HARDWARE, HOST, NVCOMP, SM, choose, unavailable
from gpuload.engines.refusals import hardware_refusals, sm_refusals
from gpuload.errors import DriverError, EngineUnavailableError, UnsupportedCodecError
from gpuload.kernels import compiler
from gpuload.options import ENGINES, Options

MIB = 1 << 20
#: As a B200 says, by NVIDIA's documentation: three codecs, chunks of up to 4 MiB.
ENGINE = Capabilities(
    name="NVIDIA B200",
    compute_capability=(10, 0),
    driver_version=(13, 0),
    decompress_mask=7,
    decompress_max_length=4 * MIB,
    sparse_arrays=True,
    memory_pools=True,
    virtual_memory=True,
    host_numa_memory=True,
    host_numa_id=0,
    total_memory=180 << 30,
    multiprocessors=148,
)
DRIVER_CODECS = {Codec.DEFLATE: 1, Codec.SNAPPY: 2, Codec.LZ4: 4}


@pytest.fixture(autouse=True)
def costs(monkeypatch):
    """Have a start on a device cost more than one on the host: few chunks go there."""
    monkeypatch.setattr(rates, "START", 6e-3)
    monkeypatch.setattr(rates, "HOST_START", 0.0)


@pytest.fixture
def device(monkeypatch):
    """Return a function that says what the device can do; it starts with an engine for all."""

    def become(unavailable="", too_old="", no_kernels="", no_nvcomp="no nvCOMP", **changes):
        monkeypatch.setattr(driver, "unavailable", lambda: unavailable)
        monkeypatch.setattr(driver, "decompress_unavailable", lambda: too_old)
        monkeypatch.setattr(driver, "capabilities", lambda number: replace(ENGINE, **changes))
        monkeypatch.setattr(compiler, "refusal", lambda number: no_kernels)
        monkeypatch.setattr(nvcomp_library, "unavailable", lambda: no_nvcomp)

    become()
    return become


def rows(count=3, **columns):
    return make_table(
        range(count), **{"codec": Codec.LZ4, "raw_size": 100, "stored_size": 50} | columns
    )


def chosen(table, device_id=0, **options):
    """Return the names of the engines of all rows, and why the hardware engine was passed over.

    The rows are so few that the host is the fastest, if not for the hardware engine.
    """
    choice = choose(table, Options(**options), device_id)
    assert choice.engines.shape == table.shape
    assert choice.engines.dtype == np.uint8
    assert set(choice.passed_over) <= {"hardware", "sm", "nvcomp"}
    assert all(choice.passed_over.values())
    names = [ENGINES[number] for number in choice.engines]
    return names, choice.passed_over.get("hardware", "")


def test_numbers_are_places_in_the_list_of_engines():
    names = [ENGINES[number] for number in (HARDWARE, SM, NVCOMP, HOST)]
    assert names == ["hardware", "sm", "nvcomp", "host"]


# --- All rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "hardware"])
@pytest.mark.parametrize("trusted", [None, True])
@pytest.mark.parametrize("codec", [*DRIVER_CODECS, Codec.RAW])
def test_the_engine_takes_what_it_can(device, codec, engine, trusted):
    assert chosen(rows(codec=codec), engine=engine, trusted=trusted) == (["hardware"] * 3, "")


def test_the_host_by_name(device):
    names, reason = chosen(rows(), engine="host")
    assert names == ["host"] * 3
    assert reason == "the host engine was asked for"


@pytest.mark.parametrize("device_id", [0, None])
def test_the_host_by_name_asks_no_driver(monkeypatch, device_id):
    """It must work in a forked child, and where no driver answers."""
    for name in ("unavailable", "capabilities", "decompress_unavailable"):
        monkeypatch.setattr(driver, name, lambda *_: pytest.fail("the driver was asked"))
    assert chosen(rows(), device_id, engine="host")[0] == ["host"] * 3


#: What keeps the engine from all rows: the machine, and the reason.
REASONS = {
    "no CUDA": (
        {"unavailable": "there is no CUDA driver (libcuda.so.1 was not found)"},
        "there is no CUDA driver (libcuda.so.1 was not found)",
    ),
    "no engine": (
        {"decompress_mask": 0, "decompress_max_length": 0, "name": "NVIDIA H200"},
        "NVIDIA H200 has no decompression engine (its algorithm mask is 0)",
    ),
    "no memory to stage in": (
        {"host_numa_memory": False},
        "NVIDIA B200 cannot map memory of the host, which stages stored chunks",
    ),
    "no call": (
        {"too_old": "the driver supports CUDA 12.6; decompression in hardware came with CUDA 12.8"},
        "the driver supports CUDA 12.6; decompression in hardware came with CUDA 12.8",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_machines_that_cannot(device, name):
    machine, reason = REASONS[name]
    device(**machine)
    assert chosen(rows()) == (["host"] * 3, reason)
    with pytest.raises(EngineUnavailableError) as caught:
        chosen(rows(), engine="hardware")
    assert str(caught.value) == f"the hardware engine cannot decode this: {reason}"
    assert isinstance(caught.value, DriverError)


def test_no_device_was_named(device):
    reason = "the bytes are wanted in host memory, and no device was named"
    assert chosen(rows(), None) == (["host"] * 3, reason)
    with pytest.raises(EngineUnavailableError, match=reason):
        chosen(rows(), None, engine="hardware")


def test_input_that_is_not_trusted(device):
    reason = "it has no bounds of its own, and the input is not trusted"
    assert chosen(rows(), trusted=False) == (["host"] * 3, reason)
    with pytest.raises(EngineUnavailableError, match="the input is not trusted"):
        chosen(rows(), trusted=False, engine="hardware")


# --- Some rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", range(1, 8))
def test_codecs_without_a_bit(device, mask):
    device(decompress_mask=mask)
    for codec, bit in DRIVER_CODECS.items():
        names, reason = chosen(rows(codec=codec))
        if mask & bit:
            assert (names, reason) == (["hardware"] * 3, "")
        else:
            assert names == ["host"] * 3
            said = "the codec's bit is missing in the device's algorithm mask"
            assert reason == f"{said} ({mask:#x})"
    assert chosen(rows(codec=Codec.RAW))[0] == ["hardware"] * 3, "a copy needs no bit"


def test_codecs_that_no_engine_has(device):
    names, reason = chosen(rows(codec=Codec.ZSTD))
    assert names == ["host"] * 3
    assert reason == "the codec's bit is missing in the device's algorithm mask (0x7)"


@pytest.mark.parametrize(
    ("machine", "options", "reason"),
    [
        ({}, {"trusted": True}, "no nvCOMP"),
        ({"no_nvcomp": ""}, {}, "it may be given valid input only, and nobody says that this is"),
        ({"no_nvcomp": ""}, {"engine": "host"}, "the host engine was asked for"),
        ({"no_nvcomp": ""}, {"trusted": False}, "it has no bounds of its own, and the input is"),
    ],
)
@pytest.mark.parametrize("codecs", [[Codec.GDEFLATE] * 3, [Codec.LZ4, Codec.GDEFLATE, Codec.RAW]])
def test_codecs_that_the_host_lacks_too(device, codecs, machine, options, reason):
    """They are not sent to the host."""
    device(**machine)
    said = "^the host has no decoder for GDeflate: only nvCOMP decodes it, and not here: "
    with pytest.raises(UnsupportedCodecError, match=said + reason):
        chosen(rows(codec=codecs), **options)


def test_codecs_that_the_host_lacks_to_host_memory(device):
    reason = "and not here: the bytes are wanted in host memory, and no device was named$"
    with pytest.raises(UnsupportedCodecError, match=reason):
        chosen(rows(codec=Codec.GDEFLATE), None)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("hardware", "the codec's bit is missing in the device's algorithm mask (0x7)"),
        ("sm", "there is no kernel for the codec"),
    ],
)
def test_codecs_that_the_host_lacks_for_others_by_name(device, engine, reason):
    with pytest.raises(EngineUnavailableError) as caught:
        chosen(rows(codec=Codec.GDEFLATE), engine=engine)
    assert str(caught.value) == f"the {engine} engine cannot decode this: {reason}"


def test_serial_streams(device):
    names, reason = chosen(rows(codec=Codec.GZIP))
    assert names == ["host"] * 3
    assert reason == "one serial stream"


@pytest.mark.parametrize("side", ["raw_size", "stored_size"])
def test_long_chunks(device, side):
    device(decompress_max_length=65_536)
    table = rows(4, **{side: [65_535, 65_536, 65_537, 1 << 40]})
    names, reason = chosen(table)
    assert names == ["hardware", "hardware", "host", "host"]
    assert reason == "longer than the device's maximum of 65536 bytes (2 of 4 chunks)"


def test_long_copies_have_no_maximum(device):
    assert (
        chosen(rows(codec=Codec.RAW, raw_size=1 << 30, stored_size=1 << 30))[0] == ["hardware"] * 3
    )


def test_linked_chunks(device):
    """The first of a chain decodes on its own, but its output is the history of the next."""
    table = rows(7, chained=[False, True, True, False, False, True, False])
    names, reason = chosen(table)
    assert names == ["host", "host", "host", "hardware", "host", "host", "hardware"]
    assert reason == "linked to other chunks (5 of 7 chunks)"


@pytest.mark.parametrize("engine", ["auto", "hardware"])
def test_one_chain(device, engine):
    table = rows(5, chained=[False, True, True, True, True])
    if engine == "auto":
        assert chosen(table) == (["host"] * 5, "linked to other chunks")
    else:
        with pytest.raises(EngineUnavailableError, match=r"linked to other chunks$"):
            chosen(table, engine="hardware")


def test_dictionaries(device):
    names, reason = chosen(rows(dictionary=[False, True, False]))
    assert names == ["hardware", "host", "hardware"]
    assert reason == "a dictionary is needed (1 of 3 chunks)"


def test_every_reason_is_told(device):
    device(decompress_mask=5, decompress_max_length=1000)
    table = rows(
        6,
        codec=[Codec.LZ4, Codec.SNAPPY, Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.LZ4],
        raw_size=[10, 10, 10, 1001, 10, 10],
        dictionary=[False, False, False, False, False, True],
    )
    names, reason = chosen(table)
    assert names == ["hardware", "host", "host", "host", "host", "host"]
    assert set(reason.split("; ")) == {
        "one serial stream (1 of 6 chunks)",
        "a dictionary is needed (1 of 6 chunks)",
        "the codec's bit is missing in the device's algorithm mask (0x5) (2 of 6 chunks)",
        "longer than the device's maximum of 1000 bytes (1 of 6 chunks)",
    }


def test_some_rows_are_enough_for_an_engine_by_name(device):
    table = rows(codec=[Codec.ZSTD, Codec.LZ4, Codec.ZSTD])
    assert chosen(table, engine="hardware")[0] == ["host", "hardware", "host"]


# --- No rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "hardware", "host"])
def test_no_rows(device, engine):
    assert chosen(rows(0), engine=engine)[0] == []


def test_no_rows_and_no_engine(device):
    """There is nothing that the engine would have to decode."""
    device(decompress_mask=0)
    assert chosen(rows(0), engine="hardware")[0] == []


# --- The other engines ----------------------------------------------------------------------------


def passed_over(table, device_id=0, **options):
    return choose(table, Options(**options), device_id).passed_over


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("trusted", [None, True, False])
def test_kernels_by_name(device, codec, trusted):
    """They are bounded, and need no trust."""
    names, reason = chosen(rows(codec=codec), engine="sm", trusted=trusted)
    assert names == ["sm"] * 3
    assert reason == "the sm engine was asked for"


@pytest.mark.parametrize("codec", [Codec.DEFLATE, Codec.ZSTD])
def test_codecs_without_a_kernel(device, codec):
    with pytest.raises(EngineUnavailableError) as caught:
        chosen(rows(codec=codec), engine="sm")
    said = "the sm engine cannot decode this: there is no kernel for the codec"
    assert str(caught.value) == said
    table = rows(codec=[codec, Codec.LZ4, Codec.LZ4])
    assert chosen(table, engine="sm")[0] == ["host", "sm", "sm"]
    assert passed_over(table, engine="sm") == {
        "hardware": "the sm engine was asked for",
        "sm": "there is no kernel for the codec (1 of 3 chunks)",
        "nvcomp": "the sm engine was asked for",
    }


@pytest.mark.parametrize("side", ["raw_size", "stored_size"])
def test_chunks_that_kernels_can_not_count(side):
    table = rows(3, **{side: [(1 << 30) - 1, 1 << 30, 1 << 40]})
    refused = sm_refusals(table)
    assert refused["1073741824 bytes or longer"].tolist() == [False, True, True]


def test_rows_that_do_not_decode_on_their_own():
    table = rows(
        6,
        codec=[Codec.LZ4, Codec.LZ4, Codec.LZ4, Codec.GZIP, Codec.LZ4, Codec.LZ4],
        chained=[False, True, False, False, False, False],
        dictionary=[False, False, False, False, True, False],
    )
    reasons = {reason: mask.tolist() for reason, mask in sm_refusals(table).items() if mask.any()}
    assert reasons == {
        "linked to other chunks": [True, True, False, False, False, False],
        "one serial stream": [False, False, False, True, False, False],
        "a dictionary is needed": [False, False, False, False, True, False],
    }


#: What keeps engines from all rows: the engine, the machine, options, and the reason.
OTHERS = {
    "no kernels": ("sm", {"no_kernels": "NVRTC is missing"}, {}, "NVRTC is missing"),
    "no CUDA": ("sm", {"unavailable": "no CUDA"}, {}, "no CUDA"),
    "no CUDA for nvCOMP": ("nvcomp", {"unavailable": "no CUDA"}, {}, "no CUDA"),
    "no nvCOMP": ("nvcomp", {"no_nvcomp": "it is missing"}, {"trusted": True}, "it is missing"),
    "no pools": (
        "nvcomp",
        {"no_nvcomp": "", "memory_pools": False},
        {"engine": "nvcomp"},
        "NVIDIA B200 has no memory pools, which nvCOMP's scratch memory comes from",
    ),
    "nobody trusts it": (
        "nvcomp",
        {"no_nvcomp": ""},
        {},
        "it may be given valid input only, and nobody says that this is (trusted=True)",
    ),
    "untrusted": (
        "nvcomp",
        {"no_nvcomp": ""},
        {"engine": "nvcomp", "trusted": False},
        "it has no bounds of its own, and the input is not trusted",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_engines_that_are_not_here(device, name):
    engine, machine, options, reason = OTHERS[name]
    device(decompress_mask=0, **machine)
    assert unavailable(engine, Options(**options), 0) == reason
    if options.get("engine") != engine:
        assert passed_over(rows(), **options)[engine] == reason


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "nobody trusts it"])
def test_engines_by_name_that_are_not_here(device, name):
    engine, machine, options, reason = OTHERS[name]
    device(**machine)
    with pytest.raises(EngineUnavailableError) as caught:
        chosen(rows(), **options | {"engine": engine})
    assert str(caught.value) == f"the {engine} engine cannot decode this: {reason}"


def test_engines_are_told_of_in_their_order(device):
    device(decompress_mask=0, no_kernels="NVRTC is missing")
    assert list(passed_over(rows(), trusted=True)) == ["hardware", "sm", "nvcomp"]


def test_engines_behind_the_chosen_one_are_not_told_of(device):
    assert passed_over(rows()) == {}
    assert passed_over(rows(), engine="sm") == {"hardware": "the sm engine was asked for"}


def test_engines_that_were_found_not_to_run(device):
    choice = choose(rows(), Options(), 0, broken={"hardware": "the driver says no"})
    assert choice.passed_over["hardware"] == "the driver says no"
    assert (choice.engines == HOST).all()


# --- As one table, quickly ------------------------------------------------------------------------


def test_refusals_are_masks_of_all_rows(device):
    table = rows(1000, codec=np.resize(list(Codec), 1000))
    refused = hardware_refusals(table, ENGINE)
    assert all(mask.shape == (1000,) and mask.dtype == np.bool_ for mask in refused.values())
    assert all(reason and reason == reason.strip() for reason in refused)


def test_the_device_that_is_asked_is_the_one_that_is_named(monkeypatch, device):
    asked = []

    def capabilities(number):
        asked.append(number)
        return ENGINE

    monkeypatch.setattr(driver, "capabilities", capabilities)
    chosen(rows(), 3)
    assert set(asked) == {3}
