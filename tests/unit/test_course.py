"""The course of one worker start: what comes next, who is blamed, when it is given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Policies
from orchestrator.definition.inputs import Prompt
from orchestrator.definition.limits import Policy
from orchestrator.events import BatchLost, Event, PointEnded, Probed, WarmupDone
from orchestrator.outcomes import Cause
from orchestrator.plan import SweepPoint, WorkerStart
from orchestrator.record.output import Record
from orchestrator.run.course import Course
from orchestrator.run.tally import MOST_DEATHS, Earlier
from protocol.messages import BatchDone, BatchFailed
from protocol.records import BatchStats, ErrorInfo, Generation
from protocol.specs import BackendConfig, MethodSpec, PromptBatch, pack_ids

CRASH = Cause(cls="engine_crash", message="gone", phase="busy")
STATS = BatchStats(wall_s=0.5, generated_tokens=10)


@dataclass
class Shelf:
    """The book, kept in memory."""

    events: list[Event] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def commit(self, *, records: list[Record], **_rest: Any) -> None:
        self.records += records

    def ends(self) -> list[PointEnded]:
        return [e for e in self.events if isinstance(e, PointEnded)]


def course(prompts: int, batch_size: int, points: int = 1, warmup: int = 0, times: int = 2, **more: Any) -> Course:
    config = BackendConfig(method=MethodSpec("m", "scripted"), model_path="x", batch_size=batch_size)
    start = WorkerStart("k", "own", config, tuple(SweepPoint(f"point{i}", "m", config, 0) for i in range(points)))
    inputs = {str(i): Prompt(str(i), pack_ids([i]), f"d{i}", {}) for i in range(prompts)}
    halve = Policy(do="halve", times=times, loads=more.pop("loads", 0))
    policies = more.pop("policies", Policies(engine_crash=halve, engine_error=halve))
    return Course(start, inputs, warmup, policies, Shelf(), clock=lambda: 0.0, **more)


def earlier(done: str, bad: str = "") -> Earlier:
    """Ids of one character each."""
    return Earlier(frozenset(done), dict.fromkeys(bad, CRASH))


def shelf(of: Course) -> Shelf:
    assert isinstance(of.book, Shelf)
    return of.book


def answer(batch: PromptBatch) -> BatchDone:
    generations = [
        Generation(
            prompt_id=p.id,
            text="",
            token_ids=pack_ids([1]),
            generated_tokens=1,
            finish_reason="length",
            prompt_tokens=1,
            prompt_digest=f"d{p.id}",
        )
        for p in batch.prompts
    ]
    return BatchDone(batch.batch_id, generations, STATS)


def drive(
    of: Course,
    crash_on: Collection[str] = (),
    fail_on: Collection[str] = (),
    ruined_by: Collection[str] = (),
    error: str = "no",
    lives: int = 300,
) -> int:
    """Lives of workers until nothing is left; how many there were. A worker dies of the prompts in
    `crash_on`, raises at those in `fail_on`, and after one in `ruined_by` raises at every batch."""
    for life in range(1, lives):
        name, ruined, died = f"w{life}", False, False
        while not died and (batch := of.next_batch(name)) is not None:
            ids = {p.id for p in batch.prompts}
            ruined = ruined or bool(ids & set(ruined_by))
            if ids & set(crash_on):
                died = True
            elif ruined or ids & set(fail_on):
                of.answered(name, BatchFailed(batch.batch_id, ErrorInfo(type="RuntimeError", message=error)))
            else:
                of.answered(name, answer(batch))
        of.worker_ended(name, CRASH if died else None)
        if not of.unfinished:
            return life
    raise AssertionError("never ends")


def errors(of: Course) -> set[str]:
    return {r.prompt_id for r in shelf(of).records if r.error}


def strings(numbers: Iterable[int], below: int) -> set[str]:
    return {str(n) for n in numbers if n < below}


@given(st.integers(1, 20), st.integers(1, 8), st.sets(st.integers(0, 19)), st.integers(0, 2))
def test_failures_that_leave_the_engine_alive_cost_their_prompts_alone(
    prompts: int, batch_size: int, bad: set[int], warmup: int
) -> None:
    of = course(prompts, batch_size, warmup=warmup)
    fail_on = strings(bad, prompts)
    drive(of, fail_on=fail_on)
    assert max(Counter(r.prompt_id for r in shelf(of).records).values(), default=0) <= 1
    assert errors(of) <= fail_on
    (end,) = shelf(of).ends()
    if end.outcome != "failed":
        assert errors(of) == fail_on
        assert len(shelf(of).records) == prompts
        assert end.outcome == ("partial" if fail_on else "ok")


@given(st.integers(2, 20), st.integers(1, 8), st.integers(0, 19))
def test_once_a_prompt_was_answered_refusals_cost_no_load(prompts: int, batch_size: int, good: int) -> None:
    """However many prompts an engine refuses: a probe tells that the process still works."""
    good %= prompts
    of = course(prompts, batch_size)
    first = of.next_batch("w0")
    assert first is not None
    of.answered("w0", answer(first))
    of.worker_ended("w0", None)
    rest = set(map(str, range(prompts))) - {p.id for p in first.prompts}
    assert drive(of, fail_on=rest) == 1
    assert errors(of) == rest
    assert all(r.error and (r.error.cls, r.error.root) == ("bad_prompt", "engine_error") for r in rests(of, rest))


def rests(of: Course, ids: set[str]) -> list[Record]:
    return [r for r in shelf(of).records if r.prompt_id in ids]


@given(
    st.integers(2, 20), st.integers(1, 8), st.integers(0, 19), st.sampled_from(["no", "CUDA error: device-side assert"])
)
def test_a_fault_after_which_every_batch_fails_costs_its_prompt_alone(
    prompts: int, batch_size: int, bad: int, text: str
) -> None:
    of = course(prompts, batch_size)
    drive(of, ruined_by={str(bad % prompts)}, error=text)
    assert errors(of) == {str(bad % prompts)}
    assert len(shelf(of).records) == prompts
    if text != "no":
        assert not [e for e in shelf(of).events if isinstance(e, Probed)], "nothing to ask: the error says it"


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3))
def test_an_engine_that_refuses_everything_is_given_up(prompts: int, batch_size: int, points: int) -> None:
    of = course(prompts, batch_size, points)
    lives = drive(of, fail_on=set(map(str, range(prompts))))
    assert lives <= 9
    assert [e.outcome for e in shelf(of).ends()] == ["failed"] * points


@pytest.mark.parametrize("do", ["retry", "give_up", "halve"])
def test_what_follows_a_crash_is_the_policys(do: Any) -> None:
    of = course(8, 4, policies=Policies(engine_crash=Policy(do=do, times=2)))
    lives = drive(of, crash_on={"6"})
    (end,) = shelf(of).ends()
    assert end.outcome == ("partial" if do == "halve" else "failed")
    assert lives == {"retry": 3, "give_up": 1, "halve": 5}[do]
    assert len(shelf(of).records) == (8 if do == "halve" else 4)
    lost = [e for e in shelf(of).events if isinstance(e, BatchLost)]
    assert {e.cause.policy for e in lost} == {"give_up" if do == "give_up" else f"{do}, 2 times"}


@pytest.mark.parametrize(
    "error", ["no", "CUDA out of memory", "No space left on device", "device is busy or unavailable"]
)
@pytest.mark.parametrize("do", ["retry", "wait", "give_up"])
def test_a_batch_that_fails_again_and_again_in_workers_that_live_ends_its_point(error: str, do: Any) -> None:
    policy = Policy(do=do, times=2)
    of = course(6, 2, policies=Policies(engine_error=policy, oom=policy, disk=policy, busy_device=policy))
    assert drive(of, fail_on={"3"}, error=error) == (1 if do == "give_up" else 3)
    (end,) = shelf(of).ends()
    assert (end.outcome, end.cause and end.cause.policy) == ("failed", str(policy))
    assert len(shelf(of).records) == 2


def test_what_fresh_workers_cost_in_all_is_bounded_whatever_is_measured_in_between() -> None:
    of = course(60, 1, policies=Policies(engine_error=Policy(do="retry", times=5)))
    lives, failed_once = 0, set[str]()
    while of.unfinished:
        lives += 1
        while (batch := of.next_batch(f"w{lives}")) is not None:
            fresh = {p.id for p in batch.prompts} - failed_once
            failed_once |= fresh
            error = ErrorInfo(type="RuntimeError", message="no")
            of.answered(
                f"w{lives}", BatchFailed(batch.batch_id, error) if fresh and not batch.warmup else answer(batch)
            )
        of.worker_ended(f"w{lives}", None)
    assert lives == MOST_DEATHS + 1
    assert shelf(of).ends()[0].outcome == "failed"


def test_a_poison_prompt_may_cost_its_point() -> None:
    of = course(4, 1, policies=Policies(bad_prompt=Policy(do="give_up")))
    drive(of, fail_on={"1"})
    (end,) = shelf(of).ends()
    assert (end.outcome, end.cause and end.cause.cls) == ("failed", "bad_prompt")
    assert len(shelf(of).records) == 2


def test_the_flag_of_a_batch_is_its_own() -> None:
    of = course(4, 2)
    assert of.next_batch("w1") is not None
    of.mark("suspended")
    of.answered("w1", answer_of(of))
    drive(of)
    assert [r.flags for r in shelf(of).records] == [["suspended"], ["suspended"], [], []]


def answer_of(of: Course) -> BatchDone:
    assert of._flight is not None
    return answer(of._flight.batch)


@given(st.integers(2, 16), st.integers(1, 16), st.integers(0, 15))
def test_one_prompt_that_kills_costs_one_record(prompts: int, batch_size: int, poison: int) -> None:
    poison %= prompts
    of = course(prompts, batch_size)
    lives = drive(of, {str(poison)})
    assert Counter(r.prompt_id for r in shelf(of).records) == Counter(map(str, range(prompts)))
    assert [r.prompt_id for r in shelf(of).records if r.error] == [str(poison)]
    assert lives <= 2 + min(batch_size, prompts).bit_length() + 1
    assert shelf(of).ends()[0].outcome == "partial"


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.integers(0, 3))
def test_a_method_that_always_dies_is_given_up(prompts: int, batch_size: int, points: int, times: int) -> None:
    of = course(prompts, batch_size, points, times=times)
    lives = drive(of, {str(i) for i in range(prompts)})
    assert lives <= 3 * (times + 1)
    assert {e.outcome for e in shelf(of).ends()} == {"failed"}
    assert len(shelf(of).ends()) == points


def test_a_point_given_up_with_good_records_does_not_take_the_others_with_it() -> None:
    of = course(6, 1, points=2, times=0)
    drive(of, {"3", "4"})
    assert [e.outcome for e in shelf(of).ends()] == ["failed", "failed"]
    assert sum(r.error is None for r in shelf(of).records) == 6, "both points measured what came before"


@pytest.mark.parametrize("loads", [0, 1, 2])
def test_a_failure_before_ready_is_retried_as_often_as_its_policy_says(loads: int) -> None:
    of = course(4, 2, points=3, loads=loads)
    for _ in range(loads):
        of.worker_ended("w1", CRASH)
        assert of.unfinished
    of.worker_ended("w1", CRASH)
    assert not of.unfinished
    assert [e.outcome for e in shelf(of).ends()] == ["failed"] * 3


def test_that_record_says_how_often_it_was_loaded_again() -> None:
    for loads, said in ((0, "give_up"), (2, "load again, 2 times")):
        of = course(2, 2, loads=loads)
        for _ in range(loads + 1):
            of.worker_ended("w1", CRASH)
        assert [e.cause and e.cause.policy for e in shelf(of).ends()] == [said]


def test_a_worker_that_is_gone_before_its_first_batch_is_as_good_as_not_loaded() -> None:
    of = course(4, 2, points=2, loads=1)
    batch = of.next_batch("w1")
    assert batch is not None
    of.answered("w1", answer(batch))
    of.worker_ended("w1", None)
    for life in (2, 3):
        assert of.unfinished, life
        of.worker_ended(f"w{life}", CRASH)
    assert not of.unfinished
    assert len(shelf(of).ends()) == 2


@pytest.mark.parametrize("cause", [CRASH, None])
def test_a_worker_that_dies_behind_its_last_answer_costs_nothing(cause: Cause | None) -> None:
    of = course(2, 2, points=2, policies=Policies(engine_crash=Policy(do="give_up")))
    for point in ("point0", "point1"):
        batch = of.next_batch(point)
        assert batch is not None
        of.answered(point, answer(batch))
        of.worker_ended(point, cause)
    assert [(e.point, e.outcome, e.cause) for e in shelf(of).ends()] == [("point0", "ok", None), ("point1", "ok", None)]
    assert not of.unfinished


def test_each_fresh_worker_is_warmed_up_again() -> None:
    of = course(4, 2, warmup=1)
    first = of.next_batch("w1")
    assert first is not None
    assert first.warmup
    of.answered("w1", answer(first))
    measured = of.next_batch("w1")
    assert measured is not None
    assert not measured.warmup
    of.worker_ended("w1", CRASH)
    again = of.next_batch("w2")
    assert again is not None
    assert again.warmup
    assert len([e for e in shelf(of).events if isinstance(e, WarmupDone)]) == 1


def test_a_warmup_that_kills_is_left_out_and_flagged() -> None:
    of = course(4, 2, warmup=1)
    assert of.next_batch("w1") is not None
    of.worker_ended("w1", CRASH)
    lives = drive(of, set())
    assert lives == 1
    assert all("no_warmup" in r.flags for r in shelf(of).records)
    assert shelf(of).ends()[0].outcome == "ok"
    assert [e.cause for e in shelf(of).events if isinstance(e, BatchLost)] == [
        msgspec.structs.replace(CRASH, policy="halve, 2 times")
    ]


@pytest.mark.parametrize("policy", [Policy(do="give_up"), Policy(do="halve", times=0), Policy(do="retry", times=0)])
def test_a_warmup_that_kills_costs_no_worker_that_may_not_be_had(policy: Policy) -> None:
    of = course(4, 2, warmup=1, policies=Policies(engine_crash=policy))
    assert of.next_batch("w1") is not None
    of.worker_ended("w1", CRASH)
    assert not of.unfinished
    assert [e.outcome for e in shelf(of).ends()] == ["failed"]


def test_a_warmup_that_fails_under_give_up_ends_its_point() -> None:
    of = course(4, 2, warmup=1, policies=Policies(engine_error=Policy(do="give_up")))
    assert drive(of, fail_on={"0"}) == 1
    assert [e.outcome for e in shelf(of).ends()] == ["failed"]


def test_what_fails_in_a_process_whose_warmup_failed_is_not_yet_convicted() -> None:
    """The warm-up ruined it; the lone prompt after it is innocent."""
    of = course(4, 4, warmup=1, earlier={"point0": earlier("012")})
    drive(of, ruined_by={"0"})
    assert [(r.prompt_id, r.error, r.flags) for r in shelf(of).records] == [("3", None, ["split_batch", "no_warmup"])]
    assert [e.outcome for e in shelf(of).ends()] == ["ok"]


def test_a_prompt_with_an_error_record_warms_nothing_up() -> None:
    of = course(4, 4, warmup=1, earlier={"point0": earlier("01", bad="0")})
    assert drive(of, crash_on={"0"}) == 1
    assert [(r.prompt_id, r.flags) for r in shelf(of).records] == [("2", ["split_batch"]), ("3", ["split_batch"])]


def test_a_prompt_that_failed_as_a_probe_may_be_asked_again_once_it_is_measured() -> None:
    of = course(3, 1)
    drive(of, ruined_by={"0"})
    assert not of._prober.bad & of._prober.good
    assert of._prober.good == {"1", "2"}


@pytest.mark.parametrize("how", ["load", "batch", "alive"])
def test_a_device_that_a_worker_calls_lost_is_told_once(how: str) -> None:
    of = course(4, 2)
    lost = Cause(cls="device_lost", message="GPU is lost", phase="busy")
    if how == "load":
        of.worker_ended("w1", lost)
    else:
        batch = of.next_batch("w1")
        assert batch is not None
        if how == "alive":
            of.answered("w1", BatchFailed(batch.batch_id, ErrorInfo(type="RuntimeError", message="GPU is lost")))
        of.worker_ended("w1", None if how == "alive" else lost)
    assert "GPU is lost" in of.pop_lost_device()
    assert of.pop_lost_device() == ""
    assert of.unfinished


@pytest.mark.parametrize(("errors", "outcome"), [(0, "ok"), (1, "partial"), (4, "failed")])
def test_a_point_that_lacks_only_its_end_gets_it_without_a_worker(errors: int, outcome: str) -> None:
    of = course(4, 2, points=2, earlier={"point0": earlier("0123", bad="0123"[:errors]), "point1": earlier("012")})
    of.catch_up()
    cause = CRASH if errors else None
    assert [(e.point, e.outcome, e.cause) for e in shelf(of).ends()] == [("point0", outcome, cause)]
    of.worker_ended("w1", CRASH)
    assert [e.outcome for e in shelf(of).ends()] == [outcome, "failed"]


def test_an_error_record_of_an_earlier_life_is_the_cause_of_its_point() -> None:
    of = course(4, 2, earlier={"point0": earlier("01", bad="1")})
    drive(of)
    assert [(e.outcome, e.cause) for e in shelf(of).ends()] == [("partial", CRASH)]


def test_what_is_committed_is_not_run_again() -> None:
    of = course(4, 2, earlier={"point0": earlier("012", bad="0")})
    batch = of.next_batch("w1")
    assert batch is not None
    assert [p.id for p in batch.prompts] == ["3"]
    of.answered("w1", answer(batch))
    assert of.next_batch("w1") is None
    assert shelf(of).ends()[0].outcome == "partial", "the error record of the earlier life counts"


def test_two_prompts_that_kill_cost_two_records() -> None:
    """Neighbours in one chunk, or far apart: the healthy ones around them are measured."""
    for size in (1, 2, 4, 8, 16):
        for pair in ({"0", "1"}, {"3", "12"}):
            of = course(16, size, points=2)
            drive(of, pair)
            assert [e.outcome for e in shelf(of).ends()] == ["partial", "partial"], (size, pair)
            assert Counter(r.error is None for r in shelf(of).records) == {True: 28, False: 4}


def test_a_lone_prompt_gets_a_second_chance() -> None:
    of = course(2, 1)
    assert of.next_batch("w1") is not None
    of.worker_ended("w1", CRASH)
    assert drive(of, set()) == 1
    assert shelf(of).ends()[0].outcome == "ok"


FAULTS = ("kills", "fails", "ruins")
POLICY = st.builds(
    Policy, do=st.sampled_from(["halve", "retry", "give_up"]), times=st.integers(0, 3), loads=st.integers(0, 2)
)


@given(
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2),
    st.dictionaries(st.integers(0, 8), st.sampled_from(["kills", "fails", "ruins"]), max_size=4),
    st.tuples(POLICY, POLICY, st.booleans()),
)
def test_whatever_the_policies_it_ends_and_what_it_says_is_so(
    prompts: int, batch_size: int, warmup: int, faults: dict[int, str], policy: tuple[Policy, Policy, bool]
) -> None:
    crash, error, strict = policy
    bad = Policy(do="give_up" if strict else "record")
    of = course(
        prompts, batch_size, 2, warmup, policies=Policies(engine_crash=crash, engine_error=error, bad_prompt=bad)
    )
    kills, fails, ruins = (strings((n for n, do in faults.items() if do == one), prompts) for one in FAULTS)
    drive(of, kills, fails, ruins, lives=2 * (MOST_DEATHS + 2))
    records, ends = shelf(of).records, shelf(of).ends()
    assert max(Counter((r.point, r.prompt_id) for r in records).values(), default=0) <= 1
    assert errors(of) <= kills | fails | ruins
    assert Counter(e.point for e in ends) == {"point0": 1, "point1": 1}
    for end in ends:
        mine = [r for r in records if r.point == end.point]
        good = [r for r in mine if r.error is None]
        assert (end.outcome == "ok") == (len(good) == prompts)
        assert (end.outcome == "ok") == (end.cause is None)
        assert end.outcome != "partial" or len(mine) == prompts
        assert not end.cause or end.cause.policy


# --- repeats that are not needed --------------------------------------------------


def test_a_point_that_is_skipped_while_its_start_runs_is_neither_run_nor_ended() -> None:
    skipped: set[str] = set()
    of = course(2, 1, points=4, skipped=skipped)
    while len(shelf(of).ends()) < 2:
        batch = of.next_batch("w1")
        assert batch is not None
        of.answered("w1", answer(batch))
        if len(shelf(of).records) == 3:
            skipped.update(("point2", "point3"))
            assert of.batches_total == 4
        if of.batches_done == 4:
            break
    assert of.next_batch("w1") is None
    assert not of.unfinished
    assert [end.point for end in shelf(of).ends()] == ["point0", "point1"]


def test_nothing_is_launched_for_what_is_skipped() -> None:
    of = course(2, 1, points=2, skipped={"point0", "point1"})
    of.catch_up()
    assert (of.unfinished, of.batches_total, shelf(of).events) == (False, 0, [])


def test_a_start_that_is_given_up_fails_no_point_that_is_skipped() -> None:
    of = course(2, 1, points=3, skipped={"point1"})
    of.give_up(CRASH)
    assert [(end.point, end.outcome) for end in shelf(of).ends()] == [("point0", "failed"), ("point2", "failed")]
