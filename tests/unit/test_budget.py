"""The time of a run: what begins, what does not, and what is said of the rest."""

from __future__ import annotations

from orchestrator.events import (
    BatchCommitted,
    Event,
    PointEnded,
    PointStarted,
    StateChanged,
    WorkerLaunched,
)
from orchestrator.plan import Plan
from orchestrator.run.budget import Budget
from orchestrator.run.outlook import Outlook
from tests.unit.rundirs import HF, a_plan, stats

BATCH_S = 10.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_worker(plan: Plan) -> list[Event]:
    """That takes all points of the first start, 10 s for each batch."""
    name, at = "w1", 0.0
    launched = WorkerLaunched(
        at=at, incarnation=name, method="hf_sdpa", engine="hf", env="hf", fingerprint="", slot="s", pid=1, log=""
    )
    states = ("importing", "standby", "loading", "ready")
    events: list[Event] = [
        launched,
        *(StateChanged(at=at, incarnation=name, state=state, after_s=2.0) for state in states),
    ]
    for point in plan.starts[0].points:
        events.append(PointStarted(at=at, point=point.id, incarnation=name, prompts=len(plan.prompt_ids)))
        for number, prompt in enumerate(plan.prompt_ids):
            at += BATCH_S
            batch = BatchCommitted(
                at=at,
                point=point.id,
                batch=f"b{number}",
                incarnation=name,
                prompts=[prompt],
                offset=0,
                length=0,
                crc=0,
                stats=stats(wall_s=BATCH_S),
            )
            events.append(batch)
        events.append(PointEnded(at=at, point=point.id, outcome="ok"))
    return events


def outlook(clock: Clock) -> Outlook:
    return Outlook(a_plan([HF], [1], repeats=2), most=1, clock=clock)


def test_nothing_is_known_before_anything_was_measured() -> None:
    clock = Clock()
    found = outlook(clock)
    assert found.estimate(()) is None
    assert Budget(60.0, found, clock).allows(found.plan.starts[0]), "nobody knows, so it is tried"


def test_the_time_left_goes_down_to_nothing_and_is_reckoned_now_and_then() -> None:
    clock = Clock()
    found = outlook(clock)
    events = a_worker(found.plan)
    first_batch = next(n for n, event in enumerate(events) if isinstance(event, BatchCommitted))
    for event in events[: first_batch + 1]:
        found.heed(event)
    early = found.estimate([found.plan.starts[0].key])
    assert early is not None
    assert early.eta_s > 0
    for event in events[first_batch + 1 :]:
        found.heed(event)
    assert found.estimate(()) is early, "asked again at once"
    clock.now = 1e6
    late = found.estimate(())
    assert late is not None
    assert late.eta_s == 0


def test_a_worker_that_can_not_end_a_batch_in_time_is_not_begun() -> None:
    clock = Clock()
    found = outlook(clock)
    start = found.plan.starts[0]
    for event in a_worker(found.plan)[:-2]:
        found.heed(event)
    assert Budget(1000.0, found, clock).allows(start)
    assert not Budget(BATCH_S / 2, found, clock).allows(start)


def test_the_time_is_up_when_it_is_spent_or_nothing_more_fits() -> None:
    clock = Clock()
    budget = Budget(60.0, outlook(clock), clock)
    assert budget.over() == ""
    clock.now = 59.0
    assert budget.left_s() == 1.0
    budget.close()
    assert budget.over()
    other = Budget(60.0, outlook(clock), clock)
    clock.now += 60.0
    assert other.over()
    assert other.left_s() == 0.0
    assert Budget(None, outlook(clock), clock).over() == ""
    assert other.text(3).startswith("stop_after 1m: 3 points left")
