"""The options: defaults, what is refused, and the limits that follow from them."""

from __future__ import annotations

import dataclasses
import os

import pytest

import gpuload
from gpuload.options import (
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_WINDOW_LIMIT,
    MAX_OUTPUT_FLOOR,
    Options,
    available_cpus,
)

GIB = 1 << 30


def test_defaults():
    options = Options()
    assert options == Options(
        engine="auto",
        verify="auto",
        threads=None,
        memory_limit=384 << 20,
        max_output=None,
        window_limit=128 << 20,
        dictionary=None,
        strict=False,
        way="auto",
    )
    assert (DEFAULT_MEMORY_LIMIT, DEFAULT_WINDOW_LIMIT) == (384 << 20, 128 << 20)


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().threads = 2


def test_is_public():
    assert gpuload.Options is Options


@pytest.mark.parametrize("name", ["threads", "memory_limit", "window_limit"])
@pytest.mark.parametrize("value", [0, -1, -(2**63)])
def test_positive_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive, not {value}"):
        Options(**{name: value})


def test_max_output_may_be_zero():
    assert Options(max_output=0).output_limit(10**9) == 0
    with pytest.raises(ValueError, match="max_output"):
        Options(max_output=-1)


@pytest.mark.parametrize("name", ["threads", "max_output"])
def test_numbers_that_may_be_left_out(name):
    assert getattr(Options(**{name: None}), name) is None


@pytest.mark.parametrize("value", ["yes", "", "AUTO", None, 2, [], b"auto"])
def test_verify_is_one_of_three(value):
    with pytest.raises(ValueError, match="verify must be True, False or 'auto'"):
        Options(verify=value)


@pytest.mark.parametrize("value", ["auto", True, False])
def test_verify(value):
    assert Options(verify=value).verify is value


@pytest.mark.parametrize("value", ["", "HOST", "cuda", "nonsense", None])
def test_unknown_engines(value):
    """A name that is misspelt must not be taken for "auto"; the message lists the names."""
    with pytest.raises(ValueError, match=r"engine.*host"):
        Options(engine=value)


@pytest.mark.parametrize("value", ["auto", "host"])
def test_engines(value):
    assert Options(engine=value).engine == value


@pytest.mark.parametrize("value", ["", "ignore", None, True])
def test_unknown_on_error(value):
    with pytest.raises(ValueError, match=r"on_error.*skip"):
        Options(on_error=value)


@pytest.mark.parametrize("name", ["threads", "memory_limit", "max_output", "window_limit"])
@pytest.mark.parametrize("value", ["4", 2.5, b"1"])
def test_numbers_are_integers(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        Options(**{name: value})


@pytest.mark.parametrize("value", ["words", 7, ["words"]])
def test_a_dictionary_is_bytes(value):
    """A file name, say, must not be taken for the dictionary's content."""
    with pytest.raises((TypeError, ValueError), match="dictionary"):
        Options(dictionary=value)


def test_unknown_option():
    with pytest.raises(TypeError, match="colour"):
        Options(colour="blue")


@pytest.mark.parametrize(
    ("input_size", "limit"),
    [
        (0, GIB),
        (1, GIB),
        (GIB // 100, GIB),
        (GIB // 100 + 1, 100 * (GIB // 100 + 1)),
        (GIB, 100 * GIB),
    ],
)
def test_default_output_limit(input_size, limit):
    """A hundred times the input, and 1 GiB at least."""
    assert MAX_OUTPUT_FLOOR == GIB
    assert Options().output_limit(input_size) == limit


def test_output_limit_that_was_chosen():
    assert Options(max_output=5).output_limit(10**9) == 5


def test_threads():
    assert Options(threads=7).thread_count == 7
    assert Options().thread_count == available_cpus()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_available_cpus_are_those_of_this_process():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert available_cpus() == len(allowed)


def test_available_cpus_without_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert available_cpus() == (os.cpu_count() or 1)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus() == 1
