"""The coordinator killed before and in the middle of every single write into the run directory, then resumed:
the same records as an unbroken run, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from orchestrator.record.generations import read_records
from orchestrator.record.replay import JOURNAL_NAME, replay
from tests.process.dying import Fate, Lives
from tests.process.sweeping import GONE_AFTER_KILL_S, Bench

pytestmark = pytest.mark.usefixtures("nothing_leaked")

#: A killed coordinator's worker takes its time to go, and needs no processor for it.
AT_A_TIME = 4

Outputs = Counter[tuple[Any, ...]]
Check = Callable[["Trial", Fate], str]


class Trial:
    """Sweeps of two prompts, each in a run directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench(folder)
        self.bench.write(prompts=["a", "b"], matrix={"batch_size": [1]})
        self._lives = Lives(folder / "log", self.bench.env)
        self._numbers = count()
        self.unbroken, self.writes = self._unbroken()

    def _unbroken(self) -> tuple[Outputs, int]:
        run_dir = self.fresh()
        ended = self.sweep(run_dir, {})
        assert ended.code == 0, ended.output
        return outputs(run_dir), ended.writes

    def fresh(self) -> Path:
        return self.bench.folder / f"run{next(self._numbers)}"

    def sweep(self, run_dir: Path, fate: Fate, *args: str) -> Any:
        argv = ("sweep", str(self.bench.folder / "sweep.yaml"), "--run-dir", str(run_dir), *args)
        return self._lives.live(fate, *argv)

    def close(self) -> None:
        self._lives.__exit__()
        assert not list(self.bench.tmp.iterdir())


def outputs(run_dir: Path) -> Outputs:
    """All committed records; generations.jsonl holds nothing else once a run was resumed."""
    records = list(read_records(run_dir, replay(run_dir).ranges))
    assert len(records) == len((run_dir / "generations.jsonl").read_bytes().splitlines())
    return Counter((r.point, r.prompt_id, tuple(r.token_ids), r.text, r.finish_reason, r.error) for r in records)


@pytest.fixture
def trials(nothing_leaked: None, tmp_path: Path) -> Iterator[list[Trial]]:  # noqa: ARG001
    with ExitStack() as stack:
        made = [Trial(tmp_path / f"t{number}") for number in range(AT_A_TIME)]
        for trial in made:
            stack.callback(trial.close)
        yield made


def all_of(trials: list[Trial], check: Check, fates: list[Fate]) -> None:
    free: SimpleQueue[Trial] = SimpleQueue()
    for trial in trials:
        free.put(trial)

    def one(fate: Fate) -> str:
        trial = free.get()
        try:
            return f"{dict(fate)}: {problem}" if (problem := check(trial, fate)) else ""
        finally:
            free.put(trial)

    with ThreadPoolExecutor(len(trials)) as pool:
        assert [problem for problem in pool.map(one, fates) if problem] == []


def killed_and_finished(trial: Trial, fate: Fate) -> str:
    """What is wrong with it, if anything."""
    run_dir = trial.fresh()
    killed = trial.sweep(run_dir, fate)
    if killed.code != -9:
        return f"was not killed: {killed}"
    if killed.gone_s > GONE_AFTER_KILL_S:
        return f"its processes were gone only after {killed.gone_s:.1f} s"
    begun = (run_dir / JOURNAL_NAME).exists()
    again = trial.sweep(run_dir, {}, *(["--resume"] if begun else []))
    if again.code != 0:
        return f"could not be {'resumed' if begun else 'begun again'}: {again.output}"
    return "" if outputs(run_dir) == trial.unbroken else f"has other records: {outputs(run_dir)}"


def test_at_every_write_of_a_run(trials: list[Trial]) -> None:
    moments = range(1, trials[0].writes + 1)
    assert len(moments) > 20
    all_of(trials, killed_and_finished, [{"write": n, "torn": torn} for n in moments for torn in (False, True)])


def test_while_the_files_of_a_beginning_are_put_in_place(trials: list[Trial]) -> None:
    all_of(trials, killed_and_finished, [{"replace": n} for n in (1, 2, 3)])


def killed_again_and_finished(trial: Trial, fate: Fate) -> str:
    """Killed in the middle of a commit, then while what that left is repaired or soon after."""
    run_dir = trial.fresh()
    first = trial.sweep(run_dir, {"write": trial.writes // 2, "torn": True})
    second = trial.sweep(run_dir, fate, "--resume")
    if (first.code, second.code) != (-9, -9):
        return f"were not killed: {first} {second}"
    last = trial.sweep(run_dir, {}, "--resume")
    if last.code != 0:
        return f"could not be resumed: {last.output}"
    return "" if outputs(run_dir) == trial.unbroken else f"has other records: {outputs(run_dir)}"


def test_a_second_kill_at_every_early_write_of_the_resumed_life(trials: list[Trial]) -> None:
    all_of(trials, killed_again_and_finished, [{"write": n, "torn": True} for n in range(1, 9)])
