"""`watch`: a run seen from another process, which neither it nor its files notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.process.ending import SMALL, Outputs, gated_batch, held, outputs
from tests.process.launching import Fifo
from tests.process.sweeping import GONE_AFTER_KILL_S, NO_SECOND_TRY, PATIENCE_S, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")


class Watcher:
    """`watch --view json`, read line by line."""

    def __init__(self, bench: Bench, *args: str) -> None:
        argv = [sys.executable, "-m", "orchestrator", "watch", str(bench.run_dir), *args]
        self.process = subprocess.Popen(
            argv, env=bench.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self.seen: list[dict[str, Any]] = []

    def until(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """The next object of the kind with these values."""
        for line in self._lines:
            self.seen.append(json.loads(line))
            if self.seen[-1]["type"] == kind and wanted.items() <= self.seen[-1].items():
                return self.seen[-1]
        raise AssertionError(f"never said: {kind} {wanted}, but {self.seen}; {self.process.communicate()}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def texts(self, kind: str = "event") -> list[str]:
        return [one["text"] for one in self.seen if one["type"] == kind]


@contextmanager
def watching(bench: Bench, *args: str) -> Iterator[Watcher]:
    watcher = Watcher(bench, "--view", "json", *args)
    try:
        yield watcher
    finally:
        watcher.process.kill()
        watcher.process.communicate()


@contextmanager
def watching_gated(bench: Bench, gate: str) -> Iterator[Watcher]:
    """From when the sweep stands before its gate until it may pass; meanwhile no file of it is touched."""
    with held(gate):
        before = stamps(bench.run_dir)
        watcher = Watcher(bench, "--view", "json")
        yield watcher
        assert stamps(bench.run_dir) == before


def stamps(run_dir: Path) -> dict[str, tuple[int, int]]:
    """Of each file below it, its folders included: when it was changed, and its size."""
    found = {str(path): path.lstat() for path in [run_dir, *run_dir.rglob("*")]}
    return {name: (one.st_mtime_ns, one.st_size) for name, one in found.items()}


def test_a_run_is_followed_to_its_end_with_its_exit_code(bench: Bench, tmp_path: Path, unbroken: Outputs) -> None:
    gate = gated_batch(bench, tmp_path)
    running = bench.start()
    with watching_gated(bench, gate) as watcher:
        found = watcher.until("progress")
        assert found["points"] == {"done": 0, "failed": 0, "skipped": 0, "total": 1}
        (worker,) = found["workers"]
        assert (worker["method"], worker["state"], worker["slot"]) == ("gated", "busy", "slot0")
        assert (worker["batches_done"], worker["batches_total"]) == (1, 3)
        assert worker["memory_bytes"] > 0
        again = bench.run("--resume")
        assert again.returncode == 2, "the lock is the sweep's alone"
        assert "in use by process" in again.stderr
    watcher.until("results")
    code, rest, err = watcher.end()
    assert running.wait(PATIENCE_S) == 0, running.communicate()
    assert (code, rest, err) == (0, "", "")
    assert watcher.seen[-1]["rows"][0]["method"] == "gated"
    assert watcher.texts()[-1].startswith("ended with exit code 0")
    running.communicate()
    assert outputs(bench) == unbroken
    bench.assert_clean()


def test_of_a_run_that_is_over_the_failures_and_the_table_are_shown(bench: Bench) -> None:
    bench.write(**SMALL, methods=["scripted", method("broken", at="load", do="raise")], policies=NO_SECOND_TRY)
    assert bench.run().returncode == 1
    before = stamps(bench.run_dir)
    plain = Watcher(bench)
    code, out, err = plain.end()
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert "failed" in lines[1]
    assert "broken" in lines[1]
    assert any(line.startswith("scripted") and "ok" in line for line in lines)
    assert not any(" started in " in line for line in lines), "only what went wrong is told of the past"
    with watching(bench, "--once") as watcher:
        watcher.until("event", event="point_ended", outcome="failed")
        watcher.until("results")
        assert watcher.end()[0] == 1
    assert stamps(bench.run_dir) == before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_who_ends_it_ends_nothing_else(bench: Bench, tmp_path: Path, unbroken: Outputs, signum: signal.Signals) -> None:
    gate = gated_batch(bench, tmp_path)
    running = bench.start()
    with held(gate), watching(bench) as watcher:
        watcher.until("progress")
        os.killpg(watcher.process.pid, signum)
        code, _, err = watcher.end()
        assert code == (130 if signum == signal.SIGINT else 143)
        assert "Traceback" not in err
        if signum == signal.SIGINT:
            assert err == ""
    assert running.wait(PATIENCE_S) == 0
    running.communicate()
    assert outputs(bench) == unbroken


def test_a_resume_that_begins_while_it_watches_is_followed(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    bench.write(**SMALL, methods=[method("slow", at="batch:2", do="hang", once=once, touch=fifo.path)])
    running = bench.start()
    fifo.line()
    with watching(bench) as watcher:
        watcher.until("progress")
        watcher.process.send_signal(signal.SIGSTOP)  # it looks away
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 130
        running.communicate()
        assert bench.run("--resume").returncode == 0
        watcher.process.send_signal(signal.SIGCONT)
        watcher.until("results")
        assert watcher.end()[0] == 0
    texts = watcher.texts()
    assert any(text.startswith("ended with exit code 130") for text in texts)
    assert any("start 2 of this run" in text for text in texts)


def test_a_coordinator_that_was_killed_is_told_of(bench: Bench, fifo: Fifo) -> None:
    bench.write(**SMALL, methods=[method("slow", at="batch:2", do="hang", touch=fifo.path)])
    running = bench.start()
    fifo.line()
    with watching(bench) as watcher:
        watcher.until("progress")
        workers = bench.processes()
        running.kill()
        running.communicate()
        wait_gone(workers, GONE_AFTER_KILL_S)
        assert "ended without a word" in watcher.until("results")["text"]
        assert watcher.end()[0] == 70
    assert bench.run_dir.joinpath("lock").read_text(), "as the dead one left it"


def test_a_reader_that_leaves_ends_it(bench: Bench, tmp_path: Path) -> None:
    gate = gated_batch(bench, tmp_path)
    running = bench.start()
    with held(gate), watching(bench) as watcher:
        assert watcher.until("note")["text"].startswith(f"following {bench.run_dir}; ^C ends this view")
        watcher.until("progress")
        assert watcher.process.stdout
        watcher.process.stdout.close()
        assert watcher.process.wait(PATIENCE_S) == 0
    assert running.wait(PATIENCE_S) == 0
    running.communicate()


@pytest.mark.parametrize("view", ["plain", "json"])
def test_a_full_disk_is_no_reader_that_has_left(bench: Bench, tmp_path: Path, view: str) -> None:
    gate = gated_batch(bench, tmp_path)
    running = bench.start()
    argv = [sys.executable, "-m", "orchestrator", "watch", str(bench.run_dir), "--view", view]
    with open("/dev/full", "w") as full, held(gate):
        going = subprocess.Popen(argv, env=bench.env, stdout=full, stderr=subprocess.PIPE)
        if view == "json":  # the others have nothing to say yet
            assert going.wait(PATIENCE_S) == 74
    assert going.communicate(timeout=PATIENCE_S)[1] == b""
    assert (going.returncode, running.wait(PATIENCE_S)) == (74, 0)
    running.communicate()


def test_where_there_is_no_run_it_says_so(bench: Bench) -> None:
    code, out, err = Watcher(bench).end()
    assert (code, out) == (2, "")
    assert "there is no such run directory" in err
