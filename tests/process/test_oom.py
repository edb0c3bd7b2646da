"""Memory that runs out, over whole sweeps: what the policy makes of it, and what is not tried any more."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.events import BatchLost, PointEnded, PointSkipped, WorkerLaunched
from orchestrator.report import RunView, status
from protocol.records import FLAG_SPLIT_BATCH
from tests.process.sweeping import PROMPTS, Bench, method

pytestmark = pytest.mark.usefixtures("nothing_leaked")

GIVE_UP = {"oom": "give_up"}


def cells(bench: Bench, *, of: str = "tight", by: str = "batch_size") -> dict[tuple[int, int], str]:
    """How each point of a method stands, by a setting and the repeat."""
    view = RunView.load(bench.run_dir)
    points = [point for point in view.points.values() if point.method == of]
    return {(getattr(point.config, by), point.repeat): view.state_of(point.id) for point in points}


def launched(bench: Bench) -> Counter[str]:
    return Counter(event.method for event in bench.events if isinstance(event, WorkerLaunched))


def skips(bench: Bench) -> list[PointSkipped]:
    return [event for event in bench.events if isinstance(event, PointSkipped)]


def once(bench: Bench) -> str:
    """Whoever takes it away makes it happen again."""
    return str(bench.folder / "once")


# --- a batch ------------------------------------------------------------------------------------


def test_halve_runs_the_halves_and_says_so_in_every_row(bench: Bench) -> None:
    tight = method("tight", at="batch:1", do="memory_error", once=once(bench))
    bench.write(methods=[tight], matrix={"batch_size": [4, 8]}, policies={"oom": "halve"})
    assert bench.run().returncode == 0
    assert cells(bench) == {(4, 0): "ok", (8, 0): "ok"}, "what was measured in halves is measured"
    (lost,) = [event for event in bench.events if isinstance(event, BatchLost)]
    assert (lost.cause.cls, lost.cause.policy, len(lost.prompts)) == ("oom", "halve, 2 times", 4)
    halved = {record["prompt_id"] for record in bench.records if FLAG_SPLIT_BATCH in record["flags"]}
    assert halved == set(lost.prompts)
    assert {r["batch"][len(r["point"][:8]) :] for r in bench.records if r["prompt_id"] in halved} >= {"-0.0", "-0.1"}
    assert set(bench.keys().values()) == {1}
    assert launched(bench) == {"tight": 1}, "a worker that lives through it goes on"
    bench.assert_clean()


def test_give_up_fails_the_point_at_once_skips_what_needs_as_much_and_tries_what_needs_less(bench: Bench) -> None:
    tight = method("tight", at="batch:1", do="memory_error", once=once(bench))
    bench.write(
        methods=[tight, "scripted"],
        matrix={"batch_size": [2, 4, 1]},
        repeats=2,
        policies=GIVE_UP,
    )
    assert bench.run().returncode == 1
    failed, skipped = {(2, 0): "failed"}, dict.fromkeys([(2, 1), (4, 0), (4, 1)], "skipped")
    assert cells(bench) == failed | skipped | {(1, 0): "ok", (1, 1): "ok"}
    assert set(cells(bench, of="scripted").values()) == {"ok"}, "never another method"
    ends = {end.point: end for end in bench.events if isinstance(end, PointEnded)}
    assert {skip.reason for skip in skips(bench)} == {
        f"needs at least as much memory as point {skips(bench)[0].over} (batch_size=2), which ran out of it"
    }
    assert ends[skips(bench)[0].over].cause is not None
    assert not ends.keys() & {skip.point for skip in skips(bench)}
    assert sum(isinstance(event, BatchLost) for event in bench.events) == 1, "one batch ran out, and no more were tried"
    assert status(RunView.load(bench.run_dir))["points"] == {
        "total": 12,
        "done": 8,
        "failed": 1,
        "partial": 0,
        "skipped": 3,
        "left": 0,
    }
    bench.assert_clean()


def test_what_is_tried_again_in_vain_is_not_tried_in_its_repeats(bench: Bench) -> None:
    bench.write(
        methods=[method("tight", at="prompt:0", do="memory_limit")],
        matrix={"batch_size": [6]},
        repeats=3,
        policies={"oom": {"do": "retry", "times": 1}},
    )
    assert bench.run().returncode == 1
    assert cells(bench) == {(6, 0): "failed", (6, 1): "skipped", (6, 2): "skipped"}
    assert launched(bench) == {"tight": 2}, "as often as the policy says, for one of them"
    bench.assert_clean()


def test_it_is_remembered_by_later_lives_until_the_failed_one_is_tried_again(bench: Bench) -> None:
    tight = method("tight", at="batch:1", do="memory_error", once=once(bench))
    bench.write(methods=[tight], matrix={"batch_size": [2, 4]}, policies=GIVE_UP)
    assert bench.run().returncode == 1
    assert cells(bench) == {(2, 0): "failed", (4, 0): "skipped"}
    assert bench.run("--resume").returncode == 1
    assert launched(bench) == {"tight": 1}
    assert len(skips(bench)) == 1
    assert bench.run("--resume", "--retry-failed").returncode == 0
    assert cells(bench) == {(2, 0): "ok", (4, 0): "ok"}, "it fits now, and so may the larger one"
    assert set(bench.keys().values()) == {1}
    assert len(bench.records) == 2 * len(PROMPTS)
    assert bench.run("--resume").returncode == 0
    bench.assert_clean()


# --- a load -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["grouped", "interleaved"])
def test_a_load_that_runs_out_ends_its_start_and_larger_loads_are_skipped(bench: Bench, order: str) -> None:
    bench.write(
        methods=[method("tight", at="load", do="memory_error"), "scripted"],
        matrix={"batch_size": [1, 2], "max_model_len": [64, 128]},
        repeats=2,
        measurement={"order": order},
    )
    assert bench.run().returncode == 1
    assert launched(bench)["tight"] == 1, "neither the larger load nor a later repeat is tried"
    failed = [end for end in bench.events if isinstance(end, PointEnded) and end.outcome == "failed"]
    assert {(end.cause.cls, end.cause.phase) for end in failed if end.cause} == {("oom", "loading")}
    assert len(failed) == (4 if order == "grouped" else 2), "all points of the start that failed"
    assert len(failed) + len(skips(bench)) == 8
    assert {cells(bench, by="max_model_len")[128, repeat] for repeat in (0, 1)} == {"skipped"}
    assert set(cells(bench, of="scripted").values()) == {"ok"}
    bench.assert_clean()


def test_a_smaller_load_is_tried_after_a_larger_one(bench: Bench) -> None:
    tight = method("tight", at="load", do="memory_error", once=once(bench))
    bench.write(methods=[tight], matrix={"batch_size": [2], "max_model_len": [128, 64]})
    assert bench.run().returncode == 1
    assert cells(bench, by="max_model_len") == {(128, 0): "failed", (64, 0): "ok"}
    assert skips(bench) == []
    bench.assert_clean()
