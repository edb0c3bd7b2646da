"""A run that is followed while it is written says, at each moment, what one says that is read as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import JournalError
from orchestrator.events import Event, PointEnded, PointSkipped, PointStarted, RunStarted, StateChanged
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause
from orchestrator.record.framing import JOURNAL_NAME
from orchestrator.record.replay import RECORDS_NAME
from orchestrator.report import RunView, results, status
from orchestrator.view.follow import Follower
from tests.unit.rundirs import (
    PROMPTS,
    a_plan,
    begin,
    commit,
    end,
    ended,
    finished_run,
    launch,
    record,
    release,
    run_point,
    started,
    state,
)

PLAN = a_plan()
HF, VLLM = PLAN.starts


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def journal(run_dir: Path) -> Iterator[Journal]:
    made = begin(run_dir, PLAN)
    yield made
    made.close()


def told(view: RunView) -> tuple[Any, ...]:
    return status(view), results(view), view.missing, [w.launched.incarnation for w in view.current], view.most_slots


def assert_same(follower: Follower, run_dir: Path) -> None:
    assert told(follower.view()) == told(RunView.load(run_dir))


def test_it_says_what_a_view_says_that_is_loaded_anew(run_dir: Path, journal: Journal) -> None:
    follower = Follower(run_dir)
    assert_same(follower, run_dir)
    for number, start in enumerate(PLAN.starts):
        name = f"w{number}-x"
        launch(journal, start, name)
        assert_same(follower, run_dir)
        for point in start.points:
            run_point(journal, point, name)
            assert_same(follower, run_dir)
            journal.emit(ended(point=point.id))
        assert_same(follower, run_dir)
        release(journal, name)
    end(journal)
    assert_same(follower, run_dir)
    assert follower.view().state == "finished"


def test_a_retry_of_what_had_ended_is_counted_once(run_dir: Path, journal: Journal) -> None:
    follower, point = Follower(run_dir), HF.points[0]
    launch(journal, HF, "w1-x")
    journal.emit(PointStarted(at=1.0, point=point.id, incarnation="w1-x", prompts=3))
    error = Cause(cls="bad_prompt", message="no")
    bad = record("a", point=point.id, batch="b0", error=error)
    journal.commit(point=point.id, batch="b0", incarnation="w1-x", records=[bad], stats=None)
    journal.emit(ended("failed", point=point.id))
    assert_same(follower, run_dir)
    assert follower.progress().points_failed == 1
    journal.emit(started(life=2))
    launch(journal, HF, "w2-x")
    run_point(journal, point, "w2-x")
    assert_same(follower, run_dir)
    assert follower.progress().points_failed == 0
    journal.emit(ended(point=point.id))
    assert_same(follower, run_dir)
    assert follower.progress().points_done == 1


def test_every_event_is_told_once_and_only_what_is_new_is_read(run_dir: Path, journal: Journal) -> None:
    heard: list[Event] = []
    follower = Follower(run_dir, heard.append)
    follower.view()
    assert [type(event) for event in heard] == [RunStarted]
    before = (run_dir / JOURNAL_NAME).read_bytes()
    launch(journal, HF, "w1-x")
    # What was read is not looked at again: it may be hundreds of megabytes.
    with open(run_dir / JOURNAL_NAME, "r+b") as file:
        file.write(b"#" * len(before))
    follower.view()
    follower.view()
    assert len(heard) == 4


def test_what_a_live_writer_has_half_written_waits(run_dir: Path, journal: Journal) -> None:
    heard: list[Event] = []
    follower = Follower(run_dir, heard.append)
    follower.view()
    journal.emit(ended("failed", point=HF.points[0].id))
    path = run_dir / JOURNAL_NAME
    whole = path.read_bytes()
    for length in (1, 40):
        path.write_bytes(whole[:-length])
        assert follower.view().replay.torn
        assert len(heard) == 1
    path.write_bytes(whole)
    assert follower.view().replay.torn is None
    assert [type(event) for event in heard] == [RunStarted, PointEnded]
    path.write_bytes(whole + b'{"crc":')
    follower.view()
    path.write_bytes(whole)  # as a resume sets it aside
    assert follower.view().replay.torn is None
    assert len(heard) == 2


def test_a_repair_that_cut_off_commits_is_read_anew_and_not_told_twice(run_dir: Path, journal: Journal) -> None:
    heard: list[Event] = []
    follower, point = Follower(run_dir, heard.append), HF.points[0].id
    commit(journal, "a", point=point)
    commit(journal, "b", point=point)
    assert follower.view().missing[point] == 1
    journal.close()
    records = (run_dir / RECORDS_NAME).read_bytes()
    (run_dir / RECORDS_NAME).write_bytes(records[: len(records) - 5])  # a disk that lied
    resumed, _ = Journal.resume(run_dir)
    resumed.emit(started(life=2))
    commit(resumed, "bc", point=point)
    assert follower.view().missing == RunView.load(run_dir).missing
    assert point not in follower.view().missing
    resumed.close()
    assert len(heard) == 5


def test_a_run_that_is_gone_and_another_in_its_place(run_dir: Path, tmp_path: Path) -> None:
    heard: list[Event] = []
    finished_run(run_dir)
    follower = Follower(run_dir, heard.append)
    follower.view()
    count = len(heard)
    run_dir.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(JournalError, match="gone"):
            follower.view()
    with closing(begin(run_dir, PLAN)) as journal:
        assert follower.view().state == "running"
        assert [type(event) for event in heard[count:]] == [RunStarted]
        assert follower.progress().points_done == 0
        journal.emit(ended(point=HF.points[0].id))
        assert follower.progress().points_done == 1
    shutil.rmtree(run_dir)
    with pytest.raises(JournalError):
        follower.progress()


@pytest.mark.usefixtures("journal")
def test_damage_in_the_middle_is_told_each_time(run_dir: Path) -> None:
    follower = Follower(run_dir)
    follower.view()
    whole = (run_dir / JOURNAL_NAME).read_bytes()
    (run_dir / JOURNAL_NAME).write_bytes(whole + b"nonsense\n" + whole)
    for _ in range(2):
        with pytest.raises(JournalError, match="damaged"):
            follower.view()
    (run_dir / JOURNAL_NAME).write_bytes(whole)
    assert follower.view().state == "running"


# --- progress --------------------------------------------------------------------------


def test_progress_says_who_works_at_what(run_dir: Path, journal: Journal) -> None:
    follower, point = Follower(run_dir), HF.points[1]  # batch_size 2
    assert follower.progress().workers == []
    launch(journal, HF, "w1-x")
    (worker,) = follower.progress().workers
    assert (worker.slot, worker.method, worker.state, worker.settings) == ("slot0", "hf_sdpa", "ready", {})
    run_point(journal, point, "w1-x")
    (worker,) = follower.progress().workers
    assert (worker.state, worker.point, worker.settings) == ("busy", point.id, {"batch_size": 2})
    assert (worker.batches_done, worker.batches_total) == (2, 2 * (3 + 2))
    assert worker.tokens_per_s == 6.0
    assert worker.memory_bytes == 1 << 30
    journal.emit(PointStarted(at=1.0, point=HF.points[0].id, incarnation="w1-x", prompts=3))
    assert follower.progress().workers[0].tokens_per_s is None, "of the point before"
    journal.emit(ended(point=point.id))
    journal.emit(PointSkipped(at=1.0, point=HF.points[3].id, reason="enough"))
    journal.emit(StateChanged(at=1.0, incarnation="w1-x", state="draining", after_s=1.0))
    found = follower.progress()
    assert (found.workers[0].state, found.workers[0].batches_total) == ("draining", 8)
    assert (found.points_done, found.points_skipped, found.points_total) == (1, 1, 8)
    release(journal, "w1-x")
    assert follower.progress().workers == []


def test_the_rest_is_forecast_once_something_was_measured(run_dir: Path, journal: Journal) -> None:
    follower = Follower(run_dir)
    assert follower.progress().eta_s is None
    for name in ("launching", "importing"):
        journal.emit(state(name))
    launch(journal, HF, "w1-x")
    journal.emit(StateChanged(at=1.0, incarnation="w1-x", state="loading", after_s=2.0))
    journal.emit(StateChanged(at=1.0, incarnation="w1-x", state="ready", after_s=3.0))
    run_point(journal, HF.points[0], "w1-x")
    fresh = Follower(run_dir)
    found = fresh.progress().eta_s
    assert found is not None
    assert found > 0


def test_a_run_that_has_ended_has_no_workers_and_nothing_left(run_dir: Path) -> None:
    finished_run(run_dir)
    found = Follower(run_dir).progress()
    assert found.workers == []
    assert found.eta_s is None
    assert found.points_done == len(PLAN.points) == found.points_total


def test_events_of_points_that_the_plan_does_not_have_do_no_harm(run_dir: Path, journal: Journal) -> None:
    launch(journal, HF, "w1-x")
    journal.emit(PointStarted(at=1.0, point="strange", incarnation="w1-x", prompts=len(PROMPTS)))
    commit(journal, "a", point="strange")
    journal.emit(ended(point="strange"))
    found = Follower(run_dir).progress()
    assert found.points_done == 0
    assert found.workers[0].settings == {}
