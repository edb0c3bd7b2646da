"""What a journal comes to, whatever was committed again, taken back by repairs or lost: as with all of it in memory."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import JournalError
from orchestrator.events import BatchCommitted, Event, PointEnded, PointStarted
from orchestrator.record.generations import read_records
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME, beginning, frame, replay
from tests.unit.rundirs import INCARNATION, commit, ended, new_run, record, started, stats

points = st.sampled_from(["p", "q", "r"])
prompts = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3, unique=True)
#: Commits (with how many errors), beginnings and ends of points, and repairs that took back the last commits.
steps = st.one_of(
    st.tuples(st.just("commit"), points, prompts, st.integers(0, 2)),
    st.tuples(st.just("start"), points),
    st.tuples(st.just("end"), points),
    st.tuples(st.just("repair"), st.integers(1, 2)),
)


@dataclass
class Held:
    """A run with all its commits in memory, as simply as can be."""

    journal: bytes = frame(msgspec.json.encode(started()))
    live: list[tuple[BatchCommitted, bytes]] = field(default_factory=list)
    outcomes: set[str] = field(default_factory=set)
    _made: int = 0
    _taken: list[str] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.journal += frame(msgspec.json.encode(event))

    def commit(self, point: str, names: Sequence[str], errors: int) -> None:
        self._made += 1
        batch = f"b{self._made}"
        data = b"".join(msgspec.json.encode(record(one, point=point, batch=batch)) + b"\n" for one in names)
        event = BatchCommitted(
            at=1.0,
            point=point,
            batch=batch,
            incarnation=INCARNATION,
            prompts=list(names),
            offset=sum(len(data) for _, data in self.live),
            length=len(data),
            crc=zlib.crc32(data),
            stats=stats(),
            errors=min(errors, len(names)),
        )
        self.outcomes.difference_update(self._taken)  # only a commit shows what a repair took back
        self._taken.clear()
        self.live.append((event, data))
        self.emit(event)

    def take_back(self, count: int) -> None:
        while count and self.live:
            self._taken.append(self.live.pop()[0].point)
            count -= 1

    def do(self, step: tuple[object, ...]) -> None:
        match step:
            case ("commit", str(point), list(names), int(errors)):
                self.commit(point, names, errors)
            case ("start", str(point)):
                self.outcomes.discard(point)
                self.emit(PointStarted(at=1.0, point=point, incarnation=INCARNATION, prompts=4))
            case ("end", str(point)):
                self.outcomes.add(point)
                self.emit(PointEnded(at=1.0, point=point, outcome="ok"))
            case ("repair", int(count)):
                self.take_back(count)

    def lose(self, count: int) -> bytes:
        """The records, without those of the last commits."""
        self.outcomes.difference_update(self._taken)
        for event, _ in self.live[len(self.live) - count :]:
            self.outcomes.discard(event.point)
        del self.live[len(self.live) - count :]
        return b"".join(data for _, data in self.live)

    @property
    def overtaken(self) -> list[set[str]]:
        events = [event for event, _ in self.live]
        return [
            {
                p
                for p in one.prompts
                if any(p in later.prompts and later.point == one.point for later in events[n + 1 :])
            }
            for n, one in enumerate(events)
        ]

    @property
    def errors(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (event, _), again in zip(self.live, self.overtaken, strict=True):
            found[event.point] = found.get(event.point, 0) + max(0, event.errors - len(again))
        return {point: count for point, count in found.items() if count}


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=14), st.integers(0, 2), st.booleans())
def test_any_journal_comes_to_the_same(taken: list[tuple[object, ...]], lost: int, check: bool) -> None:
    held = Held()
    for step in taken:
        held.do(step)
    if held._taken:  # the journal ends before anything shows a repair: then it is the disk that lost them
        held.commit("p", ["a"], 0)
    records = held.lose(min(lost, len(held.live)))
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        (run_dir / JOURNAL_NAME).write_bytes(held.journal)
        (run_dir / RECORDS_NAME).write_bytes(records)
        found = replay(run_dir, check=check)
        assert found.outcomes.keys() == held.outcomes
        assert found.records_bytes == len(records)
        assert [part.commit for part in found.ranges] == [event for event, _ in held.live]
        assert [part.overtaken for part in found.ranges] == held.overtaken
        assert len(found.ranges) == len(held.live)
        assert {point: count for point, count in found.errors.items() if count} == held.errors
        done = {
            event.point: {p for e, _ in held.live if e.point == event.point for p in e.prompts}
            for event, _ in held.live
        }
        assert found.committed == done
        left = [
            (e.point, p)
            for (e, _), again in zip(held.live, held.overtaken, strict=True)
            for p in e.prompts
            if p not in again
        ]
        assert [(one.point, one.prompt_id) for one in read_records(run_dir, found.ranges)] == left


def test_damage_before_the_last_commit_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    journal = new_run(tmp_path / "run")
    commit(journal, ["a"], batch="b1")
    commit(journal, ["b"], batch="b2")
    journal.close()
    path = tmp_path / "run" / RECORDS_NAME
    path.write_bytes(path.read_bytes().replace(b"p-1", b"p-2", 1))
    assert len(replay(tmp_path / "run").ranges) == 2
    with pytest.raises(JournalError, match="damaged at line 1"):
        replay(tmp_path / "run", check=True)


def test_how_a_run_was_begun_is_known_from_its_first_line(tmp_path: Path) -> None:
    journal = new_run(tmp_path / "run")
    assert beginning(tmp_path / "run") is None
    journal.emit(started())
    journal.emit(started(life=2))
    journal.emit(ended())
    journal.close()
    first = beginning(tmp_path / "run")
    assert first is not None
    assert first.life == 1
