"""How many answers of a row are right, beside the reference's: run directories whose figures are counted by hand."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from orchestrator.definition.judging import Answers, Normalise
from orchestrator.errors import InputError, JournalError
from orchestrator.judge.answerkeys import EXTRA
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan
from orchestrator.record.output import Record
from orchestrator.report import RunView, markdown, results, rows, table
from orchestrator.view.accuracy import SHOWN_CHARACTERS, Accuracy
from orchestrator.view.answered import legend, text, values
from orchestrator.view.answerkey import key_of
from orchestrator.view.rejudge import rejudge
from orchestrator.view.shares import difference_interval, wilson
from orchestrator.view.stats import Interval
from tests.unit.rundirs import HF, VLLM, a_plan, begin, end, ended, launch, new_run, record, release, started, stats

NUMERIC, EXACT = Answers(judge=("numeric",)), Answers(judge=("exact",))
FAILED = Cause(cls="bad_prompt", message="m")
#: Method and repeat → the outputs by prompt; None: it failed; those left out are missing.
Said = Mapping[tuple[str, int], Mapping[str, str | None]]


def a_run(run_dir: Path, answers: Answers | None, expected: Mapping[str, Any], said: Said) -> RunView:
    """Every prompt a batch of its own."""
    methods = {name for name, _ in said}
    repeats = 1 + max(repeat for _, repeat in said)
    specs = [spec for spec in (HF, VLLM) if spec.name in methods]
    plan = replace(a_plan(specs, [1], repeats), prompt_ids=tuple(expected), answers=answers)
    lines = [
        {
            "id": name,
            "token_ids": [1],
            "digest": "d",
            "source": {"prompt": name} | ({} if one is None else {"expected": one}),
        }
        for name, one in expected.items()
    ]
    journal = new_run(run_dir, plan_json=msgspec.json.encode(plan), prompts=lines)
    journal.emit(started(points=len(plan.points)))
    for number, start in enumerate(plan.starts):
        launch(journal, start, f"w{number}")
        for point in start.points:
            for name, output in said.get((point.method, point.repeat), {}).items():
                one = outcome(name, output, point.id, point.method, point.repeat, f"w{number}")
                journal.commit(
                    point=point.id, batch=one.batch, incarnation=one.incarnation, records=[one], stats=stats()
                )
            journal.emit(ended(point=point.id))
        release(journal, f"w{number}")
    end(journal)
    return RunView.load(run_dir)


def outcome(name: str, output: str | None, point: str, method: str, repeat: int, worker: str) -> Record:
    """An output that ends with … was cut."""
    more: dict[str, Any] = {"error": FAILED, "finish_reason": "error", "text": ""} if output is None else {}
    if output is not None:
        more = {"text": output, "finish_reason": "length" if output.endswith("…") else "stop"}
    return record(name, point=point, batch=f"{point}-{name}", method=method, repeat=repeat, incarnation=worker, **more)


def accuracies(view: RunView) -> dict[str, Accuracy]:
    """By method."""
    return {row.method: row.accuracy for row in rows(view) if row.accuracy}


def alone(run_dir: Path, answers: Answers, expected: Mapping[str, Any], said: Mapping[str, str | None]) -> Accuracy:
    return accuracies(a_run(run_dir, answers, expected, {("hf_sdpa", 0): said}))["hf_sdpa"]


# --- counts -----------------------------------------------------------------------


def test_a_run_that_judges_nothing_has_no_accuracy(run_dir: Path) -> None:
    view = a_run(run_dir, None, {"a": 1}, {("hf_sdpa", 0): {"a": "1"}})
    assert [row.accuracy for row in rows(view)] == [None]
    assert results(view)["rows"][0]["accuracy"] is None
    assert "## Answers" not in markdown(view)
    assert "accuracy" not in [name for name, _ in table(rows(view)).columns]


def test_the_share_of_right_answers(run_dir: Path) -> None:
    expected = {"a": 1, "b": [2, "3"], "c": "4", "d": None}
    found = alone(run_dir, NUMERIC, expected, {"a": "it is 1", "b": "3", "c": "5", "d": "6"})
    assert (found.correct, found.judged, found.prompts, found.unjudged) == (2, 3, 3, 1)
    assert found.value == pytest.approx(2 / 3)
    assert found.interval == wilson(2 / 3, 3, 0.95)
    assert text(found) == "66.7 % (20.8 to 93.9)"


def test_failed_is_wrong_and_missing_is_not_judged(run_dir: Path) -> None:
    expected = {"a": 1, "b": 2, "c": 3, "d": 4}
    found = alone(run_dir, NUMERIC, expected, {"a": "1", "b": None, "c": "3, or so…"})
    assert (found.correct, found.judged, found.failed, found.missing, found.cut) == (2, 3, 1, 1, 1)
    assert found.value == pytest.approx(2 / 3)
    assert found.wrong == ()


def test_a_prompt_that_failed_is_wrong_even_if_nothing_is_expected_to_be_said(run_dir: Path) -> None:
    assert alone(run_dir, EXACT, {"a": "", "b": ""}, {"a": None, "b": "."}).value == 0.5


def test_of_bleu_a_failed_prompt_is_an_output_without_words(run_dir: Path) -> None:
    pytest.importorskip("sacrebleu")
    words = "the cat sat on the mat"
    found = alone(run_dir, Answers(judge=("bleu",)), {"a": words, "b": words}, {"a": words, "b": None})
    assert found.value == pytest.approx(2.718281828 ** (1 - 12 / 6), rel=1e-6)


def test_repeats_of_a_prompt_are_one_prompt(run_dir: Path) -> None:
    expected = {"a": 1, "b": 2}
    said: Said = {("hf_sdpa", n): {"a": "1", "b": "2" if n else "0"} for n in range(4)}
    found = accuracies(a_run(run_dir, NUMERIC, expected, said))["hf_sdpa"]
    assert (found.correct, found.judged, found.prompts, found.value) == (7, 8, 2, 0.875)
    assert found.interval == wilson(0.875, min(8, 2 * 0.875 * 0.125 / 0.125**2), 0.95)


def test_scores_have_a_mean_and_no_right_or_wrong(run_dir: Path) -> None:
    expected = {"a": "the cat sat", "b": "the cat sat", "c": "the cat sat"}
    said = {"a": "the cat sat", "b": "the cat", "c": "dog"}
    found = alone(run_dir, Answers(judge=("rouge_l",)), expected, said)
    assert found.value == pytest.approx(0.6)
    assert (found.correct, found.kind) == (None, "mean")
    assert text(found).startswith("0.600 (0.000 to 1.000)")
    assert [one.prompt_id for one in found.wrong] == ["c", "b"]


def test_scores_of_two_prompts_or_all_alike_have_no_interval(tmp_path: Path) -> None:
    rouge = Answers(judge=("rouge_l",))
    two = alone(tmp_path / "two", rouge, {"a": "x", "b": "y"}, {"a": "x", "b": "z"})
    assert (two.interval, two.reason) == (None, "fewer than 3 prompts")
    same = alone(tmp_path / "same", rouge, dict.fromkeys("abc", "x"), dict.fromkeys("abc", "y"))
    assert (same.value, same.interval, same.reason) == (0, None, "all prompts have the same score")


def test_a_threshold_makes_a_share_of_scores(run_dir: Path) -> None:
    answers = Answers(judge=("rouge_l",), threshold=0.7)
    found = alone(run_dir, answers, {"a": "the cat sat", "b": "the cat sat"}, {"a": "the cat", "b": "the"})
    assert (found.kind, found.correct, found.value) == ("share", 1, 0.5)


def test_every_judge_is_told_and_the_first_is_the_rows(run_dir: Path) -> None:
    answers = Answers(judge=("contains", "exact"))
    view = a_run(run_dir, answers, {"a": "Paris"}, {("hf_sdpa", 0): {"a": "It is Paris"}})
    row = rows(view)[0]
    assert [(one.judge, one.value) for one in row.answers] == [("contains", 1.0), ("exact", 0.0)]
    told = results(view)["rows"][0]
    assert (told["accuracy"]["judge"], [one["judge"] for one in told["other_judges"]]) == ("contains", ["exact"])


# --- beside the reference -------------------------------------------------------------

TEN = {f"p{n}": n for n in range(20)}


def right(numbers: Sequence[int]) -> dict[str, str | None]:
    return {name: str(n if n in numbers else 99) for name, n in TEN.items()}


def pair(run_dir: Path, ours: Mapping[str, str | None], theirs: Mapping[str, str | None]) -> dict[str, Accuracy]:
    return accuracies(a_run(run_dir, NUMERIC, TEN, {("hf_sdpa", 0): theirs, ("vllm_fa", 0): ours}))


def test_a_method_that_is_surely_worse(run_dir: Path) -> None:
    found = pair(run_dir, right(range(8)), right(range(18)))["vllm_fa"].versus
    assert found is not None
    assert (found.reference, found.prompts, found.better, found.worse) == ("hf_sdpa", 20, 0, 10)
    assert found.value == pytest.approx(-0.5)
    assert found.p == pytest.approx(2 / 2**10)
    assert found.interval == difference_interval([0.0] * 10 + [-1.0] * 10, 0.95)
    assert found.distinguishable is True


def test_a_method_that_is_not_distinguishable_is_called_so(run_dir: Path) -> None:
    view = a_run(run_dir, NUMERIC, TEN, {("hf_sdpa", 0): right(range(18)), ("vllm_fa", 0): right(range(16))})
    found = accuracies(view)["vllm_fa"]
    assert found.versus is not None
    assert (found.versus.worse, found.versus.p, found.versus.distinguishable) == (2, 0.5, False)
    assert text(found) == "80.0 % (58.4 to 91.9) ~"
    assert "not distinguishable" in markdown(view)
    assert any("~ not distinguishable from that of hf_sdpa" in line for line in legend(rows(view)))


def test_the_reference_is_held_against_nothing(run_dir: Path) -> None:
    found = pair(run_dir, right(range(8)), right(range(8)))["hf_sdpa"].versus
    assert found is not None
    assert (found.value, found.distinguishable, found.reason) == (None, None, "it is the reference")


def test_only_prompts_that_both_have_are_compared(run_dir: Path) -> None:
    ours = {name: output for name, output in right(range(20)).items() if name != "p0"}
    found = pair(run_dir, ours, right(range(1)))["vllm_fa"].versus
    assert found is not None
    assert (found.prompts, found.better) == (19, 19)


def test_without_answers_of_the_reference_there_is_no_difference(run_dir: Path) -> None:
    found = pair(run_dir, right(range(8)), {})["vllm_fa"].versus
    assert found is not None
    assert (found.value, found.reason) == (None, "there is no prompt that both have an answer to")


@pytest.mark.parametrize("judge", ["rouge_l", "bleu"])
def test_scores_beside_the_reference(run_dir: Path, judge: Any) -> None:
    if judge == "bleu":
        pytest.importorskip("sacrebleu")
    words = "the cat sat on the mat with a hat"
    expected = {f"p{n}": f"{words} number {n}" for n in range(12)}
    theirs = {name: one if n % 4 else f"{one} or so" for n, (name, one) in enumerate(expected.items())}
    ours = {name: f"the cat sat there {n}" for n, name in enumerate(expected)}
    view = a_run(run_dir, Answers(judge=(judge,)), expected, {("hf_sdpa", 0): theirs, ("vllm_fa", 0): ours})
    found = accuracies(view)
    beside = found["vllm_fa"].versus
    assert beside is not None
    assert beside.interval is not None
    assert beside.value is not None
    assert beside.value == pytest.approx((found["vllm_fa"].value or 0) - (found["hf_sdpa"].value or 0))
    assert beside.interval.low <= beside.value <= beside.interval.high < 0
    assert beside.distinguishable is True
    said = {("hf_sdpa", 0): theirs, ("vllm_fa", 0): theirs}
    same = a_run(run_dir.with_name("same"), view.plan.answers, expected, said)
    assert (versus := accuracies(same)["vllm_fa"].versus) is not None
    assert (versus.distinguishable, versus.interval) == (False, None)


# --- what is shown -----------------------------------------------------------------


def test_wrong_answers_are_shown_with_what_was_expected(run_dir: Path) -> None:
    view = a_run(run_dir, NUMERIC, {"a|b": 72, "c": 1}, {("hf_sdpa", 0): {"a|b": "so 71 | in all…", "c": "none"}})
    told = markdown(view).partition("Wrong answers")[2]
    assert r"hf_sdpa batch_size=1, numeric, prompt a\|b: expected '72', answered '71', cut at max_new_tokens" in told
    assert "prompt c: expected '1', there is no number in the output, output 'none'" in told


def test_what_is_kept_of_outputs_is_bounded_and_each_prompt_stands_once(run_dir: Path) -> None:
    said: Said = {("hf_sdpa", n): dict.fromkeys("abcde", "x" * 5000) for n in range(2)}
    found = accuracies(a_run(run_dir, EXACT, dict.fromkeys("abcde", "y" * 999), said))["hf_sdpa"]
    assert [one.prompt_id for one in found.wrong] == ["a", "b", "c"]
    assert all(
        len(part) <= SHOWN_CHARACTERS for one in found.wrong for part in (one.output, one.expected, one.answer or "")
    )


def test_hostile_outputs_stay_in_their_cell(run_dir: Path) -> None:
    output = "a | b\n## Title\x1b[31m <script>alert(1)</script> `x`"
    view = a_run(run_dir, EXACT, {"a": "|\n# no"}, {("hf_sdpa", 0): {"a": output}})
    told = markdown(view).partition("\n## Answers\n")[2].partition("\n## ")[0]
    assert "\x1b" not in told
    assert "<script>" not in told
    assert "\n# no" not in told
    assert all(line.startswith(("|", "-", "")) for line in told.splitlines())
    assert "## Title" not in [line.strip() for line in told.splitlines()]


def test_the_json_is_plain_and_has_names_for_all(run_dir: Path) -> None:
    told = values(pair(run_dir, right(range(8)), right(range(18)))["vllm_fa"])
    assert json.loads(json.dumps(told)) == told
    assert told is not None
    assert set(told) == {
        *("judge", "kind", "value", "low", "high", "judged", "prompts", "correct", "failed", "truncated"),
        *("missing", "unjudged", "wrong", "reason", "versus_reference"),
    }
    assert told["versus_reference"]["verdict"] == "worse"


def test_an_accuracy_survives_the_spool(run_dir: Path) -> None:
    found = pair(run_dir, right(range(8)), right(range(18)))["vllm_fa"]
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_table_has_the_column_and_says_what_was_cut(run_dir: Path) -> None:
    view = a_run(run_dir, NUMERIC, {"a": 1, "b": 2, "c": None}, {("hf_sdpa", 0): {"a": "1…", "b": None, "c": "3"}})
    found = table(rows(view))
    assert dict(found.columns)["accuracy"] == ("50.0 % (9.5 to 90.5)",)
    assert [*legend(found.rows)] == [
        "accuracy: right answers by numeric, with the 95 % interval",
        "accuracy: 2 of 3 outputs judged, 1 of them cut at max_new_tokens, 1 of them failed, so wrong; "
        "1 with nothing to be judged by",
    ]
    assert "| accuracy |" in markdown(view)


def test_what_is_missing_is_set_against_what_can_be_judged(run_dir: Path) -> None:
    view = a_run(run_dir, NUMERIC, {"a": 1, "b": 2, "c": None}, {("hf_sdpa", 0): {"a": "1", "c": "3"}})
    found = "accuracy: 1 of 2 outputs that can be judged; 1 missing; 1 more with nothing to be judged by"
    assert found in [*legend(rows(view))]


def test_the_legend_names_the_rows_of_which_nothing_is_known(run_dir: Path) -> None:
    view = a_run(run_dir, NUMERIC, {"a": None, "b": None}, {("hf_sdpa", 0): {"a": "1", "b": "2"}})
    found = [*legend(rows(view))]
    assert "accuracy: 0 of 2 outputs judged; 2 with nothing to be judged by" in found
    assert any(line.startswith("accuracy: not known of hf_sdpa") for line in found)


def test_an_interval_of_a_value_that_is_not_there_is_not_shown() -> None:
    assert text(None) == text(Accuracy("exact", "share")) == "–"
    assert text(Accuracy("bleu", "corpus", 0.273, Interval(0.251, 0.296))) == "27.3 (25.1 to 29.6)"


# --- judged again, and elsewhere -------------------------------------------------------


def test_a_run_can_be_judged_by_other_rules(run_dir: Path, tmp_path: Path) -> None:
    view = a_run(run_dir, None, {"a": "Paris", "b": "Rome"}, {("hf_sdpa", 0): {"a": "It is Paris", "b": "rome"}})
    file = tmp_path / "answers.yaml"
    for judge, value in (("exact", 0.5), ("contains", 1.0)):
        file.write_text(f"answers: {{judge: {judge}}}\n")
        rejudge(view, file)
        assert accuracies(view)["hf_sdpa"].value == value


def test_what_can_not_be_judged_by_other_rules_is_counted(run_dir: Path, tmp_path: Path) -> None:
    view = a_run(run_dir, EXACT, {"a": "Paris", "b": 2}, {("hf_sdpa", 0): {"a": "Paris", "b": "2"}})
    (tmp_path / "answers.yaml").write_text("answers: {judge: numeric}\n")
    rejudge(view, tmp_path / "answers.yaml")
    found = accuracies(view)["hf_sdpa"]
    assert (found.correct, found.judged, found.unjudged, found.missing) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("name: a\n", "answers: is missing"),
        ("answers: {judge: exakt}\n", "did you mean exact?"),
        ("answers: {judge: [\n", "not valid YAML"),
        ("", "answers: is missing"),
        ("answers: {judge: regex, pattern: '('}\n", "answers.pattern: is no pattern"),
    ],
)
def test_other_rules_that_are_none(run_dir: Path, tmp_path: Path, written: str, told: str) -> None:
    if "regex" in written:
        pytest.importorskip("re2", reason="the extra `answers` is not installed")
    view = a_run(run_dir, EXACT, {"a": 1}, {("hf_sdpa", 0): {"a": "1"}})
    (tmp_path / "answers.yaml").write_text(written)
    with pytest.raises(InputError) as caught:
        rejudge(view, tmp_path / "answers.yaml")
    assert told in str(caught.value)


def test_a_file_of_rules_that_can_not_be_read(run_dir: Path, tmp_path: Path) -> None:
    view = a_run(run_dir, EXACT, {"a": 1}, {("hf_sdpa", 0): {"a": "1"}})
    (tmp_path / "latin").write_bytes(b"answers: \xe4")
    for name in ("latin", "nowhere"):
        with pytest.raises(InputError, match="can't be read"):
            rejudge(view, tmp_path / name)


def test_each_record_can_be_judged_alone(run_dir: Path) -> None:
    view = a_run(run_dir, NUMERIC, {"a": 1, "b": 2, "c": None}, {("hf_sdpa", 0): {"a": "1", "b": None, "c": "3"}})
    key = key_of(view)
    assert key is not None
    verdicts = {one.prompt_id: key.verdict(one) for one in view.records_of(view.points)}
    assert {name: one and (one.score, one.answer) for name, one in verdicts.items()} == {
        "a": (1.0, "1"),
        "b": (0.0, None),
        "c": None,
    }


@pytest.mark.parametrize(("judge", "package"), [("bleu", "sacrebleu"), ("regex", "re2"), ("rouge_l", "rapidfuzz")])
def test_without_the_package_of_a_judge_the_others_judge_all_the_same(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, judge: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    answers = Answers(judge=(judge, "exact"), pattern="[a-z]" if judge == "regex" else None)
    view = a_run(run_dir, answers, {"a": "x"}, {("hf_sdpa", 0): {"a": "x"}})
    first, second = rows(view)[0].answers
    assert (first.value, first.reason) == (None, f"the package {package} is missing here: {EXTRA}")
    assert second.value == 1
    assert f"not known: the package {package} is missing here" in markdown(view)


def test_prompts_that_are_damaged_or_gone_are_named(run_dir: Path) -> None:
    view = a_run(run_dir, EXACT, {"a": 1}, {("hf_sdpa", 0): {"a": "1"}})
    (run_dir / "prompts.jsonl").write_text('{"id": "a", "source": {}}\n{"id"\n')
    with pytest.raises(JournalError, match=r"prompts\.jsonl: line 2 is damaged"):
        rows(view)
    (run_dir / "prompts.jsonl").unlink()
    with pytest.raises(JournalError, match=r"prompts\.jsonl: No such file"):
        rows(view)


def test_a_plan_of_an_earlier_version_judges_nothing(run_dir: Path) -> None:
    plan: Plan = a_plan()
    old = json.loads(msgspec.json.encode(plan))
    del old["answers"]
    journal = new_run(run_dir, plan_json=json.dumps(old).encode())
    end(journal)
    assert RunView.load(run_dir).plan.answers is None


def test_rules_come_back_from_the_plan_as_they_were(run_dir: Path) -> None:
    answers = Answers(judge=("regex", "exact"), pattern="a", normalise=Normalise(case="keep"), choices=("x", "y"))
    begin(run_dir, replace(a_plan(), answers=answers)).close()
    assert RunView.load(run_dir).plan.answers == answers


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"
