"""Names of outputs, and the refusals that come before anything is written."""

from __future__ import annotations

import os

import click
import pytest
from gpuload_cli.outputs import Target, decompressed_name, plan


def plan_for(*files: str, output=None, output_dir=None, to_stdout=False, force=False):
    return plan(files, output, output_dir, to_stdout=to_stdout, force=force)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("data.lz4", "data"),
        ("data.gz", "data"),
        ("data.bgz", "data"),
        ("data.zst", "data"),
        ("data.zstd", "data"),
        ("data.sz", "data"),
        ("data.snappy", "data"),
        ("DATA.GZ", "DATA"),
        ("a.tar.gz", "a.tar"),
        ("a.tgz", "a.tar"),
        ("a.tzst", "a.tar"),
        ("/x.gz/a.lz4", "/x.gz/a"),
        ("a\nb\udcff.gz", "a\nb\udcff"),
        ("https://host/dir/a.gz?x=b.lz4", "a"),
        ("-.gz", "./-"),
    ],
)
def test_names(file: str, name: str) -> None:
    assert decompressed_name(file) == name


@pytest.mark.parametrize(
    "file", ["data", "data.txt", ".gz", "dir/.lz4", "x.gz/data", "", "data.gz."]
)
def test_names_without_a_known_suffix(file: str) -> None:
    assert decompressed_name(file) is None


def test_default_output_is_beside_the_input() -> None:
    assert plan_for("d/a.gz", "e/b.lz4") == [Target("d/a.gz", "d/a"), Target("e/b.lz4", "e/b")]


def test_output_dir(tmp_path) -> None:
    targets = plan_for("d/a.gz", "e/b.tgz", output_dir=str(tmp_path))
    assert [target.output for target in targets] == [f"{tmp_path}/a", f"{tmp_path}/b.tar"]


def test_standard_input_goes_to_standard_output() -> None:
    assert plan_for("-") == [Target("-", "-")]
    assert plan_for("-", output="x") == [Target("-", "x")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"files": ["data"]}, "data: cannot tell the output's name.*give -o"),
        ({"files": ["a.gz", "b.gz"], "output": "x"}, "-o takes one FILE"),
        ({"files": ["a.gz"], "output": "x", "to_stdout": True}, "give only one of"),
        ({"files": ["a.gz"], "output": "x", "output_dir": "."}, "give only one of"),
        ({"files": ["-", "-"]}, "standard input can be read only once"),
        ({"files": ["-"], "output_dir": "."}, "standard input has no name"),
        ({"files": ["a.gz", "a.lz4"]}, "a.gz and a.lz4 would both be written to a"),
        ({"files": ["a.gz", "./b/../a.lz4"]}, "would both be written to"),
        ({"files": ["d/a.gz", "e/a.gz"], "output_dir": "."}, "would both be written to"),
        ({"files": ["a.gz"], "output": "."}, "is a directory; see --output-dir"),
        ({"files": ["a\n.txt"]}, r"a\\n.txt: cannot tell"),
    ],
)
def test_refusals(arguments: dict, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(click.UsageError, match=message):
        plan_for(*arguments.pop("files"), **arguments)


class TestInputsSurvive:
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.gz").write_bytes(b"a")

    def refuses(self, *files: str, **options: object) -> None:
        with pytest.raises(click.UsageError, match="is the same file as the input"):
            plan_for(*files, force=True, **options)

    def test_same_name(self) -> None:
        self.refuses("a.gz", output="a.gz")

    def test_same_file_by_another_name(self, tmp_path) -> None:
        self.refuses("a.gz", output=f"{tmp_path}/./a.gz")

    def test_hard_link(self) -> None:
        os.link("a.gz", "b")
        self.refuses("a.gz", output="b")

    def test_symbolic_link(self) -> None:
        os.symlink("a.gz", "b")
        self.refuses("a.gz", output="b")

    def test_input_is_a_link_to_the_output(self) -> None:
        os.symlink("a.gz", "b.gz")
        self.refuses("b.gz", output="a.gz")

    def test_output_of_one_is_input_of_the_next(self, tmp_path) -> None:
        (tmp_path / "a.gz.gz").write_bytes(b"b")
        self.refuses("a.gz.gz", "a.gz")

    def test_not_even_if_the_file_is_missing(self) -> None:
        self.refuses("none.gz", output="none.gz")
