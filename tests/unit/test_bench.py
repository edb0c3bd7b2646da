"""How scripts/bench sets two things beside each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.events import BatchCommitted, Event, PointStarted, StateChanged, WorkerLaunched, WorkerReady
from orchestrator.report import RunView
from orchestrator.view.stats import Interval
from protocol.records import LoadTimes, RuntimeMetadata
from scripts import bench, bench_overhead, bench_scale, bench_sweep, bench_switch, bench_teardown, wire_peer
from scripts.bench_optimum import optimum, points
from scripts.bench_overhead import Batch, in_rounds, per_round
from scripts.figures import Figure, medians_s, spent, sweep_command
from scripts.long_run import Size, finish, write_sweep
from tests.unit import rundirs

IDS = [[1, 2], [3]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_overhead, "SETTLE_S", 0.0)


def side(name: str, order: list[str], ids: list[list[int]]) -> Batch:
    def run() -> tuple[float, list[list[int]]]:
        order.append(name)
        return float(len(order)), ids

    return run


def test_rounds_mirror_themselves_so_that_drift_hits_both_sides_alike() -> None:
    order: list[str] = []
    ours, theirs = in_rounds(side("a", order, IDS), side("b", order, IDS), 2)
    assert "".join(order) == "ab" + "abba" * 2, "one of each is not counted"
    assert (ours, theirs) == ([3.0, 6.0, 7.0, 10.0], [4.0, 5.0, 8.0, 9.0])
    assert per_round(ours, theirs) == [1.0, 1.0], "time that grows steadily makes no difference"


def test_other_ids_are_other_work() -> None:
    order: list[str] = []
    with pytest.raises(SystemExit, match="other ids"):
        in_rounds(side("a", order, IDS), side("b", order, [[1, 2], [4]]), 1)


def test_a_figure_tells_its_interval_and_its_ratio() -> None:
    text = str(Figure("x", 1.5, "s", "y", 1.0, interval=Interval(1.4, 1.6), most=2.0))
    assert " ".join(text.split()) == "x 1.5 s 95% interval 1.4 to 1.6 1.500 × y (1 s) target: at most 2: met"


def test_a_sweep_is_a_file_already_or_becomes_one(tmp_path: Path) -> None:
    *_, path, _, run_dir = sweep_command(tmp_path, {"name": "n"})
    assert json.loads(Path(path).read_text()) == {"name": "n"}
    assert run_dir == str(tmp_path / "run")
    assert sweep_command(tmp_path, tmp_path / "mine.yaml")[-3] == str(tmp_path / "mine.yaml")


# --- figures ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "reference", "met"),
    [
        ({"most": 2.0}, 1.0, True),
        ({"most": 1.9}, 1.0, False),
        ({"least": 2.0}, 1.0, True),
        ({"least": 2.1}, 1.0, False),
        ({}, 1.0, None),
        ({"most": 2.0}, None, None),
    ],
)
def test_a_bound_is_of_the_ratio(bounds: dict[str, float], reference: float | None, met: bool | None) -> None:
    figure = Figure("x", 2.0, "s", "y", reference, **bounds)  # type: ignore[arg-type]
    assert figure.met is met
    assert figure.as_dict()["met"] is met
    said = {True: ": met", False: ": missed", None: ""}[met]
    assert str(figure).endswith(said)
    assert ("target" in str(figure)) == bool(bounds)


def test_without_anything_to_compare_with_the_figure_says_why() -> None:
    assert "nothing: not installed" in str(Figure("x", 2.0, "s", "nothing: not installed"))


def test_those_that_are_compared_take_turns() -> None:
    order: list[str] = []
    found = medians_s([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert "".join(order) == "ababab"
    assert len(found) == 2
    assert all(taken > 0 for taken in found)


def test_what_a_command_spends_is_its_own() -> None:
    held = bytearray(200 << 20)
    small = spent([sys.executable, "-c", "pass"])
    large = spent([sys.executable, "-c", "held = bytearray(100 << 20)"])
    assert small.peak_bytes < 60 << 20 < len(held), "a process starts with the peak of its parent"
    assert 95 << 20 < large.peak_bytes - small.peak_bytes < 105 << 20
    assert small.wall_s > 0
    busy = spent([sys.executable, "-c", "sum(range(10_000_000))"])
    assert busy.cpu_s > small.cpu_s > 0


def test_a_command_that_fails_gives_no_figure() -> None:
    with pytest.raises(SystemExit, match="ended with 3"):
        spent([sys.executable, "-c", "raise SystemExit(3)"])


# --- the list -----------------------------------------------------------------


def test_each_figure_has_a_name_of_its_own_and_can_be_made() -> None:
    groups = (bench.PLAIN, bench.LONG, bench.ENGINES)
    assert len(bench.ALL) == sum(map(len, groups))
    listed = list(bench.listing())
    assert [line.split()[0] for line in listed] == list(bench.ALL)
    for name, maker in bench.ALL.items():
        signature(maker).bind(Path())
        assert maker.__doc__, name


def test_one_that_fails_is_told_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bad(_folder: Path) -> Iterator[Figure]:
        yield Figure("half", 1.0, "s")
        raise SystemExit("broken")

    def good(folder: Path) -> Iterator[Figure]:
        yield Figure(folder.name, 1.0, "s")

    monkeypatch.setattr(bench, "ALL", {"bad": bad, "good": good})
    failed: list[str] = []
    assert [figure.name for figure in bench.made(["bad", "good"], failed)] == ["half", "good"]
    assert failed == ["bad"]
    assert "bad could not be measured: broken" in capsys.readouterr().err


# --- single figures -------------------------------------------------------------


def test_the_wire_carries_what_is_claimed() -> None:
    batch, records = wire_peer.question().batch, wire_peer.answer().generations
    assert {len(prompt.token_ids) for prompt in batch.prompts} == {1024}
    assert {(len(one.text), len(one.token_ids)) for one in records} == {(2000, 4 * 256)}
    assert [prompt.id for prompt in batch.prompts] == [one.prompt_id for one in records]
    assert len(records) == 64


def test_every_side_of_the_sweep_does_the_same_batches() -> None:
    cells = bench_sweep.CELLS
    assert len(cells) == 4
    assert points(cells, 3, 8) == [("sdpa", 1, 24), ("sdpa", 4, 6), ("eager", 1, 24), ("eager", 4, 6)]
    assert points([("sdpa", 3)], 2, 8) == [("sdpa", 3, 6)], "the last batch of a repeat may be smaller"
    asked = bench_sweep.sweep()
    assert len(set(asked["prompts"]["inline"])) == bench_sweep.PROMPTS
    assert {len(one.split()) for one in asked["prompts"]["inline"]} == {bench_sweep.PROMPT_TOKENS}
    assert bench_sweep.Side(10.0, 6.0, 1.0, 12.0).rest_s == 3.0


def test_where_optimum_benchmark_is_not_installed_or_fails_the_figure_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRLOCK_OPTIMUM_PYTHON", raising=False)
    without = optimum(tmp_path, sys.executable, {}, {}, "x", 1.0)
    assert "not installed" in str(without)
    (tmp_path / "optimum_benchmark.py").write_text("raise ImportError('too old')")
    broken = optimum(tmp_path, sys.executable, {"PYTHONPATH": str(tmp_path)}, {}, "x", 1.0)
    assert "failed" in str(broken)
    assert without.met is broken.met is None


def test_prompts_of_other_lengths_are_no_comparison(tmp_path: Path) -> None:
    line = json.dumps({"id": "0", "token_ids": [1] * 63})
    (tmp_path / "prompts.jsonl").write_text(line)
    with pytest.raises(SystemExit, match=r"\[63\] tokens, not of 64"):
        bench_sweep.read_prompts(tmp_path)


def test_a_switch_is_from_the_last_record_to_the_next_method_s_first_point() -> None:
    found = list(bench_switch.switches(switching("standby")))
    assert [(one.before, one.after, one.taken_s, one.early) for one in found] == [("a", "b", 3.0, "standby")]
    assert (found[0].load.total_s, found[0].late_s) == (2.0, 0.5)


@pytest.mark.parametrize(("early", "own_s", "most"), [("standby", 2.5, 1.15), ("teardown", 7.0, 1.1), ("", 7.0, 1.1)])
def test_standby_is_held_against_the_load_and_what_was_left_of_the_import(
    early: Literal["", "standby", "teardown"], own_s: float, most: float
) -> None:
    [figure] = map(bench_switch.figure, bench_switch.switches(switching(early)))
    assert (figure.reference, figure.most) == (own_s, most)


def test_a_worker_that_did_not_leave_in_order_is_no_figure(tmp_path: Path) -> None:
    plan = rundirs.a_plan(methods=[rundirs.HF])
    journal = rundirs.begin(tmp_path / "run", plan)
    rundirs.run_start(journal, plan.starts[0], "w1")
    assert [one.wait_s for one in bench_teardown.torn_down(tmp_path / "run")["hf_sdpa"]] == [0.4]
    rundirs.launch(journal, plan.starts[0], "w2")
    rundirs.release(journal, "w2", rung="kill")
    rundirs.end(journal)
    with pytest.raises(SystemExit, match="w2 did not leave in order"):
        bench_teardown.torn_down(tmp_path / "run")


def switching(early: Literal["", "standby", "teardown"]) -> Iterator[Event]:
    """a commits twice, b stands by meanwhile, then runs two points."""

    def launched(name: str, early: Literal["", "standby", "teardown"] = "") -> WorkerLaunched:
        return WorkerLaunched(
            at=1.0,
            incarnation=f"w-{name}",
            method=name,
            engine="scripted",
            env="own",
            fingerprint="f",
            slot="slot0",
            pid=1,
            log="l",
            early=early,
        )

    def ready(name: str) -> WorkerReady:
        load = LoadTimes(import_s=5.0, total_s=2.0)
        metadata = RuntimeMetadata(engine="scripted", engine_version="0", python_version="3", load=load)
        return WorkerReady(at=2.0, incarnation=f"w-{name}", metadata=metadata, fingerprint="f")

    def commit(name: str, at: float) -> BatchCommitted:
        return BatchCommitted(
            at=at,
            point="p",
            batch="p-0",
            incarnation=f"w-{name}",
            prompts=["x"],
            offset=0,
            length=0,
            crc=0,
            stats=None,
        )

    def begun(name: str, at: float) -> PointStarted:
        return PointStarted(at=at, point=f"p-{name}-{at}", incarnation=f"w-{name}", prompts=1)

    yield from (launched("a"), ready("a"), begun("a", 3.0), commit("a", 4.0), launched("b", early), commit("a", 10.0))
    yield StateChanged(at=10.5, incarnation="w-b", state="standby", after_s=5.0)
    yield from (ready("b"), begun("b", 13.0), commit("b", 14.0), begun("b", 15.0))


# --- large runs -------------------------------------------------------------------


@given(st.sampled_from([100, 1_000, 10_000, 100_000]))
def test_a_size_is_as_large_as_was_asked(points: int) -> None:
    assert Size.of_points(points).points == points


def test_a_million_generations_are_a_million() -> None:
    assert bench_scale.MILLION.generations == 10 * bench_scale.A_TENTH.generations == 1_000_000


def test_a_run_that_nobody_ran_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_HOME", str(tmp_path / "home"))
    size = Size(cells=2, repeats=2, prompts=3)
    file = write_sweep(tmp_path, size)
    finish(file, tmp_path / "run")
    view = RunView.load(tmp_path / "run")
    assert len(view.plan.points) == size.points == len(view.replay.outcomes)
    assert view.replay.records == size.generations
    assert {view.state_of(point.id) for point in view.plan.points} == {"ok"}
