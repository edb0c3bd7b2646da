"""The view under closed, broken and stalled streams, and under text that attacks a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import ConsoleRenderable
from rich.table import Table

from orchestrator.console import Console
from orchestrator.events import (
    BatchCommitted,
    BatchLost,
    Event,
    PointEnded,
    PointStarted,
    RunEnded,
    SlotQuarantined,
    WorkerLaunched,
    WorkerReady,
    WorkerReleased,
)
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.reclaim import Reclaim
from orchestrator.report import RunView, rows
from orchestrator.report import table as results_table
from orchestrator.terminal import outlet as outlet_module
from orchestrator.terminal.layout import progress_text
from orchestrator.terminal.modes import LIVE_INTERVAL_S, PLAIN_INTERVAL_S
from orchestrator.terminal.outlet import Outlet
from orchestrator.view.phrases import cause_text
from protocol.records import RuntimeMetadata
from tests.unit.rundirs import INCARNATION, POINT, a_plan, finished_run, reclaim, started, state

pytestmark = pytest.mark.usefixtures("nothing_leaked")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


LAUNCHED = WorkerLaunched(
    at=0.0,
    incarnation=INCARNATION,
    method="hf_sdpa",
    engine="hf",
    env="hf-cpu",
    fingerprint="f",
    slot="slot0",
    pid=1,
    log="logs/w1.log",
)
POINT_STARTED = PointStarted(at=0.0, point=POINT, incarnation=INCARNATION, prompts=4)
FAILED = PointEnded(
    at=0.0,
    point=POINT,
    outcome="failed",
    cause=Cause(cls="oom", message="CUDA out of memory\nmore", phase="loading", exit_status=1),
)
WORKING = WorkerProgress(
    method="hf_sdpa",
    state="busy",
    point=POINT,
    settings={"batch_size": 4, "dtype": None},
    batches_done=3,
    batches_total=12,
    tokens_per_s=123.45,
    memory_bytes=3 << 30,
)
SNAPSHOT = Progress(workers=[WORKING], points_done=1, points_failed=1, points_total=6, eta_s=130.0)


def table() -> ConsoleRenderable:
    grid = Table("method", "tokens/s")
    grid.add_row("hf_sdpa", "123.4")
    return grid


def plain_lines(*events: Event) -> list[str]:
    stream = io.StringIO()
    console = Console(stream)
    for event in events:
        console.show(event)
    console.close()
    return [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]


# --- plain ------------------------------------------------------------------


def test_plain_is_one_line_per_notable_event() -> None:
    released = WorkerReleased(
        at=0.0, incarnation=INCARNATION, exit_status=0, signal=None, cause=None, reclaim=reclaim(strays_killed=["7 x"])
    )
    committed = BatchCommitted(
        at=0.0, point=POINT, batch="b", incarnation=INCARNATION, prompts=["a"], offset=0, length=1, crc=0, stats=None
    )
    lines = plain_lines(started(life=2, points=6), LAUNCHED, state("busy"), POINT_STARTED, committed, FAILED, released)
    assert lines == [
        "run of 6 points on lab, start 2 of this run",
        f"hf_sdpa: worker {INCARNATION} started in hf-cpu",
        f"hf_sdpa {POINT}: 4 prompts",
        f"hf_sdpa {POINT}: failed: oom: CUDA out of memory (while loading, exit status 1)",
        "hf_sdpa: worker gone after 900 ms by shutdown, 1 stray killed; 3.0 GiB back in 400 ms",
    ]


def test_a_cause_is_told_in_full_once_of_a_point_and_shortly_where_it_comes_again() -> None:
    crash = Cause(cls="engine_crash", message="the worker ended without a farewell", phase="busy")
    other = msgspec.structs.replace(crash, message="another story")

    def lost(number: str, cause: Cause, point: str = POINT) -> BatchLost:
        return BatchLost(at=0.0, point=point, batch=f"x-{number}", incarnation=INCARNATION, prompts=[], cause=cause)

    failed = msgspec.structs.replace(FAILED, cause=crash)
    assert plain_lines(lost("1", crash), lost("1.0", crash), lost("1.1", other), failed, failed) == [
        f"{POINT}: batch 1 gave nothing: {cause_text(crash)}",
        f"{POINT}: batch 1.0 gave nothing: engine_crash, as told of batch 1",
        f"{POINT}: batch 1.1 gave nothing: {cause_text(other)}",
        f"{POINT}: failed: engine_crash, as told of batch 1",
        f"{POINT}: failed: {cause_text(crash)}",
    ], "what ended may run again, long afterwards"
    assert plain_lines(lost("1", crash, "p"), failed)[1] == f"{POINT}: failed: {cause_text(crash)}"


def test_points_of_a_known_plan_are_named_by_their_settings() -> None:
    plan = a_plan()
    lost = BatchLost(
        at=0.0,
        point="hf_sdpa/2/1",
        batch="3f9a01bc-7.0",
        incarnation="w",
        prompts=[],
        cause=Cause(cls="oom", message="x"),
    )
    first, second = io.StringIO(), io.StringIO()
    for stream, event in ((first, lost), (second, msgspec.structs.replace(FAILED, point="vllm_fa/1/0"))):
        console = Console(stream)
        console.know(plan)
        console.show(event)
        console.close()
    assert first.getvalue().endswith(" hf_sdpa batch_size=2 (repeat 2 of 2): batch 7.0 gave nothing: oom: x\n")
    # A worker that fails to load never starts its points; they name their method all the same.
    assert " vllm_fa batch_size=1 (repeat 1 of 2): failed: oom: CUDA" in second.getvalue()


def test_labels_are_made_when_a_point_is_named_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Plan] = []

    def make(plan: Plan) -> dict[str, str]:
        made.append(plan)
        return {"p": "named"}

    monkeypatch.setattr("orchestrator.console.labels", make)
    plan = a_plan()
    stream = io.StringIO()
    console = Console(stream)
    console.know(plan)
    console.show(started())
    assert made == []
    for _ in range(2):
        console.show(msgspec.structs.replace(FAILED, point="p"))
    console.close()
    assert made == [plan]
    assert stream.getvalue().count(" named: failed") == 2


def test_a_plan_that_can_not_be_known_costs_the_view_only() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.know(cast("Plan", None))
    console.show(FAILED)
    console.close()
    assert "the view failed" in stream.getvalue()
    assert "oom" in stream.getvalue()


@pytest.mark.parametrize(
    ("message", "changes", "text"),
    [
        ("ended (signal SIGSEGV)", {"signal": "SIGSEGV"}, "engine_crash: ended (signal SIGSEGV) (while busy)"),
        ("ended (exit status 1)", {"exit_status": 1}, "engine_crash: ended (exit status 1) (while busy)"),
        ("exit status 13", {"exit_status": 1}, "engine_crash: exit status 13 (while busy, exit status 1)"),
        ("ended", {"signal": "SIGSEGV", "exit_status": 1}, "engine_crash: ended (while busy, SIGSEGV)"),
    ],
)
def test_a_cause_says_how_the_process_ended_once(message: str, changes: dict[str, Any], text: str) -> None:
    assert cause_text(Cause(cls="engine_crash", message=message, phase="busy", **changes)) == text


def test_a_version_stands_next_to_the_package_it_is_of() -> None:
    metadata = RuntimeMetadata(engine="hf", engine_version="5.19.0", python_version="3.11.7")
    ready = WorkerReady(at=0.0, incarnation="w", metadata=metadata, fingerprint="f")
    (line,) = plain_lines(LAUNCHED, msgspec.structs.replace(ready, incarnation=INCARNATION))[1:]
    assert line == "hf_sdpa: ready after 0 ms: transformers 5.19.0"
    metadata = msgspec.structs.replace(metadata, engine="vllm")
    (line,) = plain_lines(msgspec.structs.replace(ready, metadata=metadata))
    assert line.endswith("vllm 5.19.0")


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (reclaim(processes_left=2), "worker not gone: 2 processes left"),
        (reclaim(returned=False), "its memory did not come back in 400 ms"),
        (reclaim(held_bytes=None), "memory back in 400 ms"),
    ],
)
def test_a_teardown_that_failed_says_so(proof: Reclaim, said: str) -> None:
    released = WorkerReleased(
        at=0.0, incarnation=INCARNATION, exit_status=None, signal="SIGKILL", cause=None, reclaim=proof
    )
    (line,) = plain_lines(released)
    assert said in line


def test_plain_gives_a_sign_of_life_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock)
    for _ in range(10):
        console.progress(SNAPSHOT)
        clock.now_s += PLAIN_INTERVAL_S / 4
    console.close()
    assert (
        stream.getvalue().splitlines()
        == [
            "hf_sdpa busy batch_size=4 dtype=null, batch 3/12, 123.5 tokens/s, 3.0 GiB, "
            "points 1/6 done, 1 failed, about 2 min 10 s left"
        ]
        * 2
    )


def test_several_workers_are_told_by_their_slots() -> None:
    other = WorkerProgress(slot="slot1", method="vllm_fa", state="loading", batches_total=4)
    text = progress_text(Progress(workers=[replace(WORKING, slot="slot0"), other], points_total=6))
    assert text.startswith("slot0: hf_sdpa busy")
    assert "slot1: vllm_fa loading, batch 0/4, points 0/6 done" in text


def test_a_table_off_a_terminal_is_not_cut_and_has_no_escapes() -> None:
    stream = io.StringIO()
    console = Console(stream)
    grid = Table(*(f"column number {n}" for n in range(9)))
    grid.add_row(*(f"a longer value {n}" for n in range(9)))
    console.finish(grid, "done")
    console.close()
    assert "a longer value 8" in stream.getvalue()
    assert stream.getvalue().endswith("done\n")
    assert "\x1b" not in stream.getvalue()


def test_quiet_shows_failures_and_the_table_only() -> None:
    stream = io.StringIO()
    console = Console(stream, "quiet")
    console.say("hello")
    console.show(LAUNCHED)
    console.progress(SNAPSHOT)
    console.show(FAILED)
    console.finish(table())
    console.close()
    assert "hello" not in stream.getvalue()
    assert "started" not in stream.getvalue()
    assert "oom" in stream.getvalue()
    assert "123.4" in stream.getvalue()


# --- hostile text -----------------------------------------------------------


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_foreign_text_can_not_drive_the_terminal(mode: str) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 [bold red]x[/] \u202e\u061cabc \udc9d \x9b31m :smile:"
    stream = io.StringIO()
    console = Console(stream, mode)
    if mode == "live":
        console.progress(Progress(workers=[WorkerProgress(method=evil, settings={"x": evil})]))
    console.say(evil)
    console.show(
        BatchLost(
            at=0.0, point=evil, batch=evil, incarnation=evil, prompts=[], cause=Cause(cls="engine_error", message=evil)
        )
    )
    console.show(SlotQuarantined(at=0.0, slot=evil, incarnation=evil, reason=evil))
    console.close()
    shown = stream.getvalue()
    assert "the view failed" not in shown
    assert "[bold red]x[/]" in shown
    assert ":smile:" in shown
    for sequence in ("\x1b[2J", "\x1b]0;", "\x07", "\u202e", "\u061c", "\x9b", "\udc9d"):
        assert sequence not in shown
    assert "\\x1b[2J" in shown


# --- live on a real terminal ------------------------------------------------


class Terminal:
    """A pty whose master end is read by a thread until it is closed."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.seen = b""
        self.wanted = b""
        self.found = threading.Event()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self.master, self._stop_read], [], [])
            if self._stop_read in ready:
                return
            with suppress(OSError):
                self.seen += os.read(self.master, 65536)
            if self.wanted and self.wanted in self.seen:
                self.found.set()

    def wait_for(self, text: str) -> None:
        self.found.clear()
        self.wanted = text.encode()
        if self.wanted not in self.seen:
            assert self.found.wait(20), self.seen

    def stop_reading(self) -> None:
        if self._thread.is_alive():
            os.write(self._stop_write, b"x")
            self._thread.join()

    def close_master(self) -> None:
        self.stop_reading()
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self.stop_reading()
        self.stream.close()
        for fd in (self.master, self._stop_read, self._stop_write):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal()
    yield found
    found.close()


def test_live_shows_where_we_are_with_failures_above(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    clock = Clock()
    console = Console(terminal.stream, clock=clock)
    assert console.mode == "live"
    console.show(LAUNCHED)
    console.show(POINT_STARTED)
    console.progress(SNAPSHOT)
    for shown in ("hf_sdpa busy batch_size=4", "batch 3/12", "1 failed", "123.5 tokens/s, 3.0 GiB", "2 min 10 s left"):
        terminal.wait_for(shown)
    console.show(FAILED)
    terminal.wait_for("oom: CUDA out of memory")
    console.finish(table(), "bye")
    terminal.wait_for("bye")
    console.close()
    assert b"started in" not in terminal.seen
    assert b"\x1b[?25l" not in terminal.seen
    assert terminal.seen.index(b"oom") < terminal.seen.rindex(b"tokens/s")


def test_the_results_fit_the_terminal_they_are_shown_on(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)
    finished_run(tmp_path / "run")
    found = rows(RunView.load(tmp_path / "run"))
    termios.tcsetwinsize(terminal.stream.fileno(), (24, 80))
    console = Console(terminal.stream, "plain")
    console.finish(results_table(found), "bye")
    terminal.wait_for("bye")
    console.close()
    lines = terminal.seen.decode().splitlines()
    assert max(map(len, (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines))) <= 80
    assert sum("12.0 (n=2)" in line for line in lines) == 2
    assert not any("…" in line or "given" in line for line in lines)


def test_live_refreshes_twice_a_second_at_most(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    clock = Clock()
    console = Console(terminal.stream, clock=clock)
    for number in range(20):
        console.progress(Progress(workers=[WorkerProgress(method=f"m{number}.")]))
        console.say(f"after {number}.")
        terminal.wait_for(f"after {number}.")
        clock.now_s += LIVE_INTERVAL_S / 4
    console.close()
    shown = [n for n in range(20) if f"m{n}.".encode() in terminal.seen]
    # A refresh is left out where the terminal has not yet taken all before it, so the count is an upper bound.
    assert shown[0] == 0
    assert 1 < len(shown) <= 5


def test_no_color_is_respected(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(terminal.stream)
    console.progress(SNAPSHOT)
    console.show(FAILED)
    terminal.wait_for("oom")
    console.close()
    assert b"\x1b[31m" not in terminal.seen


def test_a_dumb_terminal_gets_plain_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(terminal.stream)
    assert console.mode == "plain"
    console.close()


# --- streams that fail ------------------------------------------------------


def everything(console: Console) -> None:
    for _ in range(20):
        console.say("text")
        console.show(LAUNCHED)
        console.progress(SNAPSHOT)
        console.show(FAILED)
    console.show(RunEnded(at=0.0, exit_code=1, wall_s=2.0, measured_s=1.0, reason="x"))
    console.finish(table(), "done")
    console.close()
    console.close()
    console.say("after the end")
    console.show(FAILED)
    console.progress(SNAPSHOT)
    console.finish(table())


@pytest.mark.parametrize("mode", ["auto", "live", "plain", "quiet"])
def test_a_terminal_that_is_closed_under_us(terminal: Terminal, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Console(terminal.stream, mode)
    console.progress(SNAPSHOT)
    console.say("before")
    if mode != "quiet":
        terminal.wait_for("before")
    terminal.close_master()
    everything(console)


@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_pipe_whose_reader_left(mode: str) -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    console = Console(stream, mode)
    os.close(reader)
    everything(console)
    stream.close()


@pytest.mark.parametrize("mode", ["auto", "live", "plain"])
def test_a_stream_that_was_closed_before_or_never_was(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    everything(Console(closed, mode))
    monkeypatch.setattr(sys, "stdout", None)
    everything(Console(None, mode))


def test_the_number_of_a_closed_stream_may_go_to_another_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    console = Console(stream, "plain")
    stream.close()
    other = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    assert other == writer
    console.say("for the pipe only")
    console.close()
    assert os.fstat(other).st_size == 0
    assert os.read(reader, 100) == b"for the pipe only\n"
    os.close(other)
    os.close(reader)


def test_a_reader_that_takes_nothing_does_not_stop_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more than a pipe holds; with a blocking write this test would hang."""
    monkeypatch.setattr(outlet_module, "FLUSH_S", 0.05)
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    console = Console(stream, "plain")
    console.say("x" * (1 << 20))
    assert select.select([reader], [], [], 20)[0]  # the first line is being written, and can't be finished
    for _ in range(3000):
        console.say("y" * 200)
        console.progress(SNAPSHOT)
    console.close()
    stream.close()
    drained = b""
    while chunk := os.read(reader, 65536):  # ends once the writing thread has given up its copy
        drained += chunk
    os.close(reader)
    assert drained == b"x" * (1 << 20) + b"\n"


def close_both(console: Console, stream: TextIO) -> None:
    console.close()
    stream.close()


def test_a_stalled_terminal_gets_no_refreshes_to_catch_up_with() -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    clock = Clock()
    console = Console(stream, "live", clock=clock)
    console.say("x" * (1 << 20))
    for number in range(50):
        console.progress(Progress(workers=[WorkerProgress(method=f"m{number}.")]))
        clock.now_s += LIVE_INTERVAL_S
    closing = threading.Thread(target=close_both, args=(console, stream))
    closing.start()
    drained = b""
    while chunk := os.read(reader, 65536):
        drained += chunk
    closing.join()
    os.close(reader)
    assert drained == b"x" * (1 << 20) + b"\n"


def test_lines_that_nobody_read_are_counted() -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    out = Outlet(stream)
    for _ in range(3000):
        out.write("y" * 199 + "\n")
    assert out.busy
    assert out.dropped > 0
    stream.close()
    closing = threading.Thread(target=out.close)
    closing.start()
    taken = 0
    while chunk := os.read(reader, 65536):
        taken += len(chunk)
    closing.join()
    os.close(reader)
    assert taken == (3000 - out.dropped) * 200


class Unprintable:
    def __rich_console__(self, *_: object) -> Iterator[str]:
        raise RuntimeError("no view")


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_a_renderer_that_breaks_costs_the_view_only(mode: str) -> None:
    stream = io.StringIO()
    console = Console(stream, mode)
    console.progress(SNAPSHOT)
    console.finish(Unprintable())
    console.show(FAILED)
    console.finish(table())
    console.close()
    after = stream.getvalue().split("the view failed and is off, the run goes on: RuntimeError('no view')\n")[1]
    assert "oom" in after
    assert "123.4" in after
