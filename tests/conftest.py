"""Fixtures that several test modules use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.containers.container_tests", "tests.engines.engine_tests")

_HERE = Path(__file__).parent
#: The whole corpus, beside the checkout; the small copy keeps the tests meaningful without it.
_FULL = Path(os.environ.get("GPULOAD_CORPUS", _HERE.parents[1] / "shared" / "corpus"))
_SMALL = _HERE / "corpus"


def corpus_folder() -> Path:
    """Return the folder of the whole corpus, or of the small copy where it is absent."""
    return _FULL if (_FULL / "manifest.json").is_file() else _SMALL


def corpus_entries(kind: str) -> list[dict]:
    """Return the manifest's entries of one kind whose files are there."""
    folder = corpus_folder()
    entries = json.loads((folder / "manifest.json").read_text())
    return [e for e in entries if e["kind"] == kind and (folder / e["file"]).exists()]


class Corpus:
    """The corpus folder; a file that only the whole corpus has skips the test."""

    def __truediv__(self, name: str) -> Path:
        path = corpus_folder() / name
        if not path.exists():
            pytest.skip(f"{name} is only in the whole corpus, which is not beside this checkout")
        return path


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """The corpus: ``corpus / "lz4/concat3.lz4"`` is the path of a file."""
    return Corpus()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the tests on the double of the driver run beside the others."""
    from tests.helpers import double_suite

    double_suite.start(session)
