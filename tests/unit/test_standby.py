"""When the next worker may start before its slot is free, and beside whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from orchestrator.devices import Device
from orchestrator.plan import WorkerStart
from orchestrator.run.docket import Job
from orchestrator.run.life import State
from orchestrator.run.slots import Slot, joined, numbered
from orchestrator.run.standby import LEAST_CPUS, LEAST_MEMORY_BYTES, Standby
from protocol.specs import BackendConfig, MethodSpec

GPUS = numbered([Device(n, f"GPU-{n}", "test", None) for n in range(2)])
HOST = Slot("slot0")


@dataclass
class Course:
    unfinished: bool = True
    batches_left: int = 5


@dataclass
class Occupant:
    """As much of one as is asked for."""

    slot: Slot
    state: State
    course: Course = field(default_factory=Course)
    called: bool = True
    start: Any = None

    @property
    def job(self) -> Any:
        return self

    def __hash__(self) -> int:
        return id(self)


def job(width: int = 1, device: str = "cuda") -> Job:
    config = BackendConfig(method=MethodSpec("m", "scripted"), model_path="x", device=cast("Any", device))
    start = WorkerStart("k", "own", config, ())
    nothing = cast("Any", None)
    return Job(1, start, nothing, nothing, width, anew=nothing)


def standby(wish: Any = "auto", **changes: Any) -> Standby:
    given = {"cpus": LEAST_CPUS, "exclusive": False, "units": GPUS, "available": lambda: LEAST_MEMORY_BYTES}
    return Standby(wish, **{**given, **changes})


def early(found: Standby, job: Job, *stints: Any) -> str:
    chosen = found.beside(job, stints)
    return chosen[1] if chosen else ""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (standby(), "standby"),
        (standby("off"), ""),
        (standby("on", cpus=1, available=lambda: 0), "standby"),
        (standby(cpus=LEAST_CPUS - 1), ""),
        (standby(available=lambda: LEAST_MEMORY_BYTES - 1), ""),
        (standby(exclusive=True), ""),
    ],
    ids=["auto", "off", "on", "few cpus", "little memory", "exclusive"],
)
def test_beside_a_worker_on_a_gpu(found: Standby, expected: str) -> None:
    assert early(found, job(), Occupant(GPUS[0], State.BUSY)) == expected


@pytest.mark.parametrize("state", [State.READY, State.DRAINING])
def test_beside_an_engine_on_the_cpus_it_waits_for_the_teardown(state: State) -> None:
    assert early(standby(), job(device="cpu"), Occupant(HOST, State.BUSY)) == ""
    assert early(standby(), job(device="cpu"), Occupant(HOST, State.READY)) == "", "it has its next batch in a moment"
    leaving = Occupant(HOST, state, Course(unfinished=False))
    assert early(standby(), job(device="cpu"), leaving) == "teardown"
    assert early(standby("off"), job(device="cpu"), leaving) == ""


@pytest.mark.parametrize("state", [State.LAUNCHING, State.IMPORTING, State.STANDBY, State.LOADING])
def test_not_before_the_holder_is_loaded(state: State) -> None:
    assert early(standby(), job(), Occupant(GPUS[0], state)) == ""


def test_a_holder_whose_job_goes_on_in_a_fresh_worker_is_not_followed_yet() -> None:
    assert early(standby(), job(), Occupant(GPUS[0], State.KILLING, Course(unfinished=True))) == ""


def test_a_teardown_beside_a_measurement_on_the_same_cpus_disturbs_it() -> None:
    leaving = Occupant(Slot("slot0"), State.DRAINING, Course(unfinished=False))
    at_work = Occupant(Slot("slot1"), State.BUSY)
    assert early(standby(), job(device="cpu"), leaving, at_work) == ""
    leaving.slot, at_work.slot = Slot("slot0", cpus=(0,)), Slot("slot1", cpus=(1,))
    assert early(standby(), job(device="cpu"), leaving, at_work) == "teardown"


def test_it_is_the_slot_that_will_be_free_first_and_as_wide_as_needed() -> None:
    long, short = Occupant(GPUS[0], State.BUSY), Occupant(GPUS[1], State.BUSY, Course(batches_left=1))
    chosen = standby().beside(job(), cast("Any", [long, short]))
    assert chosen is not None
    assert chosen[0].slot == GPUS[1]
    assert early(standby(), job(width=2), long, short) == "", "no single worker holds two"
    wide = Occupant(joined(GPUS), State.BUSY)
    assert standby().slot_of(job(), cast("Any", wide)) == GPUS[0]
    assert standby().slot_of(job(width=2), cast("Any", wide)) == wide.slot


def test_what_is_lent_to_it_must_have_come_back_first() -> None:
    """A worker that compiles brings its artefacts back when it has left; one of the same load would start without."""
    leaving = Occupant(HOST, State.DRAINING, Course(unfinished=False))
    waits = compiling()
    leaving.start = waits.start
    assert early(standby(), waits, leaving) == ""
    leaving.start = compiling(max_model_len=7).start
    assert early(standby(), waits, leaving) == "teardown"


def compiling(**changes: Any) -> Job:
    method = MethodSpec("m", "hf", compile="default")
    config = BackendConfig(method=method, model_path="x", device="cpu", **changes)
    nothing = cast("Any", None)
    return Job(1, WorkerStart("k", "own", config, ()), nothing, nothing, 1, anew=nothing)
