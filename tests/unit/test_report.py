"""Figures against sums done by hand, and every kind of run that did not go well."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace
from rich.console import Console

from orchestrator.errors import JournalError
from orchestrator.events import BatchLost, RunStarted, SlotQuarantined, SurvivorsReaped
from orchestrator.exports.source import Source, events
from orchestrator.journal import Journal
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.plan import Plan
from orchestrator.record.replay import JOURNAL_NAME, RECORDS_NAME
from orchestrator.report import Results, Row, RunView, markdown, results_pieces, rows, status, status_lines, table
from orchestrator.view import burden, metrics
from orchestrator.view.compare import Versus
from orchestrator.view.markdown import SHOWN
from orchestrator.view.markup import cell, fenced, grid
from orchestrator.view.results import DROPPED, given_back
from orchestrator.view.stats import Estimate, LogError, Ratio
from orchestrator.view.summary import labels, varying
from orchestrator.view.wording import counted
from protocol.records import DEGENERATE_TOKENS, FLAG_DEGENERATE, ErrorInfo, LoadTimes
from protocol.specs import BackendConfig, MethodSpec
from tests.unit.pages import html_of
from tests.unit.rundirs import (
    HF,
    VLLM,
    a_plan,
    begin,
    end,
    ended,
    finished_run,
    launch,
    new_run,
    record,
    release,
    run_point,
    started,
    stats,
)

OOM = Cause(
    cls="oom",
    message="CUDA out of memory | tried *4* GiB",
    phase="loading",
    exit_status=1,
    error=ErrorInfo(type="OutOfMemoryError", message="x", traceback="Traceback:\n  first line of it"),
    log_tail="line 1\n```\n# not a heading\n\x1b[31mred",
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def plain(renderable: Results, width: int = 300) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def read_back(plan: Plan) -> Plan:
    return msgspec.json.decode(msgspec.json.encode(plan), type=Plan)


def test_a_reader_sees_the_plan_that_was_made() -> None:
    plan = a_plan()
    seen = read_back(plan)
    for name in ("name", "digest", "prompts_digest", "prompt_ids", "repeats", "warmup", "notes"):
        assert getattr(seen, name) == getattr(plan, name)
    assert [to_builtins(p) for p in seen.points] == [to_builtins(p) for p in plan.points]
    assert [(s.key, s.env, s.config) for s in seen.starts] == [(s.key, s.env, s.config) for s in plan.starts]


# --- figures ------------------------------------------------------------------


def test_one_row_per_method_and_settings_with_figures_as_defined(run_dir: Path) -> None:
    finished_run(run_dir)
    found = rows(RunView.load(run_dir))
    assert [(row.method, row.settings) for row in found] == [
        (method, {"batch_size": size}) for method in ("hf_sdpa", "vllm_fa") for size in (1, 2)
    ]
    row = found[1]
    # batch size 2: two batches a repeat, 9 tokens; 2 x 0.5 s in repeat 0, 2 x 0.25 s in repeat 1
    assert value(row.speed.output) == pytest.approx((9 + 9) / (1.0 + 0.5))
    assert row.rates == pytest.approx({0: 9.0, 1: 18.0})
    assert value(row.speed.total) == pytest.approx((18 + 6 * 3) / 1.5)
    assert row.speed.requests == pytest.approx(6 / 1.5)
    assert value(row.ttft.median) == pytest.approx(0.1)
    assert value(row.tpot.median) == row.tpot.mean_s == pytest.approx((0.3 - 0.1) / 2)
    assert value(row.latency.median) == row.latency.p99_s == pytest.approx(0.3)
    assert (row.ttft.count, row.itl.count) == (6, 0)
    assert row.load.total_s == 12.0
    assert row.memory.peak == 4 << 30
    assert row.returned == burden.Returned(True, 3 << 30, 0.4, 3 << 30)
    assert (row.outputs_ok, row.outputs_failed, row.outputs_missing) == (6, 0, 0)
    assert (row.outcome_text, row.cause) == ("ok (batches of 2 and 1)", "")


def test_what_an_engine_does_not_tell_is_unknown_and_not_zero(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0", load=LoadTimes(total_s=1.0))
    (point,) = plan.points
    records = [record(name, point=point.id, ttft_s=None, latency_s=None) for name in plan.prompt_ids]
    journal.commit(point=point.id, batch="b1", incarnation="w0", records=records, stats=None)
    journal.emit(ended(point=point.id))
    release(journal, "w0", held_bytes=None, peak_bytes=None)
    end(journal)
    (row,) = rows(RunView.load(run_dir))
    assert row.speed == metrics.Speed()
    assert row.ttft == row.itl == row.tpot == row.latency == metrics.Spread()
    assert (row.memory.peak, row.returned.amount) == (None, None)
    text = markdown(RunView.load(run_dir))
    assert "| – | – | reference | – | – | – | 1 s | – | – in 400 ms |" in text
    assert "no record tells when its first token came" in text


def test_batches_without_time_do_not_divide_by_zero(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    journal = begin(run_dir, plan)
    run_point(journal, plan.points[0], "w0", wall_s=0.0)
    end(journal)
    (row,) = rows(RunView.load(run_dir))
    assert row.speed.output is None


def test_prompts_with_an_error_or_a_single_token_stay_out_of_latencies(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    bad = Cause(cls="bad_prompt", message="too long")
    of_w0 = {"point": point.id, "incarnation": "w0"}
    records = [
        record("a", ttft_s=9.0, latency_s=9.0, error=bad, **of_w0),
        record("b", ttft_s=0.2, latency_s=0.2, generated_tokens=1, token_ids=[5], **of_w0),
        record("c", ttft_s=0.4, latency_s=1.0, generated_tokens=4, token_ids=[1, 2, 3, 4], **of_w0),
    ]
    journal.commit(point=point.id, batch="b1", incarnation="w0", records=records, stats=stats(wall_s=1.0))
    journal.emit(ended("partial", point=point.id))
    end(journal, 1)
    view = RunView.load(run_dir)
    (row,) = rows(view)
    assert value(row.speed.output) == pytest.approx(5.0)
    assert value(row.ttft.median) == pytest.approx(0.3)
    assert row.tpot.mean_s == pytest.approx(0.2)
    assert row.tpot.count == 1
    assert (row.outputs_ok, row.outputs_failed) == (2, 1)
    assert (row.outcome, row.cause) == ("partial", "bad_prompt: too long")
    assert "- prompt a: bad_prompt: too long" in markdown(view)


def test_import_and_load_are_told_apart(run_dir: Path) -> None:
    plan = a_plan([HF, VLLM], [1], repeats=1)
    journal = begin(run_dir, plan)
    for number, import_s in enumerate((6.0, 8.0)):
        launch(journal, plan.starts[0], f"w{number}", load=LoadTimes(import_s=import_s, total_s=3.0))
    launch(journal, plan.starts[1], "w2", load=LoadTimes(total_s=4.0))
    end(journal, 1)
    text = markdown(RunView.load(run_dir))
    assert "| threads | ranks | import | load | workers |" in text
    assert "| 2 | – | 7 s | 3 s | w0, w1 |" in text
    assert "| 2 | – | – | 4 s | w2 |" in text
    assert "the import is not in it" in text
    assert "| transformers 9.9 |" in text


def test_a_batch_whose_record_was_replaced_is_not_measured(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    for batch, wall_s, names in (("b1", 100.0, "ab"), ("b2", 1.0, "bc")):
        records = [record(name, point=point.id, batch=batch, incarnation="w0") for name in names]
        journal.commit(point=point.id, batch=batch, incarnation="w0", records=records, stats=stats(wall_s=wall_s))
    journal.emit(ended(point=point.id))
    end(journal)
    (row,) = rows(RunView.load(run_dir))
    assert value(row.speed.output) == pytest.approx(6.0)
    assert row.outputs_ok == 3


def test_only_settings_that_tell_points_of_a_method_apart_are_shown() -> None:
    assert varying(read_back(a_plan())) == ["batch_size"]
    assert varying(read_back(a_plan([HF, VLLM], [4]))) == ["batch_size"]


def test_points_are_named_by_what_differs() -> None:
    names = labels(read_back(a_plan()))
    assert names["hf_sdpa/2/1"] == "hf_sdpa batch_size=2 (repeat 2 of 2)"
    assert len(set(names.values())) == len(names)
    assert labels(a_plan(sizes=[4], repeats=1)) == {"hf_sdpa/4/0": "hf_sdpa", "vllm_fa/4/0": "vllm_fa"}


def test_one_is_not_many() -> None:
    assert [counted(n, "point") for n in (0, 1, 2)] == ["0 points", "1 point", "2 points"]
    assert [counted(n, "batch", "batches") for n in (1, 2)] == ["1 batch", "2 batches"]


# --- runs that did not go well ------------------------------------------------


def broken_run(run_dir: Path) -> None:
    """hf: one repeat failed. vllm: lost one batch and was interrupted; its memory did not come back."""
    plan = a_plan(sizes=[2])
    journal = begin(run_dir, plan)
    hf, vllm = plan.starts
    launch(journal, hf, "w0")
    run_point(journal, hf.points[0], "w0")
    journal.emit(ended("ok", point=hf.points[0].id))
    journal.emit(ended("failed", point=hf.points[1].id, cause=OOM))
    release(journal, "w0", cause=OOM, strays_killed=["99 EngineCore"], rung="kill", shm_removed=["psm_1"])
    launch(journal, vllm, "w1", notes=["ran eager after 8 shapes"])
    run_point(journal, vllm.points[0], "w1", prompts=["a"])
    journal.emit(BatchLost(at=1.0, point=vllm.points[0].id, batch="b9", incarnation="w1", prompts=["b"], cause=OOM))
    release(journal, "w1", returned=False, processes_left=1)
    journal.emit(SlotQuarantined(at=1.0, slot="slot0", incarnation="w1", reason="held"))
    end(journal, 130, "interrupted by signal 2")


def test_failures_are_results_with_cause_and_log(run_dir: Path) -> None:
    broken_run(run_dir)
    view = RunView.load(run_dir)
    hf, vllm = rows(view)
    assert hf.outcome_text == "failed (1 of 2, batches of 2 and 1)"
    assert hf.cause == "oom: CUDA out of memory | tried *4* GiB (while loading, exit status 1)"
    assert hf.outputs_missing == 3
    assert vllm.outcome == "unfinished"
    assert vllm.returned.ok is False
    text = markdown(view)
    assert "**INCOMPLETE: 8 of 12 records are missing and 2 points have not ended." in text
    assert "first line of it" in text
    assert "````\nline 1\n```\n# not a heading\n\\x1b[31mred\n````" in text
    assert "1 batch gave nothing at first" in text
    assert "**slot0 was taken out of use: held (after w1).**" in text
    assert "99 EngineCore" in text
    assert "removed from /dev/shm: psm_1" in text
    assert "- vllm_fa: ran eager after 8 shapes" in text
    assert "NOT RETURNED" in text
    assert "CUDA out of memory \\| tried \\*4\\* GiB" in text


def test_every_table_of_the_report_is_well_formed(run_dir: Path) -> None:
    broken_run(run_dir)
    widths: list[int] = []
    for line in markdown(RunView.load(run_dir)).splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(line.replace("\\|", "").count("|"))
        assert widths[-1] == widths[0], line


def test_the_table_names_outcome_and_cause(run_dir: Path) -> None:
    broken_run(run_dir)
    shown = plain(table(rows(RunView.load(run_dir))))
    assert "failed (1 of 2, batches of 2 and 1)" in shown
    assert "\nhf_sdpa batch_size=2: oom: CUDA out of memory" in shown
    assert "3 ok, 3 missing" in shown
    assert "NOT RETURNED" in shown


METHOD = "a_method_with_a_long_name"
WIDE = Row(
    config=BackendConfig(method=MethodSpec(name=METHOD, engine="hf"), model_path="/models/m", batch_size=4),
    settings={"batch_size": 4, "max_new_tokens": 128, "temperature": 0.7},
    points=("p", "q"),
    outcome="failed",
    worst_count=1,
    cause="oom: " + "a long story " * 20,
    speed=metrics.Speed(output=Estimate(13141.5, 9, lambda: 0.04)),
    versus=Versus("hf_sdpa", Ratio(1.234, paired=True, find_error=lambda: LogError(0.2, 8))),
    ttft=metrics.Spread(count=9, median=Estimate(0.123, 9)),
    tpot=metrics.Spread(count=9, median=Estimate(0.0456, 9)),
    load=burden.Load(parts=dict.fromkeys(burden.PARTS) | {"total_s": 75.0}),
    memory=burden.Memory(peak=77 << 30),
    returned=burden.Returned(True, 66 << 30, 1.25),
    outputs_ok=1000,
    outputs_failed=10,
    outputs_missing=22,
)
FIGURES = {"TPOT p50": "45.6 ms", "load": "1 min 15 s", "peak": "77.0 GiB", "given back": "66.0 GiB in 1.25 s"}
ALWAYS = ("13,142 ± 1,214", "1.23 ~", "123 ms")


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("width", [*range(24, 200, 3), 300])
def test_no_width_cuts_a_figure(width: int) -> None:
    shown = plain(table([WIDE, WIDE]), width)
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())
    for figure in ALWAYS:
        assert shown.count(figure) == 2, figure
    told = [figure in shown for figure in FIGURES.values()]
    assert told == sorted(told, reverse=True), "columns go in one order"
    assert squeezed(shown).count(squeezed(WIDE.cause)) == 1


def test_a_cause_stands_once_below_the_table_with_the_rows_that_it_failed() -> None:
    other = dataclasses.replace(WIDE, settings={**WIDE.settings, "batch_size": 8}, cause="hang: no answer")
    shown = plain(table([*[WIDE] * 9, other, dataclasses.replace(WIDE, cause="")]), 2000)
    name = f"{METHOD} batch_size=4 max_new_tokens=128 temperature=0.7"
    assert f"\n{', '.join([name] * 8)} and 1 more: {WIDE.cause.rstrip()}" in shown
    assert f"\n{name.replace('=4', '=8')}: hang: no answer\n" in shown
    assert (shown.count("oom:"), shown.count("hang:")) == (1, 1)


@given(st.integers(1, 23))
def test_even_a_sliver_has_all_characters(width: int) -> None:
    shown = squeezed(plain(table([WIDE]), width))
    assert all(squeezed(figure) in shown for figure in (METHOD, *ALWAYS, *FIGURES.values()))


def test_a_narrow_terminal_goes_without_columns_in_the_order_given() -> None:
    gone: list[str] = []
    for width in range(200, 20, -1):
        shown = plain(table([WIDE]), width)
        if "─" not in shown:
            break
        lost = [name for name in DROPPED if FIGURES[name] not in shown]
        assert lost[: len(gone)] == gone
        gone = lost
    assert gone == list(DROPPED) == ["given back", "peak", "load", "TPOT p50"]


def test_of_very_many_rows_the_first_are_shown_and_the_others_told_of() -> None:
    shown = plain(table([WIDE] * SHOWN), 300)
    assert shown.count("13,142") == SHOWN
    assert "are shown" not in shown
    shown = plain(table([*[WIDE] * SHOWN, dataclasses.replace(WIDE, outcome="partial"), WIDE]), 300)
    assert shown.count("13,142") == SHOWN
    told = f"the first {SHOWN} of {SHOWN + 2} rows are shown, `report --json` has all; those that are not: "
    assert f"\n{told}1 partial, 1 failed\n" in shown
    assert "in these: 20 outputs failed, 44 outputs missing" in shown


def test_the_table_of_an_empty_run_is_a_head() -> None:
    assert "tokens/s" in plain(table([]))


def test_a_run_without_a_single_event_can_be_looked_at(run_dir: Path) -> None:
    new_run(run_dir, plan_json=msgspec.json.encode(a_plan())).close()
    view = RunView.load(run_dir)
    assert view.state == "crashed"
    assert "INCOMPLETE" in markdown(view)
    assert "unfinished" in plain(table(rows(view)))
    assert status(view)["points"] == {"total": 8, "done": 0, "failed": 0, "partial": 0, "skipped": 0, "left": 8}


def test_markup_and_escapes_of_a_cause_stay_text_in_the_table(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    journal = begin(run_dir, plan)
    evil = Cause(cls="engine_error", message="[bold]x[/] \x1b[2J :smile:")
    journal.emit(ended("failed", point=plan.points[0].id, cause=evil))
    end(journal, 1)
    shown = plain(table(rows(RunView.load(run_dir))))
    assert "[bold]x[/] \\x1b[2J :smile:" in shown


# --- completeness (a gap is never silent) -------------------------------------


def test_a_point_called_ok_whose_records_are_gone_is_incomplete(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=1)
    journal = begin(run_dir, plan)
    run_point(journal, plan.points[0], "w0", prompts=["a", "b"])
    journal.emit(ended("ok", point=plan.points[0].id))
    end(journal)
    view = RunView.load(run_dir)
    assert not view.complete
    (row,) = rows(view)
    assert (row.outcome, row.outputs_missing) == ("incomplete", 1)
    assert status(view)["points"]["partial"] == 1
    assert "INCOMPLETE" in markdown(view)


def test_a_deleted_part_stops_the_report(run_dir: Path) -> None:
    finished_run(run_dir)
    (run_dir / RECORDS_NAME).unlink()
    with pytest.raises(JournalError, match=RECORDS_NAME):
        RunView.load(run_dir)


def test_damaged_records_stop_the_report(run_dir: Path) -> None:
    finished_run(run_dir)
    data = (run_dir / RECORDS_NAME).read_bytes()
    (run_dir / RECORDS_NAME).write_bytes(data.replace(b'"generated_tokens":3', b'"generated_tokens":9', 1))
    with pytest.raises(JournalError, match="line 1"):
        markdown(RunView.load(run_dir))


def test_a_torn_tail_is_reported(run_dir: Path) -> None:
    finished_run(run_dir)
    with open(run_dir / JOURNAL_NAME, "ab") as file:
        file.write(b'{"crc":1')
    assert f"{JOURNAL_NAME}: 8 bytes from line" in markdown(RunView.load(run_dir))


@pytest.mark.parametrize(("gone", "kept"), [("plan.json", []), (JOURNAL_NAME, ["plan.json"])])
def test_not_a_run_directory(run_dir: Path, gone: str, kept: list[str]) -> None:
    finished_run(run_dir)
    for name in {JOURNAL_NAME, "plan.json"} - {*kept}:
        (run_dir / name).unlink()
    with pytest.raises(JournalError, match=rf"{gone}: No such file.*not a run directory"):
        RunView.load(run_dir)


def test_a_run_that_lost_its_plan_has_it_back_from_another_of_the_same_sweep(tmp_path: Path) -> None:
    lost, other = tmp_path / "lost", tmp_path / "other"
    finished_run(lost)
    before = markdown(RunView.load(lost))
    finished_run(other)
    (lost / "plan.json").unlink()
    with pytest.raises(JournalError, match=r"plan.json: No such file.*its records are there; put it back"):
        RunView.load(lost)
    (other / "plan.json").rename(lost / "plan.json")
    assert markdown(RunView.load(lost)) == before


def test_a_plan_of_another_version(run_dir: Path) -> None:
    finished_run(run_dir)
    (run_dir / "plan.json").write_text("{}")
    with pytest.raises(JournalError, match=r"plan.json: is not a plan of this version"):
        RunView.load(run_dir)


# --- state --------------------------------------------------------------------


def test_running_while_the_lock_is_held_by_a_live_process(run_dir: Path) -> None:
    plan = a_plan()
    journal = begin(run_dir, plan)
    launch(journal, plan.starts[0], "w0")
    run_point(journal, plan.points[0], "w0", prompts=["a"])
    found = status(RunView.load(run_dir))
    assert found["state"] == "running"
    assert found["coordinator"] == {"pid": os.getpid(), "host": os.uname().nodename}
    assert found["workers"] == [
        {
            "incarnation": "w0",
            "method": "hf_sdpa",
            "slot": "slot0",
            "state": "ready",
            "point": plan.points[0].id,
            "log": "logs/w0.log",
        }
    ]
    assert found["exit_code"] is None
    journal.close()
    found = status(RunView.load(run_dir))
    assert (found["state"], found["workers"], found["records"]) == ("crashed", [], 1)
    assert f"to go on: python -m orchestrator sweep … --resume --run-dir {run_dir}" in list(status_lines(found))


def test_how_to_go_on_can_be_pasted(tmp_path: Path) -> None:
    run_dir = tmp_path / "my runs"
    journal = new_run(run_dir, plan_json=msgspec.json.encode(a_plan()))
    values = to_builtins(started()) | {"file": "my sweep.yaml", "overrides": ["limits.load_s=5", "name=a b"]}
    journal.emit(msgspec.convert(values, RunStarted))
    end(journal, 130)
    found = status(RunView.load(run_dir))
    assert found["sweep"] == {"file": "my sweep.yaml", "overrides": ["limits.load_s=5", "name=a b"]}
    (line,) = (line for line in status_lines(found) if line.startswith("to go on: "))
    assert shlex.split(line.removeprefix("to go on: ")) == [
        *("python", "-m", "orchestrator", "sweep", "my sweep.yaml", "--set", "limits.load_s=5", "--set", "name=a b"),
        *("--resume", "--run-dir", str(run_dir)),
    ]


def test_a_secret_of_the_command_line_is_told_nowhere(tmp_path: Path) -> None:
    """Whoever resumes without any --set goes on with those of the beginning, so none is needed."""
    plan = a_plan((replace(HF, env_vars={"X_API_KEYS": "hunter2"}),))
    journal = new_run(tmp_path, plan_json=msgspec.json.encode(plan))
    given = ["limits.load_s=5", "methods=[{name: hf_sdpa, env_vars: {X_API_KEYS: hunter2}}]"]
    journal.emit(msgspec.convert(to_builtins(started()) | {"file": "s.yaml", "overrides": given}, RunStarted))
    end(journal, 130)
    view = RunView.load(tmp_path)
    found = status(view)
    assert found["sweep"]["overrides"] == ["limits.load_s=5", "methods=…"]
    (line,) = (line for line in status_lines(found) if line.startswith("to go on: "))
    assert line == f"to go on: python -m orchestrator sweep s.yaml --resume --run-dir {tmp_path}"
    told = (markdown(view), "".join(results_pieces(view)), html_of(tmp_path), str(list(events(Source.of(tmp_path)))))
    assert [text for text in told if "hunter2" in text] == []


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "finished"), (1, "finished"), (129, "interrupted"), (130, "interrupted"), (143, "interrupted")],
)
def test_how_a_run_ended(run_dir: Path, code: int, state: str) -> None:
    end(begin(run_dir, a_plan()), code)
    found = status(RunView.load(run_dir))
    assert (found["state"], found["exit_code"]) == (state, code)


def test_a_resumed_run_that_crashed_did_not_finish(run_dir: Path) -> None:
    end(begin(run_dir, a_plan()), 130, "interrupted by SIGINT")
    journal, _ = Journal.resume(run_dir)
    journal.emit(started(life=2))
    journal.emit(SurvivorsReaped(at=1.0, processes=["12 EngineCore"]))
    journal.close()
    view = RunView.load(run_dir)
    found = status(view)
    assert (found["state"], found["exit_code"], found["starts"]) == ("crashed", None, 2)
    assert found["reason"] == "its coordinator ended without a word"
    assert "12 EngineCore" in markdown(view)
    assert "; resumed once" in markdown(view)
    assert "without 1 start that ended without a word" in markdown(view)


def test_status_is_json_and_words(run_dir: Path) -> None:
    broken_run(run_dir)
    found = status(RunView.load(run_dir))
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["points"] == {"total": 4, "done": 1, "failed": 1, "partial": 0, "skipped": 0, "left": 2}
    (failure,) = again["failures"]
    assert (failure["method"], failure["settings"], failure["repeat"]) == ("hf_sdpa", {"batch_size": 2}, 1)
    assert failure["cause"]["cls"] == "oom"
    lines = list(status_lines(again))
    assert lines[0] == "demo: interrupted, exit code 130: interrupted by signal 2"
    assert "points: 1 done, 1 failed, 2 left of 4" in lines
    assert any(line.startswith("failed: hf_sdpa (repeat 2 of 2): oom: CUDA out of memory") for line in lines)


@pytest.mark.parametrize(
    ("outcome", "counted", "line"),
    [
        ("ok", "done", "points: 1 done, 0 failed, 0 left of 1"),
        ("failed", "failed", "points: 0 done, 1 failed, 0 left of 1"),
        ("partial", "partial", "points: 0 done, 0 failed, 1 partial, 0 left of 1"),
        (None, "left", "points: 0 done, 0 failed, 1 left of 1"),
    ],
)
def test_each_outcome_of_a_point_is_counted_once(
    run_dir: Path, outcome: OutcomeKind | None, counted: str, line: str
) -> None:
    plan = a_plan([HF], sizes=(1,), repeats=1)
    journal = begin(run_dir, plan)
    (point,) = plan.points
    launch(journal, plan.starts[0], "w0")
    run_point(journal, point, "w0")
    if outcome:
        journal.emit(ended(outcome, point=point.id, cause=None if outcome == "ok" else OOM))
    end(journal)
    found = status(RunView.load(run_dir))
    points = dict(found["points"])
    assert points.pop("total") == sum(points.values()) == points[counted] == 1
    assert line in list(status_lines(found))


# --- what makes a comparison unfair is told -----------------------------------


def test_unfair_things_are_told(run_dir: Path) -> None:
    plan = a_plan([HF], [1], repeats=3)
    journal = begin(run_dir, plan)
    for number, (point, tokens, digest) in enumerate(zip(plan.points, (4096, 4096, 3000), "ffg", strict=True)):
        launch(journal, plan.starts[0], f"w{number}", kv_cache_tokens=tokens, fingerprint=digest)
        run_point(journal, point, f"w{number}")
        journal.emit(ended(point=point.id))
    end(journal)
    text = markdown(RunView.load(run_dir))
    finding = "KV cache changed between its workers: hf_sdpa 3000 and 4096 tokens"
    assert text.count(finding) == 2, "once under Fairness, once where the row's mark is explained"
    assert "**hf-cpu changed while this run was under way: its figures mix 2 environments.**" in text
    assert text.count("no proof: still running, or its coordinator ended first") == 3


@pytest.mark.parametrize("reason", ["length", "unknown"])
def test_outputs_that_ended_for_no_known_reason_are_counted(run_dir: Path, reason: str) -> None:
    journal = begin(run_dir, plan := a_plan([HF]))
    launch(journal, plan.starts[0], "w0")
    point = plan.starts[0].points[0]
    one = record("a", point=point.id, finish_reason=reason)
    journal.commit(point=point.id, batch="b1", incarnation="w0", records=[one], stats=stats())
    assert ("finish_unknown × 1" in markdown(RunView.load(run_dir))) == (reason == "unknown")


@pytest.mark.parametrize("tokens", [DEGENERATE_TOKENS // 2, DEGENERATE_TOKENS, 40])
@pytest.mark.parametrize("flags", [[], [FLAG_DEGENERATE]])
def test_what_the_worker_says_of_an_output_is_not_judged_again(run_dir: Path, tokens: int, flags: list[str]) -> None:
    plan = a_plan([HF], [1], repeats=1)
    (point,) = plan.points
    journal = begin(run_dir, plan)
    one = record("a", point=point.id, token_ids=[7] * tokens, generated_tokens=tokens, flags=flags)
    journal.commit(point=point.id, batch="b1", incarnation="w0", records=[one], stats=stats())
    end(journal)
    view = RunView.load(run_dir)
    assert rows(view)[0].flags[FLAG_DEGENERATE] == len(flags)
    assert ("degenerate × 1" in markdown(view)) == bool(flags)


# --- markup -------------------------------------------------------------------


def test_cells_keep_names_readable_and_markup_dead() -> None:
    assert cell("hf_sdpa") == "hf_sdpa"
    assert cell("__init__ a|b *c* <d> [e]\n`f`") == r"\_\_init\_\_ a\|b \*c\* \<d\> \[e\] \`f\`"
    assert list(grid(["a"], [])) == []


@given(st.text(max_size=200))
def test_no_text_closes_its_fence(text: str) -> None:
    first, *body, last = fenced(text, 1000)
    assert first == last
    assert not any(line.strip() and set(line.strip()) == {"`"} and len(line.strip()) >= len(first) for line in body)


def test_a_long_log_is_cut_to_its_end() -> None:
    lines = list(fenced("\n".join(map(str, range(100))), 3))
    assert lines[1:-1] == ["… 97 lines before", "97", "98", "99"]


@pytest.mark.parametrize(
    ("amount", "held", "text"),
    [
        (3 << 30, 3 << 30, "all (3.0 GiB) in 400 ms"),
        (2 << 30, 3 << 30, "2.0 GiB of 3.0 GiB in 400 ms"),
        (None, None, "– in 400 ms"),
    ],
)
def test_what_came_back_is_told_beside_what_was_held_last(amount: int | None, held: int | None, text: str) -> None:
    row = dataclasses.replace(WIDE, returned=burden.Returned(True, amount, 0.4, held))
    assert given_back(row) == text
