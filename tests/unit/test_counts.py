"""Numbers as people read them: each is called what it counts, and thousands are set apart, in all that people see and
in nothing that programs read."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.exports.rows import ROWS
from orchestrator.page import table as page
from orchestrator.progress import Progress, WorkerProgress
from orchestrator.report import RunView, markdown, results, rows, status, status_lines, table
from orchestrator.terminal.jsonlines import results_object
from orchestrator.terminal.layout import progress_text
from orchestrator.view import metrics, rest, tables, wording
from orchestrator.view.accuracy import Accuracy
from orchestrator.view.counters import Counters
from orchestrator.view.figures import row_figures
from orchestrator.view.markdown import SHOWN
from orchestrator.view.stats import Estimate
from orchestrator.view.summary import Row
from protocol.specs import BackendConfig, MethodSpec
from tests.unit.documents import REPO, name_of
from tests.unit.rundirs import a_plan, finished_run

LARGE = 1_234_567
BEHIND_THE_POINT = re.compile(r"\.\d+")
RUN_TOGETHER = re.compile(r"\d{4,}")


def shown(rows: list[Row]) -> str:
    stream = io.StringIO()
    Console(file=stream, width=300).print(table(rows))
    return stream.getvalue()


def large() -> Row:
    """Whatever is counted of it is counted in millions."""
    estimate, times = Estimate(LARGE / 2, LARGE, lambda: 0.01), metrics.Spread(count=LARGE, median=Estimate(0.1, LARGE))
    speed = metrics.Speed(
        output=estimate,
        total=estimate,
        requests=float(LARGE),
        good=float(LARGE),
        generated_tokens=LARGE,
        prompt_tokens=LARGE,
        repeats={0: (float(LARGE), 1.0), 1: (float(LARGE), 0.5)},
        unjudged=LARGE,
    )
    return Row(
        config=BackendConfig(method=MethodSpec(name="m", engine="hf"), model_path="/m"),
        settings={},
        points=("p", "q"),
        outcome="partial",
        worst_count=1,
        cause="",
        speed=speed,
        ttft=times,
        tpot=times,
        outliers=(metrics.Outlier(0, "b", 1.0, LARGE),) * 3,
        compared=LARGE,
        sizes=Counter({1: LARGE}),
        outputs_ok=LARGE,
        outputs_failed=LARGE,
        outputs_missing=LARGE,
        flags=Counter(split_batch=LARGE),
        batches_lost=LARGE,
        counters=Counters(sums={"steps": float(LARGE), "cached_tokens": float(LARGE)}),
        answers=(Accuracy("exact", "share", 0.5, judged=LARGE, prompts=LARGE, correct=LARGE, failed=LARGE, cut=LARGE),),
    )


# --- what is counted ------------------------------------------------------------------


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    """Three prompts, two repeats: six outputs a row."""
    finished_run(tmp_path / "run")
    return RunView.load(tmp_path / "run")


def test_what_is_counted_over_all_repeats_is_nowhere_called_prompts(view: RunView) -> None:
    found = list(rows(view))
    assert len(view.plan.prompt_ids) == 3
    columns = dict(table(found).columns)
    assert set(columns["outputs"]) == {"6"}
    assert "outputs: one of each prompt in each repeat" in shown(found)
    told = [row_figures(row) for row in found]
    assert [one["outputs"] for one in told] == [{"ok": 6, "failed": 0, "missing": 0}] * len(found)
    assert {row["outputs_ok"] for row in results_object(found, "", 0.0)["rows"]} == {6}
    assert {"outputs_ok", "outputs_failed", "outputs_missing"} <= {column.name for column in ROWS}
    made = page.table(found, told)
    place = [column.name for column in made.columns].index("outputs")
    assert {cells[place].text for _, cells in made.rows} == {"6"}
    heads = [
        *columns,
        *(column.name for column in ROWS if not column.name.startswith("accuracy_")),
        *(column.name for column in made.columns),
        *next(line for line in tables.results(found)).split(" | "),
    ]
    assert [head for head in heads if re.fullmatch(r"prompts(?: ok|_\w+)?", head)] == []
    assert "- prompts: 3, digest" in markdown(view), "those of the run are prompts"


# --- thousands ------------------------------------------------------------------------


def test_thousands_are_set_apart_in_every_table_and_sentence_for_people() -> None:
    row = large()
    lines = [
        shown([row]),
        *(cell.text for _, cells in page.table([row], [row_figures(row)]).rows for cell in cells),
        *rest.lines([row] * (SHOWN + 2), SHOWN),
        *tables.results([row]),
        *tables.latency([row]),
        *tables.throughput([row], a_plan().measurement),
        *tables.counters([row]),
        *tables.spread([row], []),
        progress_text(
            Progress(
                workers=[WorkerProgress(method="m", batches_done=LARGE, batches_total=LARGE, tokens_per_s=1e6)],
                points_done=LARGE,
                points_failed=LARGE,
                points_skipped=LARGE,
                points_total=LARGE,
            )
        ),
    ]
    text = "\n".join(lines)
    assert text.count("1,234,567") > 20
    assert RUN_TOGETHER.findall(BEHIND_THE_POINT.sub("", text)) == []


def test_a_status_sets_them_apart_in_words_and_not_for_programs(view: RunView) -> None:
    found = {**status(view), "records": LARGE, "records_planned": LARGE}
    assert "records: 1,234,567 of 1,234,567" in list(status_lines(found))
    assert json.loads(json.dumps(found))["records"] == LARGE


def test_what_programs_read_has_plain_numbers() -> None:
    told = row_figures(large())
    assert (told["generated_tokens"], told["outputs"]["ok"], told["steps"]) == (LARGE, LARGE, LARGE)
    (row,) = results_object([large()], "", 0.0)["rows"]
    assert (row["outputs_ok"], row["tokens_per_s"]) == (LARGE, LARGE / 2)
    plain = [value for value in (*told.values(), *row.values()) if isinstance(value, str)]
    assert not any(re.search(r"\d,\d{3}", value) for value in plain)


def test_a_run_in_json_has_no_number_in_words(view: RunView) -> None:
    found = json.dumps(results(view)["rows"])
    assert not re.search(r"\d,\d{3}(?!\d)", found)


def test_one_place_sets_them_apart() -> None:
    places = {
        name_of(path)
        for path in (REPO / "orchestrator").rglob("*.py")
        if re.search(r":,[.}]|:,d|format\([^)]*\",", path.read_text(encoding="utf-8"))
    }
    assert places == {"orchestrator/view/wording.py"}


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (1000, "1,000"), (16384, "16,384"), (LARGE, "1,234,567")]
)
def test_a_count_as_text(count: int, text: str) -> None:
    assert wording.count_text(count) == text
    assert wording.counted(count, "row") == f"{text} rows"


def test_the_parts_of_a_row_that_are_counted_are_all_large() -> None:
    """So that what is added to a row is added above."""
    blank = Row(large().config, {}, (), "ok", 0, "")
    counted = {one.name for one in dataclasses.fields(Row) if type(getattr(blank, one.name)) is int}
    assert counted - {"worst_count", "skipped", "crowded"} == {
        name for name in counted if getattr(large(), name) == LARGE
    }
