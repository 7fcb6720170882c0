"""The progress bar: what it draws, how often, and where not at all."""

from __future__ import annotations

import io
import sys

import pytest
from gpuload_cli.progress import Bar, decoding_bar, encoding_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_line(terminal: Terminal, clock: Clock) -> None:
    bar = Bar("data.lz4", terminal, clock)
    clock.now += 2
    bar.update(512 << 20, 0.5)
    assert terminal.getvalue() == (
        "\rdata.lz4 [##########..........]  50% 512.0 MiB 256.0 MiB/s 0:02 left"
    )


def test_hours(terminal: Terminal, clock: Clock) -> None:
    bar = Bar("x", terminal, clock)
    clock.now += 1
    bar.update(1, 1 / 7262.5)
    assert terminal.getvalue().endswith("2:01:01 left")


def test_nothing_is_drawn_too_often(terminal: Terminal, clock: Clock) -> None:
    bar = Bar("x", terminal, clock)
    for _ in range(1000):
        clock.now += 0.001
        bar.update(1, 0.1)
    assert terminal.getvalue().count("\r") <= 10


@pytest.mark.parametrize("share", [-1.0, 0.0, 1.0, 7.0])
def test_shares_at_and_beyond_the_ends(terminal: Terminal, clock: Clock, share: float) -> None:
    bar = Bar("x", terminal, clock)
    clock.now += 1
    bar.update(0, share)
    assert ("100%" if share >= 1 else "  0%") in terminal.getvalue()


def test_long_and_odd_names_stay_on_one_line(terminal: Terminal, clock: Clock) -> None:
    bar = Bar("a\n" * 100, terminal, clock)
    clock.now += 1
    bar.update(1, 0.5)
    line = terminal.getvalue().removeprefix("\r")
    assert len(line) <= 79
    assert line.startswith("...")
    assert line.isprintable()


def test_close_wipes_the_line(terminal: Terminal, clock: Clock) -> None:
    bar = Bar("x", terminal, clock)
    clock.now += 1
    bar.update(1, 0.5)
    width = len(terminal.getvalue()) - 1
    bar.close()
    assert terminal.getvalue().endswith(f"\r{' ' * width}\r")


def test_a_terminal_that_goes_away_stops_nothing(clock: Clock) -> None:
    class Gone(Terminal):
        def write(self, _: str) -> int:
            raise OSError(5, "Input/output error")

    bar = Bar("x", Gone(), clock)
    for _ in range(2):
        clock.now += 1
        bar.update(1, 0.5)
    bar.close()


@pytest.mark.parametrize("bar", [lambda q: decoding_bar("x", 1, 1, quiet=q), None])
def test_no_bar_without_a_terminal(bar, monkeypatch) -> None:
    bar = bar or (lambda q: encoding_bar("x", quiet=q))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar(False) as progress:
        assert progress is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar(True) as progress:
        assert progress is None


@pytest.mark.parametrize(("raw_size", "percent"), [(400, "25%"), (None, "50%"), (0, "100%")])
def test_share_of_decoding(monkeypatch, terminal, raw_size, percent: str) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("gpuload_cli.progress._INTERVAL", -1)
    with decoding_bar("x", raw_size, 20, quiet=False) as progress:
        progress(100, 10)
    assert percent in terminal.getvalue()


def test_share_of_encoding(monkeypatch, terminal) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("gpuload_cli.progress._INTERVAL", -1)
    with encoding_bar("x", quiet=False) as progress:
        progress(3, 4)
    assert "75%" in terminal.getvalue()
