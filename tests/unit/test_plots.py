"""Specifications of plots: what is in them, and what they leave out and say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.page.drawing import picture
from orchestrator.page.heatplot import SIGNS, of_agreement
from orchestrator.page.plot import MOST_SERIES, looks, measured
from orchestrator.page.plots import MOST_ROWS, absent, plots
from orchestrator.page.speedplots import pareto, reach
from orchestrator.page.timeplot import of_time
from orchestrator.report import RunView, results
from orchestrator.view.timeline import PHASES
from tests.unit import pages

IDS = ["speed-ttft", "speed-tpot", "batch-sizes", "agreement", "load", "memory", "timeline"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run_dir = tmp_path_factory.mktemp("plots") / "run"
    pages.many(run_dir, 3, (1, 2, 4), 3)
    return results(RunView.load(run_dir))


def at(number: int, speed: float, p50_s: float) -> dict[str, Any]:
    """A point of a plot of speed against latency."""
    return {"label": str(number), "speed": speed, "p50_s": p50_s, "comparable": True, "work": ""}


def named(data: dict[str, Any], name: str) -> Any:
    return next(plot for plot in plots(data) if plot.id == name)


def test_a_run_has_its_plots_and_they_are_json_that_compiles(data: dict[str, Any]) -> None:
    found = plots(data)
    assert [plot.id for plot in found] == IDS
    assert absent(data) == {}
    for plot in found:
        assert json.loads(json.dumps(plot.spec)) == plot.spec
        assert picture(plot).startswith("<svg")


@pytest.mark.parametrize("kind", pages.KINDS)
def test_what_is_not_drawn_has_a_reason(kind: str, tmp_path: Path) -> None:
    pages.KINDS[kind](tmp_path / "run")
    data = results(RunView.load(tmp_path / "run"))
    drawn, missing = {plot.id for plot in plots(data)}, absent(data)
    assert not drawn & missing.keys()
    speeds = {"speed-ttft", "speed-tpot", "batch-sizes"}
    assert set(IDS) - drawn - missing.keys() <= (
        speeds if missing.get("speed-ttft", "").startswith("Nothing") else set()
    )


def test_the_alternative_tells_the_best_and_the_front(data: dict[str, Any]) -> None:
    alt = named(data, "speed-ttft").alt
    fastest = max(data["rows"], key=lambda row: row["output_tokens_per_s"])
    assert f"{fastest['method']} batch_size={fastest['settings']['batch_size']} has the most tokens/s" in alt
    assert "9 rows" in alt


def test_rows_that_may_not_be_compared_are_hollow_and_on_no_front(data: dict[str, Any]) -> None:
    fastest = max(data["rows"], key=lambda row: row["output_tokens_per_s"])
    rows = [row if row is not fastest else {**row, "marks": ["outputs diverge"]} for row in data["rows"]]
    found = named({**data, "rows": rows}, "speed-ttft")
    shown = {point["label"]: point["comparable"] for point in found.spec["data"]["values"]}
    assert list(shown.values()).count(False) == 1
    (front,) = [layer["data"]["values"] for layer in found.spec["layer"] if "data" in layer]
    assert not [point for point in front if not point["comparable"]]
    assert "Hollow" in found.alt
    assert f"{fastest['method']} batch_size={fastest['settings']['batch_size']} has" not in found.alt
    alone = [{**row, "marks": ["outputs diverge"]} for row in data["rows"][::3]]
    assert named({**data, "rows": alone}, "speed-ttft").alt == (
        "Speed by time to the first token of 3 rows. Hollow: rows that may not be compared as they are."
    )


def test_rows_that_did_other_work_have_no_front(data: dict[str, Any]) -> None:
    rows = [
        {**row, "settings": {**row["settings"], "max_new_tokens": 8 * (1 + at % 2)}}
        for at, row in enumerate(data["rows"])
    ]
    found = named({**data, "rows": rows}, "speed-ttft")
    assert not [layer for layer in found.spec["layer"] if "data" in layer]
    assert "There is no Pareto front, as rows did different work." in found.alt
    assert " has the most " not in found.alt


@pytest.mark.parametrize(("outcome", "fair"), [("ok", True), ("partial", True), ("failed", False)])
def test_what_may_be_compared_is_so_in_plots_as_in_words(data: dict[str, Any], outcome: str, fair: bool) -> None:
    rows = [{**row, "outcome": outcome} for row in data["rows"]]
    found = named({**data, "rows": rows}, "speed-ttft").spec["data"]["values"]
    assert {one["comparable"] for one in found} == {fair}
    assert {one["compared"] for one in found} <= {"yes", "yes, though it lost some prompts", "failed"}


def test_more_rows_and_series_than_can_be_drawn_are_told(data: dict[str, Any]) -> None:
    rows = [{**data["rows"][n % 3], "method": f"m{n}"} for n in range(MOST_ROWS + 50)]
    found = named({**data, "rows": rows}, "speed-ttft")
    assert f"The first {MOST_SERIES} of {MOST_ROWS} series are drawn; the table has all." in found.alt
    assert len(found.spec["data"]["values"]) == MOST_SERIES


def test_every_series_that_is_drawn_has_a_look_of_its_own() -> None:
    found = looks([str(n) for n in range(MOST_SERIES)], [])
    ranges = [found[name]["scale"]["range"] for name in ("color", "shape", "strokeDash")]
    marks = [(colour, shape) for colour, shape, _ in zip(*ranges, strict=True)]
    lines = [(colour, tuple(dash)) for colour, _, dash in zip(*ranges, strict=True)]
    assert len(set(marks)) == len(set(lines)) == MOST_SERIES


PAIRS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 10)), max_size=30)


@given(PAIRS.map(lambda pairs: [at(number, *pair) for number, pair in enumerate(pairs)]))
def test_the_front_is_what_nothing_beats(points: list[dict[str, Any]]) -> None:
    front = pareto(points)

    def beats(one: Any, other: Any) -> bool:
        return bool(one["speed"] >= other["speed"] and one["p50_s"] <= other["p50_s"] and not alike(one, other))

    def alike(one: Any, other: Any) -> bool:
        return bool((one["speed"], one["p50_s"]) == (other["speed"], other["p50_s"]))

    assert not [one for one in front if any(beats(other, one) for other in points)]
    assert all(any(beats(other, one) or alike(other, one) for other in front) for one in points)
    assert [one["p50_s"] for one in front] == sorted(one["p50_s"] for one in front)


@pytest.mark.parametrize("values", [[1.0, 19.0], [0.0, 20.0], [0.0], []])
def test_an_axis_begins_at_zero_and_ends_where_its_values_do(values: list[float]) -> None:
    found = measured("tokens/s", values)
    assert found["scale"]["domain"] == [0, max(values, default=0) or 1]
    assert found["axis"]["title"] == "tokens/s"


def test_an_axis_is_logarithmic_where_its_values_are_of_several_sizes_and_says_so() -> None:
    found = measured("tokens/s", [1.0, 20.0])
    assert found["scale"]["type"] == "log"
    assert found["axis"]["title"] == "tokens/s (logarithmic)"


def scales(found: Any) -> list[dict[str, Any]]:
    """All of a specification that are of numbers, with their titles."""
    if isinstance(found, list):
        return [one for part in found for one in scales(part)]
    if not isinstance(found, dict):
        return []
    own = [found] if found.get("type") == "quantitative" and "scale" in found and "axis" in found else []
    return own + [one for part in found.values() for one in scales(part)]


def test_no_axis_is_logarithmic_or_cut_without_a_word(data: dict[str, Any]) -> None:
    told = {"judge": "exact", "kind": "share", "value": 0.71, "low": 0.7, "high": 0.72}
    rows = [{**row, "accuracy": told, "output_tokens_per_s_high": 1e9} for row in data["rows"]]
    for plot in plots({**data, "rows": rows}):
        for one in scales(plot.spec):
            log = one["scale"].get("type") == "log"
            assert log == ("(logarithmic)" in one["axis"]["title"]), plot.id
            assert log or one["scale"].get("domain", [0])[0] == 0, plot.id
            assert one["scale"].get("zero") is not False, plot.id
            assert one["scale"].get("domain", [0])[-1] < 1e6, plot.id


def test_a_boundless_interval_does_not_flatten_the_rest() -> None:
    assert max(reach([{"speed": 10.0, "low": 0.001, "high": 1e6}])) == 30
    assert min(reach([{"speed": 10.0, "low": 9.0, "high": None}])) == 9


def test_an_interval_that_leaves_the_frame_is_told(data: dict[str, Any]) -> None:
    rows = [{**row, "output_tokens_per_s_high": 1e9} for row in data["rows"]]
    for name in ("speed-ttft", "batch-sizes"):
        assert "go on beyond it" not in named(data, name).alt
        assert "go on beyond it" in named({**data, "rows": rows}, name).alt


@pytest.mark.parametrize(
    ("kind", "most", "told"), [("share", 100, "71.0 %"), ("mean", 1, "0.710"), ("corpus", 100, "71.0")]
)
def test_accuracy_is_drawn_as_it_is_told(data: dict[str, Any], kind: str, most: int, told: str) -> None:
    one = {"judge": "exact", "kind": kind, "value": 0.71, "low": 0.7, "high": 0.72}
    spec = named({**data, "rows": [{**row, "accuracy": one} for row in data["rows"]]}, "accuracy").spec
    (point, *_) = spec["data"]["values"]
    assert (point["told"], point["accuracy"]) == (told, pytest.approx(0.71 * most))
    assert spec["layer"][-1]["encoding"]["y"]["scale"]["domain"] == [0, most]


def test_accuracy_is_drawn_where_answers_are_judged(data: dict[str, Any]) -> None:
    told = {"judge": "exact", "kind": "share", "value": 0.5, "low": 0.4, "high": 0.6}
    unknown = {"judge": "exact", "kind": "share", "value": None, "low": None, "high": None}
    rows = [{**row, "accuracy": unknown if at else told} for at, row in enumerate(data["rows"])]
    found = named({**data, "rows": rows}, "accuracy")
    assert "(right answers) by exact" in found.alt
    assert "All have 50.0 %." in found.alt
    assert len(found.spec["data"]["values"]) == 1
    assert picture(found).startswith("<svg")


def test_a_load_begins_where_it_is_known_to(data: dict[str, Any]) -> None:
    assert "From launch until" in named(data, "load").alt
    merged = {**data, "timeline": {**data["timeline"], "merged": 7, "resolution_s": 1.0}}
    assert "From the import of the engine until" in named(merged, "load").alt


# --- agreement ------------------------------------------------------------------------


def judged(verdict: str, method: str, point: str) -> dict[str, Any]:
    found = {"method": method, "points": [point], "verdict": verdict, "same": 1, "outputs": 2, "why": "so"}
    return {**found, "own": False}


def test_each_verdict_has_a_sign_and_a_colour_of_its_own() -> None:
    rows = [{"points": [verdict], "settings": {"batch_size": 1}} for verdict in SIGNS]
    cells = [judged(verdict, f"m-{verdict}", verdict) for verdict in SIGNS]
    (found,) = of_agreement(rows, {"reference": "m-reference", "rows": cells})
    signs = [one["sign"] for one in found.spec["data"]["values"]]
    assert len(set(signs)) == len(SIGNS)
    colour = found.spec["layer"][0]["encoding"]["color"]["scale"]
    assert len(set(colour["range"])) == len(colour["domain"]) == len(SIGNS)
    assert all(f"{verdict}: 1" in found.alt for verdict in SIGNS)


def test_columns_are_named_by_what_tells_them_apart() -> None:
    sizes = (2, 8)
    rows = [{"points": [f"{n}"], "settings": {"batch_size": 1, "max_new_tokens": n}} for n in sizes]
    (found,) = of_agreement(rows, {"reference": "m", "rows": [judged("agrees", "m", f"{n}") for n in sizes]})
    assert [one["column"] for one in found.spec["data"]["values"]] == ["2", "8"]
    assert found.spec["layer"][0]["encoding"]["x"]["axis"]["title"] == "max_new_tokens"
    (alone,) = of_agreement(rows[:1], {"reference": "m", "rows": [judged("agrees", "m", "2")]})
    assert [one["column"] for one in alone.spec["data"]["values"]] == ["batch_size=1 max_new_tokens=2"]


def test_without_a_second_method_there_is_nothing_to_agree() -> None:
    rows = [{"points": ["p"], "settings": {"batch_size": 1}}]
    lone = {**judged("reference", "m", "p"), "outputs": 0}
    assert not list(of_agreement(rows, {"reference": "m", "rows": [lone]}))


@pytest.mark.parametrize(("verdict", "sign"), [("agrees", "R"), ("diverges", "R ≠")])
def test_the_references_own_repeats_are_no_verdict_on_another(verdict: str, sign: str) -> None:
    rows = [{"points": [name], "settings": {"batch_size": 1}} for name in ("m", "other")]
    cells = [{**judged(verdict, "m", "m"), "own": True}, judged("agrees", "other", "other")]
    (found,) = of_agreement(rows, {"reference": "m", "rows": cells})
    assert [one["sign"] for one in found.spec["data"]["values"]] == [sign, "="]
    assert "by settings: agrees: 1." in found.alt
    assert f"held against its own first: {verdict}: 1." in found.alt


def test_a_band_and_a_legend_name_what_is_drawn_alone(data: dict[str, Any]) -> None:
    method = data["rows"][0]["method"]
    rows = [row if row["method"] == method else {**row, "output_tokens_per_s": None} for row in data["rows"]]
    found = named({**data, "rows": rows}, "speed-ttft")
    fronts = [layer["data"]["values"] for layer in found.spec["layer"] if "data" in layer]
    assert ("pale band" in found.alt) is any(len(front) > 1 for front in fronts)
    (point,) = [layer["encoding"] for layer in found.spec["layer"] if "shape" in layer["encoding"]]
    assert point["color"]["legend"]["values"] == [method]
    assert len(point["color"]["scale"]["domain"]) > 1


def test_outputs_that_differ_by_nobody_knows_how_much_are_drawn() -> None:
    rows = [{"points": ["p"], "settings": {"batch_size": 1}}]
    (found,) = of_agreement(rows, {"reference": "m", "rows": [judged("unknown", "other", "p")]})
    assert [one["same"] for one in found.spec["data"]["values"]] == ["1 of 2"]


# --- the timeline ----------------------------------------------------------------------


def line(slots: int, **changes: Any) -> dict[str, Any]:
    spans = [
        {"slot": f"slot{n % slots}", "method": f"m{n}", "phase": phase, "begin_s": n, "end_s": n + 1, "count": 1}
        for n, phase in enumerate(PHASES)
    ]
    names = [f"slot{n}" for n in range(slots)]
    usual = {"began_at": 0.0, "length_s": 9.0, "slots": names, "breaks": [], "merged": 0, "resolution_s": None}
    return {**usual, "spans": spans, **changes}


def test_a_lane_for_each_method_and_where_there_are_several_for_each_slot() -> None:
    (lone,), (several,) = of_time(line(1)), of_time(line(2))
    assert [one["lane"] for one in lone.spec["data"]["values"]][:2] == ["m0", "m1"]
    assert [one["lane"] for one in several.spec["data"]["values"]][:2] == ["slot0, m0", "slot1, m1"]


def test_phases_differ_in_height_as_well_as_in_colour() -> None:
    (found,) = of_time(line(1))
    heights = {one["phase"]: one["height"] for one in found.spec["data"]["values"]}
    assert heights["generate"] > heights["load"] > heights["import"] > heights["process starts"]


def test_breaks_and_merged_spans_are_told() -> None:
    (found,) = of_time(line(1, breaks=[{"at_s": 3.0, "away_s": 7200.0}], merged=500, resolution_s=2.0))
    assert "2 h 00 min" in found.alt
    assert "500 spans" in found.alt
    assert len(found.spec["layer"]) == 2
    assert not list(of_time(line(1, spans=[])))
    assert not list(of_time(None))
