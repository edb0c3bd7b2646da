"""The spans of a run out of its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator import events as ev
from orchestrator.report import RunView
from orchestrator.view import timeline
from orchestrator.view.timeline import MOST_SPANS, PHASES, Span, merged
from protocol.records import BatchStats
from tests.unit import rundirs

LIFE = (("importing", 1.0), ("standby", 3.0), ("loading", 5.0), ("ready", 9.0))


def launched(at: float, name: str = "w1", method: str = "hf_sdpa", slot: str = "slot0") -> ev.WorkerLaunched:
    values: dict[str, Any] = {"engine": "hf", "env": "hf", "fingerprint": "f", "pid": 1, "log": "l"}
    return ev.WorkerLaunched(at=at, incarnation=name, method=method, slot=slot, **values)


def state(at: float, name: str, what: str) -> ev.StateChanged:
    return ev.StateChanged(at=at, incarnation=name, state=what, after_s=0.0)


def run_started(at: float, life: int = 1) -> ev.RunStarted:
    return ev.RunStarted(at=at, life=life, pid=1, airlock="1", host="h", plan_digest="p", points=1)


def released(at: float, name: str) -> ev.WorkerReleased:
    return ev.WorkerReleased(at=at, incarnation=name, exit_status=0, signal=None, cause=None, reclaim=rundirs.reclaim())


def life_of(name: str, begin: float, *, method: str = "hf_sdpa", slot: str = "slot0") -> Iterator[ev.Event]:
    """Ready after 9 s, a point of 6 s whose first 2 s are a warm-up batch, gone after 17 s."""
    yield launched(begin, name, method, slot)
    yield from (state(begin + at, name, what) for what, at in LIFE)
    yield ev.PointStarted(at=begin + 10, point=f"{name}-p", incarnation=name, prompts=1)
    yield ev.WarmupDone(at=begin + 12, point=f"{name}-p", batch="b", stats=BatchStats(wall_s=2.0, generated_tokens=1))
    yield ev.PointEnded(at=begin + 16, point=f"{name}-p", outcome="ok")
    yield state(begin + 16, name, "draining")
    yield released(begin + 17, name)


def spans(events: Iterable[ev.Event]) -> list[tuple[str, float, float]]:
    return [(one.phase, one.begin_s, one.end_s) for one in timeline.timeline(events).spans]


def test_a_worker_passes_through_its_phases() -> None:
    assert spans([run_started(100), *life_of("w1", 100)]) == [
        ("start", 0, 1),
        ("import", 1, 3),
        ("held", 3, 5),
        ("load", 5, 9),
        ("warm-up", 10, 12),
        ("generate", 12, 16),
        ("teardown", 16, 17),
    ]


def test_who_dies_in_a_batch_generates_until_it_is_taken_down() -> None:
    events: list[ev.Event] = [run_started(0), launched(0), state(1, "w1", "ready")]
    events += [ev.PointStarted(at=2, point="p", incarnation="w1", prompts=1), state(7, "w1", "killing")]
    assert spans([*events, released(8, "w1")])[1:] == [("generate", 2, 7), ("teardown", 7, 8)]


def test_what_is_under_way_has_lasted_until_the_last_event() -> None:
    assert spans([run_started(0), launched(0), state(1, "w1", "importing"), state(4, "w2", "importing")]) == [
        ("start", 0, 1),
        ("import", 1, 4),
    ]


def test_the_night_between_two_starts_is_a_break_and_ends_what_was_under_way() -> None:
    found = timeline.timeline(
        [run_started(0), launched(0), state(2, "w1", "loading"), run_started(5000, 2), launched(5001)]
    )
    assert [(one.phase, one.begin_s, one.end_s) for one in found.spans] == [("start", 0, 2)]
    assert [(one.at_s, one.away_s) for one in found.breaks] == [(2, 4998)]
    assert found.length_s == 3


def test_a_clock_that_is_set_back_makes_no_span_of_negative_length() -> None:
    found = timeline.timeline(
        [run_started(100), launched(101), state(50, "w1", "importing"), state(103, "w1", "loading")]
    )
    assert all(one.end_s >= one.begin_s for one in found.spans)
    assert found.length_s == 3


def test_waits_are_told_by_the_slot_they_were_for() -> None:
    wait = ev.Waited(at=30, what="slot", reason="a stranger", wait_s=20, slot="slot1")
    (found,) = timeline.timeline([run_started(0), wait]).spans
    assert found == Span("slot1", "", "waiting", 10, 30)


def test_a_long_run_keeps_a_bounded_number_of_spans_and_says_so() -> None:
    events = (event for n in range(3000) for event in life_of(f"w{n}", n * 20.0, method=f"m{n % 3}"))
    found = timeline.values(events)
    assert 100 < len(found["spans"]) <= MOST_SPANS
    assert found["merged"] > 0
    assert found["length_s"] == 2999 * 20 + 17
    longest = max(one["end_s"] - one["begin_s"] for one in found["spans"] if one["count"] > 1)
    assert longest <= found["resolution_s"]
    assert sum(one["count"] for one in found["spans"]) == 3000 * 7


SPAN = st.builds(
    lambda lane, phase, begin, length: Span(f"slot{lane}", "m", phase, begin, begin + length),
    st.integers(0, 2),
    st.sampled_from(PHASES),
    st.floats(0, 100),
    st.floats(0.001, 5),
)


@given(st.lists(SPAN, max_size=60), st.floats(0.01, 200))
def test_merging_loses_no_span_and_no_time(found: list[Span], resolution_s: float) -> None:
    found.sort(key=lambda one: one.begin_s)
    after = merged(found, resolution_s)
    assert sum(one.count for one in after) == len(found)
    assert {one.slot for one in after} == {one.slot for one in found}
    reach = [(min(s.begin_s for s in some), max(s.end_s for s in some)) for some in (after, found) if some]
    assert len(set(reach)) <= 1
    assert all(one.end_s - one.begin_s <= resolution_s for one in after if one.count > 1)


def test_of_a_run_directory(tmp_path: Path) -> None:
    rundirs.finished_run(tmp_path / "run")
    found = timeline.values(RunView.load(tmp_path / "run").replay.events())
    assert found["slots"] == ["slot0"]
    assert {one["method"] for one in found["spans"]} == {"hf_sdpa", "vllm_fa"}
