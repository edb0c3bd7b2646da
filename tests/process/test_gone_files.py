"""Files of a run that are removed or moved while it works: it stops at once, and says what became of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME
from tests.process.launching import Fifo
from tests.process.sweeping import NO_SECOND_TRY, PATIENCE_S, PROMPTS, QUICK_LIMITS, Bench, method, wait_gone

pytestmark = pytest.mark.usefixtures("nothing_leaked")


def removed(bench: Bench, name: str) -> None:
    (bench.run_dir / name).unlink()


def emptied(bench: Bench, name: str) -> None:
    (bench.run_dir / name).write_bytes(b"")


def all_removed(bench: Bench, _name: str) -> None:
    shutil.rmtree(bench.run_dir)


def moved(bench: Bench, _name: str) -> None:
    bench.run_dir.rename(bench.folder / "moved")


CASES: list[tuple[Callable[[Bench, str], Any], str, str]] = [
    (removed, RECORDS_NAME, "was removed while this run wrote to it"),
    (removed, JOURNAL_NAME, "was removed while this run wrote to it"),
    (emptied, RECORDS_NAME, "was cut short, from"),
    (emptied, JOURNAL_NAME, "was cut short, from"),
    (all_removed, JOURNAL_NAME, "was removed while this run wrote to it"),
    (moved, JOURNAL_NAME, "was moved while this run wrote to it: it is {folder}/moved/journal.jsonl now; --resume it"),
]


@pytest.mark.parametrize(("act", "name", "told"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_the_run_stops_at_once(
    bench: Bench, fifo: Fifo, act: Callable[[Bench, str], Any], name: str, told: str
) -> None:
    """A method hangs at its second batch, and many more are to come."""
    hanging = method("hanging", at="batch:2", do="hang", touch=fifo.path)
    more = [{"name": f"m{n}", "base": "scripted", "engine_args": {"salt": str(n)}} for n in range(9)]
    bench.write(
        methods=[hanging, *more],
        matrix={"batch_size": [1]},
        policies=NO_SECOND_TRY,
        limits={**QUICK_LIMITS, "batch_s": 1},
    )
    sweep = bench.start("--view", "plain")
    fifo.line()
    workers = bench.processes()
    act(bench, name)
    out, err = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == EXIT_STOPPED_EARLY, out + err
    assert f"stopped: {bench.run_dir / name}: {told.format(folder=bench.folder)}" in out + err
    assert "Traceback" not in out + err
    wait_gone(workers, PATIENCE_S)
    assert not bench.processes()
    assert not list(bench.tmp.iterdir())
    assert "m1: worker" not in out, "nothing more was begun"


def test_a_run_that_was_moved_is_gone_on_with_where_it_is(bench: Bench, fifo: Fifo, tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    hanging = method("hanging", at="batch:2", do="hang", touch=fifo.path, once=once)
    bench.write(methods=[hanging], matrix={"batch_size": [1]}, limits={**QUICK_LIMITS, "batch_s": 1})
    sweep = bench.start()
    fifo.line()
    moved(bench, "")
    out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == EXIT_STOPPED_EARLY, out
    bench.run_dir = bench.folder / "moved"
    again = bench.run("--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert list(bench.keys().values()) == [1] * len(PROMPTS)
    bench.assert_clean()


def socket_removed(bench: Bench) -> None:
    (place,) = bench.tmp.iterdir()
    (place / "s").unlink()


def folder_removed(bench: Bench) -> None:
    (place,) = bench.tmp.iterdir()
    shutil.rmtree(place)


def logs_removed(bench: Bench) -> None:
    shutil.rmtree(bench.run_dir / "logs")


@pytest.mark.parametrize("clean", [socket_removed, folder_removed, logs_removed])
def test_what_a_cleaner_of_old_files_removes_costs_the_next_method_nothing(
    bench: Bench, fifo: Fifo, tmp_path: Path, clean: Callable[[Bench], None]
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    faults = [{"at": "batch:1", "do": "mark", "touch": fifo.path}, {"at": "batch:2", "do": "mark", "gate": str(gate)}]
    first = {"name": "first", "base": "scripted", "engine_args": {"faults": faults}}
    bench.write(methods=[first, "scripted"], matrix={"batch_size": [1]}, policies=NO_SECOND_TRY)
    sweep = bench.start()
    fifo.line()
    clean(bench)
    gate.open("wb").close()
    out, err = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 0, out + err
    assert list(bench.keys().values()) == [1] * 2 * len(PROMPTS)
    bench.assert_clean()
