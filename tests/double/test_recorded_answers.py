"""The double says what a real driver said: H200, driver 580.159.04, CUDA 13.0.

probe/ asks the questions; recorded.json holds the answers. Where the double differs on purpose,
the difference stands below with its reason.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.double.probe import faults, launches
from tests.double.probe.__main__ import MODULES
from tests.double.probe.asking import GROUPS, Driver

RECORDED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("recorded.json").read_text()
)
for _module in MODULES:
    importlib.import_module(f"tests.double.probe.{_module}")

#: The process crashed on these; the double answers, and complains of the program.
CRASHES = {
    "copies_reserved": "takes a dead address for the host's",
    "copies_freed": "takes a dead address for the host's",
    "destroyed_stream": "was destroyed",
    "released_handle": "is no allocation handle",
    "bad_context": "is no context",
    "bad_stream": "was never made",
    "kernels_bad_handle": "was never made",
    "kernels_unloaded_kernel": "was unloaded",
    "kernels_unloaded_library": "was unloaded",
}

#: A forked child's calls on existing streams and events "work" or hang; the double refuses all.
CHILD_REFUSED = 3

STRICTER: dict[tuple[str, str], tuple[Any, str]] = {
    ("destroyed_event", "query"): (400, "709 is what happened to lie there"),
    ("destroyed_event", "synchronise"): (400, "the same"),
    ("destroyed_event", "destroy"): (400, "the same"),
    ("call_in_host_function", "cuMemAlloc, cuStreamQuery, cuDriverGetVersion"): (
        [800, 800, 0],
        "the documentation forbids every call there; the driver lets cuStreamQuery pass",
    ),
    ("kernels_unloaded_library", "get"): (
        400,
        "500 is what happened to lie there; to unload it again crashes",
    ),
    ("accounting", "at the beginning"): (0, "a context of the double takes no memory"),
}

#: What correct programs do not do, but these questions are about.
COMPLAINED = {
    "allocations": "freed twice or never allocated",
    "call_in_host_function": "called by a host function",
    "destroyed_event": "was destroyed",
    "forked_child": "in a forked child hangs",
    "kernels_after_fault": "raw_32: read 16 bytes",
    "mapping": "nothing was mapped",
    "pools": "freed twice or never allocated",
    "released_too_often": "freed twice or never allocated",
    "kernels_unloaded_function": "was unloaded",
    **dict.fromkeys(launches.FAULTING, "raw_32: "),
    **CRASHES,
}


@pytest.fixture
def answers(cuda, monkeypatch):
    """Return a function that asks the double the questions of a group."""
    cuda.settings.be_h200()
    monkeypatch.setattr(faults, "break_context", lambda _, stream: cuda.queue_fault(stream))
    retained = {context: context.retained for context in cuda.contexts.values()}
    for context in retained:
        context.retained = 0  # as in a process of its own

    def ask(name):
        found = {}
        group = GROUPS[name]
        cuda.initialised = getattr(group, "needs_init", True)
        try:
            group(Driver(init=cuda.initialised), found.__setitem__)
        finally:
            cuda.initialised = True
        return found

    yield ask
    cuda.reset()
    for context, count in retained.items():
        context.retained = count


def expected(name: str) -> dict[str, Any]:
    known = {key: value for key, value in RECORDED[name].items() if key != "ended"}
    for key, answer in known.items():
        if (name, key) in STRICTER:
            known[key] = STRICTER[(name, key)][0]
        elif name.endswith("forked_child") and answer != CHILD_REFUSED:
            known[key] = CHILD_REFUSED
    return known


def test_every_question_is_recorded():
    """Where one is not, ask a driver: see probe/__main__.py."""
    assert set(RECORDED) == set(GROUPS)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_double_says_what_the_driver_said(name, answers, cuda):
    found = answers(name)
    known = expected(name)
    complaints = cuda.complaints()
    assert {key: found[key] for key in known} == known
    if name not in CRASHES:
        assert set(found) == set(known)
    check_complaints(name, complaints)


def check_complaints(name: str, complaints: list[str]) -> None:
    if name in COMPLAINED:
        assert any(COMPLAINED[name] in text for text in complaints)
    else:
        assert complaints == []


def test_differences_are_all_still_there():
    for (group, question), (answer, _) in STRICTER.items():
        assert RECORDED[group][question] != answer


def test_the_facts_about_pointers_are_recorded():
    """The table of pointer attributes that the design relies on."""
    capable = {
        kind.removesuffix(": decompress capable"): value
        for kind, value in RECORDED["pointers"].items()
        if kind.endswith(": decompress capable")
    }
    assert capable == {
        "cuMemAlloc": 1,
        "cuMemHostAlloc": 0,
        "created": 0,
        "created, capable": 1,
        "created on the host's node": 0,
        "created on the host's node, capable": 1,
        "created, no access": 0,
        "pool": 0,
        "pool, capable": 1,
        "pool on the host's node, capable": 1,
    }
