"""What the tests of all writers need."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def stream():
    """Return the stream of a writer that packs groups of three chunks in a random order."""

    def make(writer, data):
        header = writer.header(len(data))
        view, size = memoryview(data), writer.chunk_size
        chunks = [view[at : at + size] for at in range(0, len(data), size)]
        groups = dict(enumerate(chunks[at : at + 3] for at in range(0, len(chunks), 3)))
        order = random.Random(0).sample(sorted(groups), len(groups))
        packed = {number: writer.pack(groups[number]) for number in order}
        parts = [header]
        for number in sorted(groups):
            writer.note(packed[number].notes)
            parts += packed[number].pieces
        return b"".join([*parts, writer.trailer()])

    return make


@pytest.fixture(scope="session")
def run_tool():
    """Return what a native tool prints when it is fed bytes; skip without the tool."""

    def run(command, data):
        if shutil.which(command[0]) is None:
            pytest.skip(f"the {command[0]} tool is not installed")
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout

    return run


@pytest.fixture(scope="session")
def samples():
    """Return inputs by name: empty, tiny, compressible, random, and both mixed."""
    noise = random.Random(1).randbytes(300_000)
    text = b"".join(b"line %d of a text that repeats itself\n" % n for n in range(20_000))
    return {
        "empty": b"",
        "one byte": b"x",
        "zeros": bytes(400_000),
        "text": text,
        "noise": noise,
        "mixed": text[:150_000] + noise[:150_000] + bytes(150_000),
    }
