"""Sweeps seen on real terminals of odd sizes, and by readers that read nothing."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.process.ending import SMALL, Outputs, gated_batch, held, outputs
from tests.process.sweeping import PATIENCE_S, Bench
from tests.unit.emulator import Emulator

pytestmark = pytest.mark.usefixtures("nothing_leaked")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Window:
    """A sweep on a terminal of its own, with an emulator that shows what it has painted."""

    def __init__(self, bench: Bench, columns: int, rows: int, *args: str, **env: str) -> None:
        self.master, slave = os.openpty()
        self.emulator = Emulator(columns, rows)
        self.raw = ""
        self.resize(columns, rows)
        environment = {**bench.env, "TERM": "xterm-256color", **env}
        self.process = subprocess.Popen(
            bench.command(*args), env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.emulator.resize(columns, rows)

    def until(self, text: str) -> list[str]:
        """The screen once it has shown that; "" for the end of the program."""
        fresh = ""
        while not text or text not in _COLOURS.sub("", fresh) or not fresh.endswith("\n"):
            assert select.select([self.master], [], [], PATIENCE_S)[0], fresh
            part = b""
            with suppress(OSError):  # EIO: it has ended
                part = os.read(self.master, 1 << 16)
            if not part:
                assert not text, fresh
                break
            fresh += part.decode()
        self.raw += fresh
        self.emulator.feed(fresh)
        return [line.rstrip() for line in self.emulator.lines]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@contextmanager
def window(bench: Bench, columns: int, rows: int, *args: str, **env: str) -> Iterator[Window]:
    made = Window(bench, columns, rows, *args, **env)
    try:
        yield made
    finally:
        made.close()


def test_the_smallest_of_windows_and_one_that_grows(bench: Bench, tmp_path: Path, unbroken: Outputs) -> None:
    gate = gated_batch(bench, tmp_path)
    with window(bench, 20, 5) as seen:
        with held(gate):
            screen = seen.until("batch 1/3")
            assert screen[-1] == ""
            assert all(len(line) < 20 for line in screen[-4:])
            assert screen[-3:-1] == ["batch 1/3", "0/1"] or "0/1" in screen[-2]
            seen.resize(100, 30)
            screen = seen.until("points 0/1 done")
            assert sum("batch 1/3" in line for line in screen) == 1
            assert "tokens/s" in screen[-3]
        screen = seen.until("")
        assert seen.process.wait(PATIENCE_S) == 0
    assert any("results are in" in line for line in screen)
    assert not any(re.search(r"batch \d/\d|points \d", line) for line in screen), "the view gives way to the results"
    assert outputs(bench) == unbroken


def test_no_color_means_none(bench: Bench) -> None:
    bench.write(**SMALL)
    with window(bench, 80, 24, NO_COLOR="1") as seen:
        seen.until("")
        assert seen.process.wait(PATIENCE_S) == 0
    assert "results are in" in seen.raw
    assert not re.search(r"\x1b\[(3|4|9|10)\d", seen.raw)


@pytest.mark.parametrize("view", ["live", "json"])
def test_a_terminal_that_takes_nothing_holds_nothing_up(bench: Bench, unbroken: Outputs, view: str) -> None:
    bench.write(**SMALL)
    with window(bench, 80, 24, "--view", view) as seen:
        os.write(seen.master, b"\x13")  # ^S
        assert seen.process.wait(PATIENCE_S) == 0
    assert outputs(bench) == unbroken
    bench.assert_clean()


def test_json_on_standard_output_is_nothing_else(bench: Bench) -> None:
    bench.write(**SMALL)
    done = bench.run("--view", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert done.stderr == ""
    kinds = [one["type"] for one in found]
    assert kinds[-1] == "results"
    assert {"event", "progress"} <= set(kinds)
    events = [one["event"] for one in found if one["type"] == "event"]
    assert events[0] == "run_started"
    assert events[-1] == "run_ended"
