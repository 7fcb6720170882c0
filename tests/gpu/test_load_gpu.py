"""Loads to a real device: exact bytes, the engines in turn, other libraries, threads, leaks."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

import gpuload
from gpuload import driver
from gpuload.errors import GpuloadError
from gpuload.kernels import compiler
from tests.conftest import corpus_entries, corpus_folder

pytestmark = pytest.mark.gpu

DEVICE = 0


def text(size):
    line = b"the same words, and a number: %d\n"
    return b"".join(line % n for n in range(size // 30))[:size]


@pytest.fixture
def lz4_file(tmp_path):
    """A file of 64 independent LZ4 blocks, with its content."""
    raw = text(4 << 20)
    path = tmp_path / "text.lz4"
    gpuload.compress(raw, path, codec="lz4")
    return path, raw


@pytest.mark.parametrize("verify", [True, "auto"])
@pytest.mark.parametrize("entry", corpus_entries("stream"), ids=lambda entry: entry["file"])
def test_corpus(entry, verify):
    outcomes = {entry["expect"], entry.get("also_accept", entry["expect"])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gpuload.errors.FormatWarning)
        try:
            with gpuload.open(corpus_folder() / entry["file"], verify=verify) as container:
                array = container.load(device=DEVICE)
                unverified = container.report.unverified
        except GpuloadError:
            assert "error" in outcomes
            return
    if verify == "auto" and unverified:
        return  # a checksum may be wrong
    assert "ok" in outcomes
    hashes = [entry.get("sha256"), *entry.get("also_sha256", [])]
    assert array.device == f"cuda:{DEVICE}"
    assert hashlib.sha256(bytes(array)).hexdigest() in hashes


def test_a_gpu_is_the_default_destination(lz4_file):
    path, raw = lz4_file
    array = gpuload.load(path)
    assert array.device == "cuda:0"
    assert bytes(array) == raw


def test_a_device_without_an_engine_says_so_and_others_decode(lz4_file):
    if driver.capabilities(DEVICE).decompress_mask:
        pytest.skip("this device has a decompression engine")
    path, raw = lz4_file
    with gpuload.open(path) as container:
        assert bytes(container.load(device=DEVICE)) == raw
        assert container.report.engine in ("sm", "host")
        assert "mask is 0" in container.report.passed_over["hardware"]
        assert "mask is 0" in container.explain()[0].passed_over["hardware"]
        with pytest.raises(gpuload.errors.EngineUnavailableError, match="mask is 0"):
            gpuload.load(path, device=DEVICE, engine="hardware")


@pytest.mark.parametrize("codec", ["lz4", "snappy", "gzip"])
def test_the_drivers_refusal_leads_to_the_next_engine(tmp_path, monkeypatch, codec):
    """The real call, with a correct batch in real memory, on a device without an engine."""
    known = driver.capabilities(DEVICE)
    if known.decompress_mask:
        pytest.skip("this device has a decompression engine")
    claimed = dataclasses.replace(known, decompress_mask=7, decompress_max_length=4 << 20)
    monkeypatch.setattr(driver, "capabilities", lambda _: claimed)
    raw = text(64 << 20)
    gpuload.compress(raw, tmp_path / "file", codec=codec)
    kernels = codec != "gzip" and not compiler.refusal(DEVICE)
    with gpuload.open(tmp_path / "file") as container:
        assert bytes(container.load(device=DEVICE)) == raw
        assert container.report.engine == ("sm" if kernels else "host")
        assert "CUDA_ERROR_NOT_SUPPORTED (801)" in container.report.passed_over["hardware"]


@pytest.mark.hwdecomp
@pytest.mark.parametrize("entry", corpus_entries("stream"), ids=lambda entry: entry["file"])
def test_corpus_on_a_real_engine(entry):
    if not driver.capabilities(DEVICE).decompress_mask:
        pytest.skip("this device has no decompression engine")
    test_corpus(entry, verify=True)


def test_torch_takes_it_without_a_copy(lz4_file):
    torch = pytest.importorskip("torch")
    path, raw = lz4_file
    array = gpuload.load(path, device=DEVICE)
    tensor = torch.from_dlpack(array)
    address = array.__cuda_array_interface__["data"][0]
    assert tensor.data_ptr() == address
    assert tensor.device == torch.device("cuda", DEVICE)
    assert torch.as_tensor(array, device="cuda").data_ptr() == address
    del array
    assert tensor.cpu().numpy().tobytes() == raw


def test_cupy_takes_it_without_a_copy(lz4_file):
    cupy = pytest.importorskip("cupy")
    path, raw = lz4_file
    array = gpuload.load(path, device=DEVICE)
    address = array.__cuda_array_interface__["data"][0]
    for taken in (cupy.from_dlpack(array), cupy.asarray(array)):
        assert taken.data.ptr == address
        assert cupy.asnumpy(taken).tobytes() == raw


def test_jax_takes_it_without_a_copy(lz4_file, monkeypatch):
    # Else JAX takes most of the memory for itself.
    monkeypatch.setitem(os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    path, raw = lz4_file
    array = gpuload.load(path, device=DEVICE)
    taken = jax.dlpack.from_dlpack(array)
    assert taken.unsafe_buffer_pointer() == array.__cuda_array_interface__["data"][0]
    assert np.asarray(taken).tobytes() == raw


def test_a_tensor_and_a_stream_of_torch_as_destination(lz4_file):
    torch = pytest.importorskip("torch")
    path, raw = lz4_file
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out = torch.full((len(raw),), 0xCD, dtype=torch.uint8, device="cuda")
        gpuload.load(path, out=out, stream=stream)
        assert out.cpu().numpy().tobytes() == raw
    with pytest.raises(ValueError, match="out holds"):
        gpuload.load(path, out=out[:-1])
    with pytest.raises(ValueError, match="int16"):
        gpuload.load(path, out=out.view(torch.int16))
    with pytest.raises(ValueError, match="contiguous"):
        gpuload.load(path, out=out[::2])


def test_two_threads_and_two_streams_at_once(lz4_file, device):
    path, raw = lz4_file
    results = {}

    def work(number):
        device.set_current()
        stream = device.create_stream()
        for _ in range(20):
            results[number] = bytes(gpuload.load(path, device=DEVICE, stream=stream)) == raw
            if not results[number]:
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: True, 1: True}


@pytest.mark.slow
def test_a_thousand_loads_leak_nothing(tmp_path, device):
    raw = text(256 << 10)
    path = tmp_path / "small.lz4"
    gpuload.compress(raw, path, codec="lz4")
    for _ in range(20):
        gpuload.load(path, device=DEVICE)
    device.sync()
    before = driver.memory_info(DEVICE)[0]
    for _ in range(1000):
        array = gpuload.load(path, device=DEVICE)
    device.sync()
    assert bytes(array) == raw
    after = driver.memory_info(DEVICE)[0]
    assert before - after <= 2 << 20


def test_a_forked_child_gets_a_clear_error(lz4_file):
    # In a process of its own: other libraries of this one have threads, and warn of forks.
    script = """
        import os, sys
        import gpuload
        array = gpuload.load(sys.argv[1], device=0)
        child = os.fork()
        if not child:
            try:
                gpuload.load(sys.argv[1], device=0)
            except gpuload.errors.DriverError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    command = [sys.executable, "-c", textwrap.dedent(script), lz4_file[0]]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def test_an_event_may_be_destroyed_without_a_current_context(device, stream):
    event = stream.record()
    driver_answers = []

    def work():
        event.close()
        driver_answers.append(event.is_closed if hasattr(event, "is_closed") else True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert driver_answers == [True]
