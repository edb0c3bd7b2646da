"""A run that is read point by point says what one says that is read as a whole, whatever its journal went through."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import JournalError
from orchestrator.events import BatchCommitted, Event, PointEnded, PointStarted
from orchestrator.journal import encode_event, encode_record
from orchestrator.outcomes import Cause
from orchestrator.record.bypoint import ByPoint
from orchestrator.record.cutoff import Rewound, cut_off
from orchestrator.record.framing import JOURNAL_NAME
from orchestrator.record.generations import read_records
from orchestrator.record.replay import RECORDS_NAME, Replay, frame, replay
from orchestrator.record.spans import GAP_BYTES
from orchestrator.report import RunView, results, rows
from tests.unit.rundirs import HF, PROMPTS, VLLM, a_plan, begin, end, ended, launch, record, release, run_point, stats

POINTS = ("p", 'q"', "r")


class Run:
    """Writes both files as the coordinator would, repairs and disks that lie included."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.data = b""
        self.lines: list[bytes] = []
        self.count = 0

    def emit(self, event: Event) -> None:
        self.lines.append(frame(encode_event(event)))

    def commit(self, point: str, prompts: list[str], fail: bool) -> None:
        self.count += 1
        batch = f"b{self.count}"
        error = Cause(cls="bad_prompt", message="x") if fail else None
        records = [record(name, point=point, batch=batch, error=error) for name in prompts]
        data = b"".join(encode_record(one) + b"\n" for one in records)
        place: dict[str, Any] = {"offset": len(self.data), "length": len(data), "crc": zlib.crc32(data)}
        self.emit(
            BatchCommitted(
                at=1.0,
                point=point,
                batch=batch,
                incarnation="w1-abc",
                prompts=prompts,
                stats=stats(wall_s=0.1 * self.count),
                errors=len(prompts) if fail else 0,
                **place,
            )
        )
        self.data += data

    def cut(self, batches: int) -> None:
        """A repair found the last batches gone."""
        ends = [0, *(one.offset + one.length for one in self.kept)]
        self.data = self.data[: ends[max(0, len(ends) - 1 - batches)]]

    @property
    def kept(self) -> list[BatchCommitted]:
        return [part.commit for part in self.write().ranges]

    def write(self) -> Replay:
        self.run_dir.mkdir(exist_ok=True)
        (self.run_dir / JOURNAL_NAME).write_bytes(b"".join(self.lines))
        (self.run_dir / RECORDS_NAME).write_bytes(self.data)
        return replay(self.run_dir)


def read(run_dir: Path) -> ByPoint:
    try:
        found = ByPoint(run_dir, PROMPTS)
        list(found.read())
    except Rewound:
        found = ByPoint(run_dir, PROMPTS, cut_off(run_dir))
        list(found.read())
    return found


some = st.lists(st.sampled_from([*PROMPTS, "stray"]), min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(POINTS), some, st.booleans()),
        st.tuples(st.just("start"), st.sampled_from(POINTS)),
        st.tuples(st.just("end"), st.sampled_from(POINTS), st.sampled_from(["ok", "partial"])),
        st.tuples(st.just("cut"), st.integers(1, 3)),
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(steps=steps, lost=st.integers(0, 2))
def test_it_says_what_a_whole_replay_says(tmp_path_factory: pytest.TempPathFactory, steps: Any, lost: int) -> None:
    run = Run(tmp_path_factory.mktemp("run") / "run")
    for kind, *what in steps:
        match kind:
            case "commit":
                run.commit(*what)
            case "start":
                run.emit(PointStarted(at=1.0, point=what[0], incarnation="w1-abc", prompts=3))
            case "end":
                run.emit(PointEnded(at=1.0, point=what[0], outcome=what[1]))
            case _:
                run.cut(*what)
    if lost:
        run.cut(lost)
    whole, found = run.write(), read(run.run_dir)
    assert found.outcomes == whole.outcomes
    assert (found.records, found.torn) == (whole.records, whole.torn)
    assert {point: stand.errors for point, stand in found.stands.items() if stand.errors} == {
        point: count for point, count in whole.errors.items() if count
    }
    assert found.measured_s == sum(part.commit.stats.wall_s for part in whole.ranges if part.commit.stats)
    for point in POINTS:
        assert found.missing(point) == len(set(PROMPTS) - whole.committed.get(point, set()))
        assert found.part([point]).ranges == [part for part in whole.ranges if part.commit.point == point]
    ranges = [part for some in found.ranges() for part in some]
    assert ranges == found.part(POINTS).ranges == list(whole.ranges)
    assert list(found.records_of(ranges)) == list(read_records(run.run_dir, whole.ranges))


def test_a_commit_that_is_missing_stops_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    for name in PROMPTS:
        run.commit("p", [name], False)
    del run.lines[1]
    with pytest.raises(JournalError, match="a commit is missing before batch b3 of point p"):
        run.write()
    with pytest.raises(JournalError, match="a commit is missing before batch b3 of point p"):
        read(run.run_dir)


def test_what_stands_far_apart_is_read_without_what_is_between(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.commit("p", ["a"], False)
    while sum(map(len, run.lines)) < 2 * GAP_BYTES:
        run.commit(f"other-{run.count}", ["a"], False)
    run.commit("p", ["b"], False)
    run.write()
    found = read(run.run_dir)
    assert len(found.stands["p"].spans) == 4
    assert [part.commit.prompts for part in found.part(["p"]).ranges] == [["a"], ["b"]]


def a_run(run_dir: Path, at_once: bool, repeats: int = 2, sizes: tuple[int, ...] = (1, 2)) -> RunView:
    """Both methods, one after the other or on two slots at once; each point's batches are the same."""
    plan = a_plan((HF, VLLM), sizes, repeats)
    journal = begin(run_dir, plan)
    pairs = list(zip(*(start.points for start in plan.starts), strict=True))
    order = [p for both in pairs for p in both] if at_once else [p for start in plan.starts for p in start.points]
    names = {start.config.method.name: f"w{number}" for number, start in enumerate(plan.starts)}
    for start in plan.starts if at_once else ():
        launch(journal, start, names[start.config.method.name])
    for point in order:
        start = next(start for start in plan.starts if point in start.points)
        if not at_once and point == start.points[0]:
            launch(journal, start, names[point.method])
        run_point(journal, point, names[point.method], wall_s=0.5 + point.repeat)
        journal.emit(ended(point=point.id))
    for name in names.values():
        release(journal, name)
    end(journal)
    return RunView.load(run_dir)


def test_workers_that_run_at_once_come_to_the_same_figures(tmp_path: Path) -> None:
    one, two = (results(a_run(tmp_path / str(at_once), at_once)) for at_once in (False, True))
    for what in ("rows", "agreement", "memory", "failures", "measured_s", "complete"):
        assert one[what] == two[what], what


def a_large_run(run_dir: Path, sizes: tuple[int, ...]) -> RunView:
    """Outputs of 20,000 tokens that differ from the reference's at once."""
    plan = a_plan((HF, VLLM), sizes, 1)
    journal = begin(run_dir, plan)
    for point in plan.points:
        ids = [len(point.method)] * 20_000
        records = [
            record(name, point=point.id, text="x" * 20_000, token_ids=ids, itl_s=[0.5] * 20_000) for name in PROMPTS
        ]
        journal.commit(point=point.id, batch="b1", incarnation="w1-abc", records=records, stats=stats())
    end(journal)
    return RunView.load(run_dir)


def test_memory_does_not_grow_with_points(tmp_path: Path) -> None:
    peaks = []
    rows(a_large_run(tmp_path / "first", (1,)))  # what is imported and made once
    for name, sizes in (("few", (1, 2)), ("many", tuple(range(1, 17)))):
        view = a_large_run(tmp_path / name, sizes)
        tracemalloc.start()
        assert len(rows(view)) == 2 * len(sizes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], "eight times as many points"
