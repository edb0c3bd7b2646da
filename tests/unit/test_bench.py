"""How scripts/bench sets two things beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.view.stats import Interval
from scripts import bench, bench_overhead
from scripts.bench_overhead import Batch, in_rounds, per_round
from scripts.figures import Figure, sweep_command

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
    text = str(Figure("x", 1.5, "s", "y", 1.0, "target: 2", Interval(1.4, 1.6)))
    assert " ".join(text.split()) == "x 1.5 s 95% interval 1.4 to 1.6 1.500 × y (1 s) target: 2"


def test_a_sweep_is_a_file_already_or_becomes_one(tmp_path: Path) -> None:
    *_, path, _, run_dir = sweep_command(tmp_path, {"name": "n"})
    assert json.loads(Path(path).read_text()) == {"name": "n"}
    assert run_dir == str(tmp_path / "run")
    assert sweep_command(tmp_path, tmp_path / "mine.yaml")[-3] == str(tmp_path / "mine.yaml")


def test_each_figure_has_a_name_of_its_own() -> None:
    assert not bench.PLAIN.keys() & bench.ENGINES.keys()
