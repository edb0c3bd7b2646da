"""The live view in windows of every size, and what programs read in its place."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.console import RECALLED, Console
from orchestrator.events import Event, PointEnded, Waited
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.report import rows as report_rows
from orchestrator.report import table
from orchestrator.terminal.layout import BAR_WIDTH, frame
from orchestrator.terminal.modes import JSON_INTERVAL_S, LIVE_INTERVAL_S
from orchestrator.terminal.outlet import Outlet
from orchestrator.terminal.screen import Screen
from orchestrator.view.runview import RunView
from tests.unit.emulator import Emulator
from tests.unit.rundirs import a_plan, ended, finished_run
from tests.unit.test_console import FAILED, LAUNCHED, POINT_STARTED, SNAPSHOT, WORKING, Clock

pytestmark = pytest.mark.usefixtures("nothing_leaked")

PATIENCE_S = 20.0
#: Between two turns of a run that has nothing to read.
STEP_S = 0.01

words = st.text(st.characters(min_codepoint=32, max_codepoint=0x4FFF, exclude_categories=["Cs"]), max_size=30)
workers = st.builds(
    WorkerProgress,
    slot=st.sampled_from(["", "slot0", "slot12"]),
    method=words,
    state=st.sampled_from(["busy", "loading"]),
    settings=st.dictionaries(st.sampled_from(["batch_size", "dtype"]), st.integers(0, 10**9)),
    batches_done=st.integers(0, 10**6),
    batches_total=st.integers(0, 10**6),
    tokens_per_s=st.none() | st.floats(0, 1e6),
    memory_bytes=st.none() | st.integers(0, 1 << 45),
    memory_total_bytes=st.none() | st.integers(0, 1 << 45),
)
snapshots = st.builds(
    Progress,
    workers=st.lists(workers, max_size=9),
    points_done=st.integers(0, 10**5),
    points_failed=st.integers(0, 10**5),
    points_skipped=st.integers(0, 10**5),
    points_total=st.integers(0, 10**5),
    eta_s=st.none() | st.floats(0, 1e7),
)


@given(snapshot=snapshots, columns=st.integers(1, 130), rows=st.integers(1, 30))
def test_a_frame_fits_its_window(snapshot: Progress, columns: int, rows: int) -> None:
    lines = frame(snapshot, columns, rows)
    assert 1 <= len(lines) <= max(1, rows - 1)
    assert all(line.cell_len <= max(1, columns - 1) for line in lines)
    assert not any("\n" in line.plain for line in lines)


def shown(snapshot: Progress, columns: int, rows: int) -> list[str]:
    return [line.plain for line in frame(snapshot, columns, rows)]


MANY = Progress(workers=[WorkerProgress(slot=f"slot{n}", method="m", state="busy") for n in range(5)], points_total=9)


def test_what_has_no_room_is_left_out_from_the_least_needed_on() -> None:
    full = 15 * BAR_WIDTH // 60
    assert shown(SNAPSHOT, 100, 24) == [
        "hf_sdpa busy batch_size=4 dtype=null",
        "━" * full + "╌" * (BAR_WIDTH - full) + " batch 3/12  123.5 tokens/s, 3.0 GiB",
        "━" * 10 + "╌" * 20 + " points 1/6 done, 1 failed, about 2 min 10 s left",
    ]
    assert shown(SNAPSHOT, 45, 24)[1:] == [
        "batch 3/12  123.5 tokens/s, 3.0 GiB",
        "1/6, 1 failed, about 2 min 10 s left",
    ]
    assert shown(SNAPSHOT, 20, 5) == ["hf_sdpa busy batch…", "batch 3/12", "1/6, 1 failed"]
    assert shown(SNAPSHOT, 40, 3) == [
        "hf_sdpa busy 3/12 123.5 tokens/s, 3.0 …",
        "1/6, 1 failed, about 2 min 10 s left",
    ]
    assert shown(SNAPSHOT, 40, 2) == ["1/6, 1 failed, about 2 min 10 s left"]
    assert shown(MANY, 40, 5)[:3] == ["slot0: m busy 0/0", "slot1: m busy 0/0", "and 3 more workers"]


def test_memory_is_told_of_what_the_devices_have() -> None:
    worker = WorkerProgress(method="m", state="busy", memory_bytes=3 << 30, memory_total_bytes=80 << 30)
    assert "3.0 GiB of 80.0 GiB" in shown(Progress(workers=[worker]), 100, 24)[1]


# --- painted --------------------------------------------------------------------------


class Window:
    """A pty with an emulator on it: what `feed` has taken so far is on its screen."""

    def __init__(self, columns: int, rows: int) -> None:
        self.master, slave = pty.openpty()
        self.emulator = Emulator(columns, rows)
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.emulator.resize(columns, rows)

    def feed(self, until: str, again: Callable[[], None] = lambda: None) -> list[str]:
        """`again` is for a refresh, which is left out while the one before is still on its way: a run comes back to
        it with every turn."""
        text = ""
        give_up_at = time.monotonic() + PATIENCE_S
        while until not in text or not text.endswith("\n"):  # nothing is written that ends in the middle of a line
            assert time.monotonic() < give_up_at, f"{until!r} is not in {text!r}"
            if select.select([self.master], [], [], STEP_S)[0]:
                text += os.read(self.master, 65536).decode()
            else:
                again()
        self.emulator.feed(text)
        return [line.rstrip() for line in self.emulator.lines]

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Window(80, 24)
    yield made
    made.close()


def progress(number: int, workers: int = 1) -> Progress:
    found = [WorkerProgress(slot=f"slot{n}", method=f"method_{n}", state="busy") for n in range(workers)]
    return Progress(workers=found, points_done=number, points_total=1000)


def test_a_frame_takes_the_place_of_the_one_before_however_the_window_changes(window: Window) -> None:
    clock = Clock()
    console = Console(window.stream, clock=clock)
    seen: list[str] = []
    sizes = [(80, 24), (80, 24), (50, 24), (20, 12), (20, 6), (33, 6), (120, 40), (61, 20), (20, 20), (80, 24)]
    for number, size in enumerate(sizes):
        window.resize(*size)
        refresh = partial(console.progress, progress(number, workers=1 + number % 2))
        refresh()
        seen = window.feed(f"{number}/1,000", refresh)
        assert seen[-1] == "", "the cursor is below"
        assert sum("/1,000" in line for line in seen) == 1, seen
        assert sum("method_0" in line for line in seen) <= 1, seen
        clock.now_s += LIVE_INTERVAL_S
    console.show(FAILED)
    seen = window.feed("9/1,000")
    assert sum("oom" in line for line in seen) == 1
    assert next(line for line in seen if "oom" in line) == seen[0], "failures stay above"
    console.finish(table([]), "bye")
    seen = window.feed("bye")
    assert not any("/1,000" in line for line in seen)
    console.close()


def test_what_a_window_that_shrank_has_scrolled_away_is_left_alone(window: Window) -> None:
    clock = Clock()
    console = Console(window.stream, clock=clock)
    console.progress(progress(1, workers=4))
    window.feed("1/1,000")
    window.resize(8, 3)
    clock.now_s += LIVE_INTERVAL_S
    refresh = partial(console.progress, progress(2, workers=4))
    refresh()
    seen = window.feed("2/1,000", refresh)
    assert seen[0] == "slot0: method_0 busy"
    assert seen[-3:] == ["and 4 …", "2/1,000", ""] or seen[-2:] == ["2/1,000", ""]
    console.close()


def test_what_a_shell_wrote_while_we_were_stopped_stays(window: Window) -> None:
    clock = Clock()
    console = Console(window.stream, clock=clock)
    console.progress(progress(1))
    window.feed("1/1,000")
    window.stream.write("$ fg\n")
    window.stream.flush()
    window.feed("$ fg")
    console.show(Waited(at=0.0, what="suspended", reason="this coordinator was stopped", wait_s=5.0))
    clock.now_s += LIVE_INTERVAL_S
    refresh = partial(console.progress, progress(2))
    refresh()
    seen = window.feed("2/1,000", refresh)
    assert sum("$ fg" in line for line in seen) == 1
    assert sum("1/1,000" in line for line in seen) == 1
    console.close()


def test_a_repaint_is_one_write() -> None:
    written: list[str] = []

    class Kept(Outlet):
        def write(self, text: str) -> None:
            written.extend(filter(None, [text]))

    from orchestrator.terminal.painter import Painter

    painter = Painter(Screen(Kept(None), terminal=True))
    painter.paint(frame(SNAPSHOT, 80, 24))
    painter.paint(frame(SNAPSHOT, 80, 24))
    assert len(written) == 2
    assert written[1].startswith("\x1b[3A\r\x1b[J")
    assert "\x1b[?25l" not in "".join(written)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_terminals_that_can_not_be_painted_on_get_lines(
    window: Window, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    console = Console(window.stream)
    assert console.mode == "plain"
    console.say("hello")
    assert window.feed("hello") == ["hello", ""]
    console.close()


# --- JSON lines --------------------------------------------------------------------------


def objects(console: Console, stream: io.StringIO) -> list[dict[str, Any]]:
    console.close()
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]


def test_json_is_an_object_a_line_and_nothing_else(tmp_path: Any) -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, "json", clock=clock)
    finished_run(tmp_path / "run")
    console.know(a_plan())
    console.say("two\nlines")
    console.show(LAUNCHED)
    console.show(POINT_STARTED)
    for _ in range(4):
        console.progress(SNAPSHOT)
        clock.now_s += JSON_INTERVAL_S / 2
    console.show(FAILED)
    console.finish(table(report_rows(RunView.load(tmp_path / "run"))), "bye")
    found = objects(console, stream)
    kinds = ["note", "note", "event", "event", "progress", "progress", "event", "results"]
    assert [one["type"] for one in found] == kinds
    assert all(isinstance(one["at"], float) for one in found)
    assert found[2] | {"at": 0} == {
        "type": "event",
        "at": 0,
        "event": "worker_launched",
        "text": f"hf_sdpa: worker {LAUNCHED.incarnation} started in hf-cpu",
        "bad": False,
        "incarnation": LAUNCHED.incarnation,
        "method": "hf_sdpa",
        "slot": "slot0",
    }
    assert found[4]["points"] == {"done": 1, "failed": 1, "skipped": 0, "total": 6}
    assert found[4]["eta_s"] == 130.0
    assert found[4]["workers"][0]["tokens_per_s"] == WORKING.tokens_per_s
    assert found[6]["cause"] == {
        "class": "oom",
        "message": "CUDA out of memory",
        "phase": "loading",
        "exit_status": 1,
        "signal": None,
    }
    assert [row["method"] for row in found[7]["rows"]][:2] == ["hf_sdpa", "hf_sdpa"]
    assert found[7]["rows"][0]["tokens_per_s"] > 0
    assert found[7]["text"] == "bye"


def test_json_names_points_and_their_settings() -> None:
    stream = io.StringIO()
    console = Console(stream, "json")
    console.know(a_plan())
    console.show(ended(point="hf_sdpa/2/1"))
    console.progress(Progress(workers=[WorkerProgress(point="hf_sdpa/2/1")]))
    event, snapshot = objects(console, stream)
    assert event["label"] == "hf_sdpa batch_size=2 (repeat 2 of 2)"
    assert snapshot["workers"][0]["settings"] == {"batch_size": 2}


def test_json_stays_json_whatever_it_is_told() -> None:
    stream = io.StringIO()
    console = Console(stream, "json")
    evil = '\x1b[2J "\udc9d\u2028 \n\x00'
    console.say(evil)
    console.progress(Progress(workers=[WorkerProgress(method=evil, tokens_per_s=float("nan"))]))
    console.show(PointEnded(at=0.0, point=evil, outcome="failed"))
    console.finish(object())  # type: ignore[arg-type]
    console.show(None)  # type: ignore[arg-type]
    found = objects(console, stream)
    assert {one["type"] for one in found} <= {"note", "event", "progress", "results"}
    assert len(stream.getvalue().split("\n")) == len(found) + 1


# --- from before ---------------------------------------------------------------------------


def test_of_what_went_wrong_before_the_last_is_shown() -> None:
    stream = io.StringIO()
    console = Console(stream)
    events: list[Event] = [LAUNCHED, POINT_STARTED]
    for event in events:
        console.recall(event)
    for number in range(RECALLED + 3):
        console.recall(ended("failed", point=f"p{number}"))
        console.recall(ended("ok", point=f"q{number}"))
    assert stream.getvalue() == ""
    console.catch_up()
    console.catch_up()
    console.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "3 earlier lines of what went wrong left out"
    assert len(lines) == RECALLED + 1
    assert lines[-1].endswith(f"p{RECALLED + 2}: failed")
