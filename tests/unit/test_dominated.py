"""What can't fit since less did not: an order of needs that holds for every engine, and what a run leaves out by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.console import Console
from orchestrator.events import PointEnded, PointSkipped, PointStarted
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.record.generations import read_records
from orchestrator.report import RunView
from orchestrator.run.dominated import RISING, Demands, kind_of, ran_out, shared
from orchestrator.run.ledger import Ledger
from protocol.specs import BackendConfig, MethodSpec
from tests.unit.rundirs import HF, VLLM, a_plan, begin

OOM = Cause(cls="oom", message="CUDA out of memory", phase="busy")
CACHE = replace(OOM, message="larger than the available KV cache memory", phase="loading")
ROCKET = MethodSpec("hf_rocket", "hf", "sdpa", rocket_bucket=True)
SGLANG = MethodSpec("sglang_default", "sglang")
METHODS = (HF, VLLM, ROCKET, SGLANG)
PROMPTS = tuple(f"p{n}" for n in range(12))

sizes = st.sampled_from([1, 2, 3, 4, 8])
given_sizes = st.none() | sizes
configs = st.builds(
    BackendConfig,
    method=st.sampled_from(METHODS),
    model_path=st.just("m"),
    device=st.just("cuda"),
    batch_size=sizes,
    max_new_tokens=sizes,
    max_model_len=given_sizes,
    max_num_batched_tokens=given_sizes,
    kv_cache_bytes=given_sizes,
    ignore_eos=st.booleans(),
    tensor_parallel_size=st.sampled_from([1, 2]),
    gpu_memory_utilization=st.sampled_from([None, 0.5, 0.9]),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.sampled_from([0, 1]),
)


#: What makes another point of it, most often one that can be compared.
changes = st.fixed_dictionaries({}, optional={name: sizes for name in RISING if name != "ignore_eos"})


def config(method: MethodSpec = HF, **given: Any) -> BackendConfig:
    return BackendConfig(method=method, model_path="m", device="cuda", **given)


def starts(*configs: BackendConfig) -> Plan:
    """One point each, "0", "1" and so on, in a start of its own."""
    made = [WorkerStart(f"s{n}", "e", one, (SweepPoint(f"{n}", "m", one, 0),)) for n, one in enumerate(configs)]
    return replace(a_plan(), starts=tuple(made), prompt_ids=PROMPTS)


def too_large(plan: Plan, *, cause: Cause = OOM, ok: tuple[str, ...] = (), started: tuple[str, ...] = ("0",)) -> Any:
    end = PointEnded(at=1.0, point="0", outcome="failed", cause=cause)
    ended = {"0": end} | {one: PointEnded(at=1.0, point=one, outcome="ok") for one in ok}
    return Demands(plan).too_large(end, ended, {}, started)


def needs_no_less(more: BackendConfig, less: BackendConfig) -> bool:
    """Whether `more` is left out, nothing else being known, once `less` ran out of memory."""
    return bool(too_large(starts(less, more))[0])


def test_memory_that_others_took_says_nothing_of_what_fits() -> None:
    plan = starts(config(batch_size=1), config(batch_size=2))
    killed = replace(OOM, message="signal SIGKILL; the kernel's out-of-memory killer acted once meanwhile")
    beside = shared(killed, "cuda", ["slot1: two"])
    assert "shared the host's memory: slot1: two" in beside.message
    assert too_large(plan, cause=beside)[0] == []
    assert too_large(plan, cause=shared(killed, "cuda", []))[0] == ["1"]
    assert too_large(plan, cause=shared(OOM, "cuda", ["slot1: two"]))[0] == ["1"], "a device is its own"
    assert shared(OOM, "cpu", ["slot1: two"]) != OOM
    crash = replace(killed, cls="engine_crash")
    assert shared(crash, "cpu", ["slot1: two"]) == crash


# --- the order --------------------------------------------------------------------------------


@given(configs)
def test_a_point_needs_no_less_than_itself(one: BackendConfig) -> None:
    assert needs_no_less(one, one)


@given(configs, changes, changes)
def test_it_is_handed_on(one: BackendConfig, second: dict[str, int], third: dict[str, int]) -> None:
    other, last = replace(one, **second), replace(one, **third)
    if needs_no_less(last, other) and needs_no_less(other, one):
        assert needs_no_less(last, one)


@given(configs, configs)
def test_never_what_is_smaller_in_anything_or_of_another_kind(more: BackendConfig, less: BackendConfig) -> None:
    if needs_no_less(more, less):
        assert more.method == less.method
        assert more.tensor_parallel_size == less.tensor_parallel_size
        assert more.gpu_memory_utilization == less.gpu_memory_utilization
        assert all((getattr(more, name) or 0) >= (getattr(less, name) or 0) for name in RISING)
        assert more == less or not needs_no_less(less, more) or kind_of(more) == kind_of(less)


@pytest.mark.parametrize(
    ("less", "more", "expected"),
    [
        pytest.param({"batch_size": 4}, {"batch_size": 8}, True, id="a larger batch"),
        pytest.param({"batch_size": 8}, {"batch_size": 4}, False, id="a smaller batch"),
        pytest.param({"batch_size": 4}, {"batch_size": 6}, False, id="chunks that hold none of the others"),
        pytest.param({"batch_size": 5}, {"batch_size": 13}, True, id="all prompts at once"),
        pytest.param({"max_new_tokens": 8}, {"max_new_tokens": 9}, True, id="more new tokens"),
        pytest.param(
            {"batch_size": 4}, {"batch_size": 8, "max_new_tokens": 8}, False, id="more of one, less of another"
        ),
        pytest.param({"max_model_len": None}, {"max_model_len": 64}, False, id="a length that is not known"),
        pytest.param({}, {"ignore_eos": True}, True, id="outputs as long as they may be"),
        pytest.param({}, {"seed": 1}, True, id="a seed that decides nothing"),
        pytest.param({"temperature": 1.0}, {"temperature": 1.0, "seed": 1}, False, id="outputs of other lengths"),
        pytest.param({}, {"tensor_parallel_size": 2}, False, id="more devices"),
        pytest.param({"gpu_memory_utilization": 0.5}, {"gpu_memory_utilization": 0.9}, False, id="a larger share"),
        pytest.param({}, {"dtype": "float32"}, False, id="another dtype"),
        pytest.param({}, {"logprobs": 1}, False, id="another kind of answer"),
    ],
)
def test_what_needs_no_less(less: dict[str, Any], more: dict[str, Any], expected: bool) -> None:
    assert needs_no_less(config(**more), config(**less)) is expected


def test_more_new_tokens_leave_buckets_less_room_for_prompts() -> None:
    assert not needs_no_less(config(ROCKET, max_new_tokens=9), config(ROCKET, max_new_tokens=8))


@pytest.mark.parametrize(
    ("outcome", "cause", "expected"),
    [
        ("failed", OOM, True),
        ("failed", Cause(cls="bad_prompt", root="oom", message="CUDA out of memory", phase="busy"), True),
        ("failed", replace(OOM, cls="busy_device"), False),
        ("failed", replace(OOM, phase=""), False),
        ("failed", replace(OOM, cls="hang"), False),
        ("failed", None, False),
        ("partial", OOM, False),
    ],
)
def test_what_ran_out_of_memory(outcome: OutcomeKind, cause: Cause | None, expected: bool) -> None:
    assert ran_out(PointEnded(at=1.0, point="p", outcome=outcome, cause=cause)) is expected


# --- what a plan leaves out by it -------------------------------------------------------------


def test_it_says_which_point_and_with_what() -> None:
    found, reason = too_large(starts(config(batch_size=4), config(batch_size=8), config(batch_size=2)))
    assert found == ["1"]
    assert reason == "needs at least as much memory as point 0 (batch_size=4), which ran out of it"


def test_what_less_than_is_known_to_fit_is_tried() -> None:
    plan = starts(config(batch_size=1), config(batch_size=2), config(batch_size=4), config(batch_size=8))
    assert too_large(plan, ok=("2",))[0] == ["3"], "memory ran out for another reason than the point's need"


def test_a_larger_cache_may_be_what_was_lacking() -> None:
    plan = starts(config(VLLM, kv_cache_bytes=1), config(VLLM, kv_cache_bytes=2))
    assert too_large(plan)[0] == ["1"]
    assert too_large(plan, cause=CACHE, started=())[0] == []


def test_what_the_worker_is_made_for_counts_too() -> None:
    plan = starts(config(batch_size=2), config(batch_size=4))
    small = replace(plan.starts[1], config=config(batch_size=1))
    assert too_large(replace(plan, starts=(plan.starts[0], small)))[0] == []


def test_a_share_that_sglang_chooses_by_its_load_compares_with_that_alone() -> None:
    free = starts(config(SGLANG, max_num_batched_tokens=64), config(SGLANG, max_num_batched_tokens=128))
    assert too_large(free)[0] == []
    given = [replace(one.config, sglang_mem_fraction_static=0.8) for one in free.starts]
    assert too_large(starts(*given))[0] == ["1"]


def test_of_a_load_that_failed_all_points_fail_and_the_next_start_is_left_out() -> None:
    plan = starts(config(batch_size=1), config(batch_size=2))
    first = replace(plan.starts[0], points=(*plan.starts[0].points, SweepPoint("again", "m", config(batch_size=1), 1)))
    plan = replace(plan, starts=(first, plan.starts[1]))
    assert too_large(plan, cause=replace(OOM, phase="loading"), started=())[0] == ["1"]
    assert too_large(plan)[0] == ["again", "1"]


@given(configs, st.lists(changes, min_size=1, max_size=6), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)))
def test_whatever_the_plan(one: BackendConfig, made: list[dict[str, int]], ok: set[int], begun: set[int]) -> None:
    them = [replace(one, **change) for change in made]
    known = {f"{n}" for n in ok if n < len(them)}
    found, reason = too_large(starts(*them), ok=tuple(known), started=("0", *map(str, begun)))
    assert bool(found) == bool(reason)
    fits = [them[int(fit)] for fit in known]
    for point, needs in [(f"{n}", needs) for n, needs in enumerate(them) if f"{n}" not in {"0", *known}]:
        hopeless = needs_no_less(needs, them[0]) and not any(needs_no_less(x, needs) for x in fits)
        assert (point in found) is (hopeless and int(point) not in begun)


# --- over several lives of a run ----------------------------------------------------------------


class Run:
    """ "hf_sdpa/1/0" is a batch size of 1, repeat 0; there are 1, 2 and 4 in two repeats, and another method."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.plan = run_dir, a_plan(sizes=(1, 2, 4))
        self._journal = begin(run_dir, self.plan)
        self.ledger = Ledger(self._journal, Console(mode="quiet"), None, self.plan)

    def resume(self, *, retry_failed: bool = False) -> None:
        self._journal.close()
        self._journal, earlier = Journal.resume(self.run_dir)
        if retry_failed:
            earlier.forgive(read_records(self.run_dir, earlier.ranges))
        self.ledger = Ledger(self._journal, Console(mode="quiet"), earlier, self.plan)
        self.ledger.skip_unneeded()

    def end(self, point: str, outcome: OutcomeKind = "ok", cause: Cause | None = None) -> None:
        self.ledger.emit(PointStarted(at=1.0, point=point, incarnation="w1", prompts=3))
        self.ledger.emit(PointEnded(at=2.0, point=point, outcome=outcome, cause=cause))

    @property
    def skipped(self) -> set[str]:
        assert self.view.replay.skipped.keys() == self.ledger.skipped.keys(), "they read the same"
        return set(self.ledger.skipped)

    @property
    def view(self) -> RunView:
        return RunView.load(self.run_dir)


LARGER = {"hf_sdpa/2/1", "hf_sdpa/4/0", "hf_sdpa/4/1"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def test_what_needs_as_much_is_skipped_and_not_the_smaller_nor_the_other_methods(run: Run) -> None:
    run.end("hf_sdpa/2/0", "failed", OOM)
    assert run.skipped == LARGER
    skip = run.ledger.skipped["hf_sdpa/4/0"]
    assert (skip.over, skip.reason.split(",")[0]) == (
        "hf_sdpa/2/0",
        "needs at least as much memory as point hf_sdpa/2/0 (batch_size=2)",
    )
    assert (run.ledger.points_failed, run.ledger.points_left) == (1, len(run.plan.points) - 4)
    assert run.view.state_of("hf_sdpa/4/0") == "skipped"


def test_what_a_stranger_left_no_room_for_is_no_sign(run: Run) -> None:
    run.end("hf_sdpa/2/0", "failed", replace(OOM, cls="busy_device"))
    assert run.skipped == set()


def test_a_later_life_knows_it_too(run: Run) -> None:
    run.end("hf_sdpa/2/0", "failed", OOM)
    run.resume()
    assert run.skipped == LARGER
    assert sum(isinstance(event, PointSkipped) for event in run.view.replay.events()) == len(LARGER), "told once"


def test_a_later_life_makes_up_for_what_was_not_written_down(run: Run) -> None:
    run.ledger.journal.emit(PointStarted(at=1.0, point="hf_sdpa/2/0", incarnation="w1", prompts=3))
    run.ledger.journal.emit(PointEnded(at=1.0, point="hf_sdpa/2/0", outcome="failed", cause=OOM))
    run.resume()
    assert run.skipped == LARGER


def test_a_retry_that_fits_frees_the_larger_ones(run: Run) -> None:
    run.end("hf_sdpa/2/0", "failed", OOM)
    run.resume(retry_failed=True)
    assert set(run.ledger.skipped) == set(), "they wait for what becomes of it"
    run.end("hf_sdpa/2/0")
    run.end("hf_sdpa/4/0")
    assert run.skipped == set()
    run.resume()
    assert run.skipped == set()
    assert run.view.state_of("hf_sdpa/4/0") == "incomplete", "it ended, here without records"
    assert run.view.state_of("hf_sdpa/4/1") == "unfinished"


def test_a_retry_that_fails_again_skips_them_again(run: Run) -> None:
    run.end("hf_sdpa/2/0", "failed", OOM)
    run.resume(retry_failed=True)
    run.end("hf_sdpa/2/0", "failed", OOM)
    assert run.skipped == LARGER
    run.resume()
    assert run.skipped == LARGER


def test_one_that_was_begun_is_measured_to_its_end(run: Run) -> None:
    run.ledger.emit(PointStarted(at=1.0, point="hf_sdpa/4/1", incarnation="w1", prompts=3))
    run.end("hf_sdpa/2/0", "failed", OOM)
    assert run.skipped == LARGER - {"hf_sdpa/4/1"}
