"""What is said of the time that a run still takes: nothing before something was measured, and then what was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator import events as ev
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.record.output import FLAG_SUSPENDED
from orchestrator.run.forecast import Forecast, Remaining, cells_of, remaining, stopped_text
from tests.unit.rundirs import HF, PROMPTS, VLLM, a_plan, reclaim, stats

UP_S, DOWN_S, FIRST_S = 7.0, 1.3, 3.0
STATES = ("importing", "standby", "loading", "ready")


def batch_s(prompts: int, engine: str) -> float:
    return (0.5 if engine == "hf" else 0.2) * (1 + 0.1 * prompts)


@dataclass
class Lab:
    """Runs a plan with times that are always the same, and tells its events."""

    plan: Plan
    prompts: Sequence[str] = PROMPTS
    pace: Callable[[int, str], float] = batch_s
    now: float = 1000.0
    at_s: float = 0.0
    early: ev.Early = ""
    ends: list[float] = field(default_factory=list)

    def run(self) -> Iterator[ev.Event]:
        for number, start in enumerate(self.plan.starts):
            yield from self.start(start, f"w{number}")

    def start(self, start: WorkerStart, name: str) -> Iterator[ev.Event]:
        yield from self.up(start, name)
        for number, point in enumerate(start.points):
            yield from self.point(point, name, first=number == 0)
        yield from self.down(name)

    def up(self, start: WorkerStart, name: str) -> Iterator[ev.Event]:
        method = start.config.method
        yield ev.WorkerLaunched(
            at=self.now,
            incarnation=name,
            method=method.name,
            engine=method.engine,
            env=start.env,
            fingerprint="f",
            slot="slot0",
            pid=1,
            log="",
            early=self.early,
        )
        for state, after_s in zip(STATES, (1.0, 2.0, 500.0, UP_S - 3.0), strict=True):
            self.now += after_s
            yield ev.StateChanged(at=self.now, incarnation=name, state=state, after_s=after_s)

    def point(self, point: SweepPoint, name: str, first: bool) -> Iterator[ev.Event]:
        yield ev.PointStarted(at=self.now, point=point.id, incarnation=name, prompts=len(self.prompts))
        size, engine = point.config.batch_size, point.config.method.engine
        for n in range(self.plan.warmup):
            wall_s = FIRST_S if first and n == 0 else self.pace(min(size, len(self.prompts)), engine)
            self.now += wall_s
            yield ev.WarmupDone(at=self.now, point=point.id, batch="w", stats=stats(wall_s))
        for n in range(0, len(self.prompts), size):
            yield self.batch(point, name, self.prompts[n : n + size])
        yield ev.PointEnded(at=self.now, point=point.id, outcome="ok")

    def batch(self, point: SweepPoint, name: str, prompts: Sequence[str], flags: Sequence[str] = ()) -> ev.Event:
        wall_s = self.pace(len(prompts), point.config.method.engine)
        self.now += wall_s
        return ev.BatchCommitted(
            at=self.now,
            point=point.id,
            batch="b",
            incarnation=name,
            prompts=list(prompts),
            offset=0,
            length=1,
            crc=0,
            stats=stats(wall_s),
            flags=list(flags),
        )

    def down(self, name: str) -> Iterator[ev.Event]:
        proof = reclaim(teardown_s=DOWN_S - 0.3, wait_s=0.3)
        yield ev.WorkerReleased(at=self.now, incarnation=name, exit_status=0, signal=None, cause=None, reclaim=proof)

    def truth_s(self, start: WorkerStart) -> float:
        """What a whole start takes."""
        events = list(Lab(self.plan, self.prompts, self.pace).start(start, "w"))
        times = [one.stats.wall_s for one in events if isinstance(one, ev.WarmupDone | ev.BatchCommitted) and one.stats]
        return UP_S + DOWN_S + sum(times)


def whole(plan: Plan, prompts: Sequence[str] = PROMPTS) -> list[Remaining]:
    found = (remaining(s, cells_of(plan), prompts=len(prompts), warmup=plan.warmup) for s in plan.starts)
    return [one for one in found if one is not None]


def heard(plan: Plan, events: Iterator[ev.Event] | Sequence[ev.Event]) -> Forecast:
    forecast = Forecast(cells_of(plan))
    for event in events:
        forecast.heed(event)
    return forecast


def eta(forecast: Forecast, left: Sequence[Remaining], slots: int = 1) -> float:
    found = forecast.eta_s(left, slots)
    assert found is not None
    return found.eta_s


# --- nothing and all -------------------------------------------------------------


def test_before_a_batch_was_measured_nothing_is_said() -> None:
    plan = a_plan()
    lab, left = Lab(plan), whole(plan)
    forecast = Forecast(cells_of(plan))
    said = []
    for event in lab.start(plan.starts[0], "w0"):
        if isinstance(event, ev.WarmupDone):
            break
        forecast.heed(event)
        said.append(forecast.eta_s(left, 1))
        assert forecast.would_fit(left[0], 1e9) is None
    assert said == [None] * len(said)
    assert said


def test_a_run_that_is_over_takes_no_more_time() -> None:
    plan = a_plan()
    assert Forecast({}).eta_s([], 1) == (0.0, 0.0, 1.0)
    assert heard(plan, Lab(plan).run()).eta_s([], 3) == (0.0, 0.0, 1.0)
    assert remaining(plan.starts[0], cells_of(plan), prompts=3, warmup=1, left={}) is None


def test_once_all_has_been_measured_the_same_again_takes_as_long() -> None:
    plan = a_plan(sizes=(1, 2, 3))
    lab, left = Lab(plan), whole(plan)
    found = heard(plan, lab.run()).eta_s(left, 1)
    assert found is not None
    assert found.eta_s == pytest.approx(sum(map(lab.truth_s, plan.starts)), rel=1e-6)
    assert found.sure == 1.0


@settings(max_examples=40)
@given(
    st.integers(1, 9), st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3, unique=True), st.integers(1, 3)
)
def test_a_uniform_run_is_foretold_within_a_hundredth_once_each_method_ran(
    count: int, sizes: list[int], repeats: int
) -> None:
    """Half way through the second of two equal rounds of the same starts."""
    prompts = [f"p{n}" for n in range(count)]
    plan = replace(a_plan(sizes=sizes, repeats=repeats), prompt_ids=tuple(prompts))
    lab = Lab(plan, prompts)
    forecast = heard(plan, lab.run())
    for event in lab.start(plan.starts[0], "again"):
        forecast.heed(event)
    assert eta(forecast, whole(plan, prompts)[1:]) == pytest.approx(lab.truth_s(plan.starts[1]), rel=0.01)


def test_what_was_measured_of_the_method_counts_as_sure_and_the_rest_does_not() -> None:
    plan = a_plan()
    forecast = heard(plan, Lab(plan).start(plan.starts[0], "w0"))
    mine, other = whole(plan)
    found = forecast.eta_s([mine, other], 1)
    assert found is not None
    assert found.sure == pytest.approx(eta(forecast, [mine]) / found.work_s)
    assert 0.3 < found.sure < 0.7, "the other method is taken to be like this one"


def test_other_sizes_and_lengths_are_scaled() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,), repeats=1)
    forecast = heard(plan, Lab(plan, pace=lambda *_: 1.0).run())
    point = plan.starts[0].points[0]
    longer = replace(point.config, max_new_tokens=2 * point.config.max_new_tokens, batch_size=3)
    start = replace(plan.starts[0], points=(replace(point, config=longer),))
    other = replace(plan, starts=(start,))
    (one,) = (remaining(s, cells_of(other), prompts=3, warmup=0, begun=True) for s in other.starts)
    assert one is not None
    assert eta(forecast, [one]) == pytest.approx(DOWN_S + 2 * 3**0.5)


def test_scoring_says_nothing_of_generating() -> None:
    plan = a_plan(methods=(HF,))
    forecast = heard(plan, Lab(plan).run())
    point = plan.starts[0].points[0]
    scoring = replace(plan.starts[0], points=(replace(point, config=replace(point.config, task="score")),))
    assert forecast.eta_s(whole(replace(plan, starts=(scoring,))), 1) is None


# --- what is left ------------------------------------------------------------------


def test_what_is_left_of_a_start() -> None:
    start = a_plan(sizes=(2,)).starts[0]
    first, second = (point.id for point in start.points)
    cells = cells_of(a_plan(sizes=(2,)))

    def counts(left: dict[str, int], begun: bool = False) -> dict[tuple[int, str], int]:
        found = remaining(start, cells, prompts=3, warmup=2, left=left, begun=begun)
        assert found is not None
        assert sum(found.batches[batch] > 0 for batch in found.lead) == len(found.lead)
        return {(batch.size, batch.phase): count for batch, count in found.batches.items()}

    whole_batches = {(2, "measured"): 2, (1, "measured"): 2}
    assert counts({first: 3, second: 3}) == {**whole_batches, (2, "first"): 1, (2, "warm"): 3}
    assert counts({first: 3, second: 3}, begun=True) == {**whole_batches, (2, "warm"): 4}
    assert counts({first: 1, second: 0}, begun=True) == {(1, "measured"): 1}, "it is warm already"
    assert counts({second: 1}) == {(1, "measured"): 1, (2, "first"): 1, (2, "warm"): 1}


@st.composite
def leftovers(draw: st.DrawFn) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Of both starts how many prompts each point lacks, and the same with no fewer anywhere. What comes first in a
    start stays that: its first warm-up pays for compiling, and how much depends on the size of its batches."""
    plan = a_plan()
    less, more = [], []
    for start in plan.starts:
        counts = {point.id: draw(st.integers(0, 3)) for point in start.points}
        less.append(counts)
        points = list(counts)
        first = next((n for n, point in enumerate(points) if counts[point]), 0)
        more.append({p: draw(st.integers(counts[p], 3)) if n >= first else 0 for n, p in enumerate(points)})
    return less, more


@settings(max_examples=60)
@given(leftovers(), st.integers(1, 3), st.integers(1, 60))
def test_more_to_do_never_takes_less_time(
    left: tuple[list[dict[str, int]], list[dict[str, int]]], slots: int, heeded: int
) -> None:
    plan = a_plan()
    forecast = heard(plan, list(Lab(plan).run())[:heeded])
    cells = cells_of(plan)

    def after(counts: list[dict[str, int]]) -> float | None:
        made = (remaining(s, cells, prompts=3, warmup=1, left=c) for s, c in zip(plan.starts, counts, strict=True))
        found = forecast.eta_s([one for one in made if one is not None], slots)
        return None if found is None else found.eta_s

    few, many = map(after, left)
    if many is not None:
        assert few is not None
        assert few <= many + 1e-9


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 8))
def test_several_slots_share_the_work(starts: int, slots: int) -> None:
    plan = a_plan()
    forecast = heard(plan, Lab(plan).run())
    left = (whole(plan) * starts)[:starts]
    found = forecast.eta_s(left, slots)
    assert found is not None
    longest = max(eta(forecast, [one]) for one in left)
    assert found.work_s == pytest.approx(sum(eta(forecast, [one]) for one in left))
    assert max(longest, found.work_s / slots) - 1e-9 <= found.eta_s <= found.work_s / slots + longest + 1e-9


# --- what is not counted -----------------------------------------------------------


def test_an_import_beside_another_workers_work_takes_no_time_and_a_wait_for_the_slot_never_does() -> None:
    plan = a_plan(methods=(HF,))
    left = whole(plan)
    plain, beside = (heard(plan, Lab(plan, early=early).run()) for early in ("", "standby"))
    assert eta(plain, left) - eta(beside, left) == pytest.approx(3.0)
    assert eta(plain, left) < 500


def test_a_suspended_batch_and_a_wait_between_batches_are_no_pace() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,), repeats=1)
    start = plan.starts[0]
    lab = Lab(plan, pace=lambda *_: 1.0)
    forecast = heard(plan, lab.up(start, "w"))
    forecast.heed(ev.PointStarted(at=lab.now, point=start.points[0].id, incarnation="w", prompts=3))
    forecast.heed(lab.batch(start.points[0], "w", ["a"]))
    lab.now += 3600
    forecast.heed(lab.batch(start.points[0], "w", ["b"]))
    lab.pace = lambda *_: 900.0
    for _ in range(4):
        forecast.heed(lab.batch(start.points[0], "w", ["c"], flags=[FLAG_SUSPENDED]))
    one = remaining(start, cells_of(plan), prompts=1, warmup=0, begun=True)
    assert one is not None
    assert eta(forecast, [one]) == pytest.approx(1.0)


def test_a_short_wait_is_told_and_no_pace() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,), repeats=1)
    start = plan.starts[0]
    lab = Lab(plan, pace=lambda *_: 1.0)
    forecast = heard(plan, lab.up(start, "w"))
    forecast.heed(ev.PointStarted(at=lab.now, point=start.points[0].id, incarnation="w", prompts=3))
    lab.now += 1.5
    forecast.heed(ev.Waited(at=lab.now, what="room", reason="no room", wait_s=1.5))
    forecast.heed(lab.batch(start.points[0], "w", ["a"]))
    one = remaining(start, cells_of(plan), prompts=1, warmup=0, begun=True)
    assert one is not None
    assert eta(forecast, [one]) == pytest.approx(1.0)


def test_our_own_time_between_batches_counts() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,), repeats=1)
    start = plan.starts[0]
    lab = Lab(plan, pace=lambda *_: 1.0)
    forecast = heard(plan, lab.up(start, "w"))
    forecast.heed(ev.PointStarted(at=lab.now, point=start.points[0].id, incarnation="w", prompts=3))
    for name in "abc":
        lab.now += 0.25
        forecast.heed(lab.batch(start.points[0], "w", [name]))
    one = remaining(start, cells_of(plan), prompts=2, warmup=0, begun=True)
    assert one is not None
    assert eta(forecast, [one]) == pytest.approx(2.5)


def test_one_slow_batch_among_many_changes_little() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,), repeats=1)
    events = list(Lab(plan, pace=lambda *_: 1.0).run())
    forecast = heard(plan, events)
    before = eta(forecast, whole(plan))
    slow = Lab(plan, pace=lambda *_: 300.0)
    for event in (*slow.up(plan.starts[0], "s"), slow.batch(plan.starts[0].points[0], "s", ["a"])):
        forecast.heed(event)
    assert eta(forecast, whole(plan)) == pytest.approx(before, rel=0.05)


def test_another_life_of_the_run_begins_with_no_worker() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,), repeats=1)
    lab = Lab(plan)
    forecast = heard(plan, lab.up(plan.starts[0], "w"))
    again = ev.RunStarted(at=lab.now, life=2, pid=1, airlock="0", host="h", plan_digest="d", points=1)
    for event in (again, lab.batch(plan.starts[0].points[0], "w", ["a"])):
        forecast.heed(event)
    begun = remaining(plan.starts[0], cells_of(plan), prompts=3, warmup=0, begun=True)
    assert begun is not None
    assert forecast.eta_s([begun], 1) is None


def test_events_of_unknown_points_and_workers_are_left_out() -> None:
    plan, other = a_plan(methods=(HF,)), a_plan(methods=(VLLM,))
    assert heard(plan, Lab(other).run()).eta_s(whole(plan), 1) is None


# --- earlier runs, and deadlines ----------------------------------------------------


def test_an_earlier_run_tells_until_this_one_does() -> None:
    plan = a_plan()
    forecast = Forecast(cells_of(plan))
    forecast.recall(cells_of(plan), Lab(plan, pace=lambda *_: 10.0).run())
    left = whole(plan)
    first = eta(forecast, left[:1])
    assert first == pytest.approx(Lab(plan, pace=lambda *_: 10.0).truth_s(plan.starts[0]))
    lab = Lab(plan, pace=lambda *_: 1.0)
    for event in lab.run():
        forecast.heed(event)
    assert eta(forecast, left[:1]) == pytest.approx(lab.truth_s(plan.starts[0]))


def test_an_earlier_run_with_another_model_tells_nothing() -> None:
    plan = a_plan()
    other = replace(plan, model=replace(plan.model, digest="another"))
    forecast = Forecast(cells_of(plan))
    forecast.recall(cells_of(other), Lab(other).run())
    assert forecast.eta_s(whole(plan), 1) is None


@given(st.floats(0, 100), st.floats(0, 100))
def test_what_fits_a_short_time_fits_a_longer_one(one_s: float, other_s: float) -> None:
    plan = a_plan()
    forecast = heard(plan, Lab(plan).run())
    start = whole(plan)[0]
    short, long = sorted((one_s, other_s))
    assert forecast.would_fit(start, short) in (False, forecast.would_fit(start, long))


def test_a_start_fits_if_it_loads_warms_up_and_ends_one_batch_in_time() -> None:
    plan = a_plan(methods=(HF,), sizes=(1,))
    forecast = heard(plan, Lab(plan, pace=lambda *_: 2.0).run())
    fresh = whole(plan)[0]
    need_s = UP_S + FIRST_S + 2.0
    assert forecast.would_fit(fresh, need_s * 1.21) is True
    assert forecast.would_fit(fresh, need_s * 1.19) is False, "half of all times are longer than the middle one"
    begun = remaining(plan.starts[0], cells_of(plan), prompts=3, warmup=1, begun=True)
    assert begun is not None
    assert [forecast.would_fit(begun, left_s) for left_s in (2.3, 2.5)] == [False, True]


def test_a_run_that_its_time_ends_says_what_is_left() -> None:
    assert stopped_text(28800, 12, 2430) == "stop_after 8h: 12 points left, about 40 min of work"
    assert stopped_text(90, 1, 45.2) == "stop_after 1m30s: 1 point left, about 45.2 s of work"
    assert stopped_text(5400, 3, 7500) == "stop_after 1h30m: 3 points left, about 2 h 05 min of work"
    assert stopped_text(45, 3, None) == "stop_after 45s: 3 points left"
