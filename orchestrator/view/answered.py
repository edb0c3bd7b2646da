"""How many answers are right, as a cell of a table, as Markdown and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import to_builtins

from orchestrator.definition.judging import Answers
from orchestrator.plan import Plan
from orchestrator.view.accuracy import Accuracy, Difference, Wrong
from orchestrator.view.compare import IS_REFERENCE
from orchestrator.view.markup import cell, grid
from orchestrator.view.scores import MEASURES, number_text, value_text
from orchestrator.view.stats import Interval
from orchestrator.view.summary import Row
from orchestrator.view.wording import (
    UNKNOWN,
    clean,
    count_text,
    counted,
    listed,
    or_unknown,
    percent_text,
    setting_text,
    settings_text,
)

NAME: Final = "accuracy"
#: Behind a value that can't be told from the reference's.
TIE: Final = "~"
#: Rows that are named, of those of which it is not known.
_NAMED: Final = 4
#: Wrong answers that are shown in all.
LISTED: Final = 30
WHAT: Final = """\
Right: outputs whose answer is one of those expected. Accuracy: the mean over prompts, each the mean over its repeats;
of rouge_l and bleu without a threshold the score. Judged: outputs; one whose prompt failed is among them and wrong, one
that is missing is not. Cut: ended at max_new_tokens, and judged like any other. Interval: Wilson's, over prompts; of
scores Student's t, of BLEU the bootstrap's. Vs reference: the difference at the prompts that both have; better, worse:
at how many of them; p: McNemar's exact test. No interval is corrected for the number of rows. Sources, and what each
judge does: docs/answers.md."""
_HEAD: Final = ("judge", NAME, "interval", "right", "judged", "prompts", "failed", "cut", "missing", "nothing expected")
_VERSUS_HEAD: Final = ("vs reference", "interval", "better", "worse", "p", "verdict")


def text(found: Accuracy | None) -> str:
    """ "71.0 % (61.4 to 79.0)", of scores "0.412 (0.380 to 0.440)", BLEU "27.3 (25.1 to 29.6)" """
    if found is None or found.value is None:
        return UNKNOWN
    tie = f" {TIE}" if found.versus and found.versus.distinguishable is False else ""
    reach = f" ({_reach(found, found.interval)})" if found.interval else ""
    return f"{_value(found)}{reach}{tie}"


def _value(found: Accuracy) -> str:
    return UNKNOWN if found.value is None else value_text(found.kind, found.value)


def _reach(found: Accuracy, interval: Interval, sign: str = "") -> str:
    return " to ".join(number_text(found.kind, end, sign) for end in (interval.low, interval.high))


def verdict(found: Difference) -> str:
    """Beside the reference, in words."""
    if found.reason == IS_REFERENCE:
        return "reference"
    if found.distinguishable is None or found.value is None:
        return f"can't tell: {found.reason}"
    return ("better" if found.value > 0 else "worse") if found.distinguishable else "not distinguishable"


def legend(rows: Sequence[Row]) -> Iterator[str]:
    """What the column is of, and what in it is not as it seems."""
    found = [row.accuracy for row in rows if row.accuracy]
    if not found:
        return
    level, ties = percent_text(rows[0].confidence), any(text(one).endswith(TIE) for one in found)
    reference = next((one.versus.reference for one in found if one.versus), "")
    tie = f"; {TIE} not distinguishable from that of {clean(reference)}" if ties else ""
    yield f"{NAME}: {MEASURES[found[0].kind]} by {found[0].judge}, with the {level} interval{tie}"
    if told := _counts(found):
        yield f"{NAME}: {told}"
    unknown: dict[str, list[str]] = {}
    for row in rows:
        if row.accuracy and row.accuracy.value is None:
            unknown.setdefault(row.accuracy.reason, []).append(_label(row))
    for reason, labels in unknown.items():
        yield f"{NAME}: not known of {listed(labels, _NAMED)}: {clean(reason)}"


def _counts(found: Sequence[Accuracy]) -> str:
    """ "24 of 48 outputs judged, 2 of them cut at max_new_tokens; 24 with nothing to be judged by", "6 of 24 outputs
    that can be judged; 18 missing"; "" where all were judged and none is odd."""
    judged, cut, failed, missing, unjudged = (
        sum(getattr(one, name) for one in found) for name in ("judged", "cut", "failed", "missing", "unjudged")
    )
    among = [
        f"{count_text(cut)} of them cut at max_new_tokens" if cut else "",
        f"{count_text(failed)} of them failed, so wrong" if failed else "",
    ]
    # Those with nothing to be judged by are counted where they are there: no total of a run that lacks some.
    beside = [
        f"{count_text(missing)} missing" if missing else "",
        f"{count_text(unjudged)} {'more ' if missing else ''}with nothing to be judged by" if unjudged else "",
    ]
    if not any((*among, *beside)):
        return ""
    total = counted(judged + missing + (0 if missing else unjudged), "output")
    first = f"{count_text(judged)} of {total} {'that can be ' if missing else ''}judged"
    return "; ".join(filter(None, (", ".join(filter(None, (first, *among))), *beside)))


# --- Markdown ---------------------------------------------------------------------


def markdown(plan: Plan, found: Sequence[Row]) -> Iterator[str]:
    """The section of the report; nothing where the run judges nothing."""
    if plan.answers is None:
        return
    yield f"Judged by {cell(rules(plan.answers))}."
    yield ""
    names = ["method", *(found[0].settings if found else ())]
    lines = [(row, one) for row in found for one in row.answers]
    yield from grid(
        [*names, *_HEAD, *_VERSUS_HEAD], [[*_named(row), *_cells(one), *_beside(one)] for row, one in lines]
    )
    yield ""
    yield WHAT
    wrong = [(row, row.accuracy, each) for row in found if row.accuracy for each in row.accuracy.wrong]
    if wrong:
        yield ""
        yield "Wrong answers, or the lowest scores, some of each row by the first judge:"
        yield ""
        yield from (f"- {cell(_wrong_text(row, one, each))}" for row, one, each in wrong[:LISTED])
        if more := wrong[LISTED:]:
            yield f"- and {count_text(len(more))} more: `report --json` has them"


def rules(answers: Answers) -> str:
    """ "exact, numeric; tolerance 0.01; case fold, spaces collapse, punctuation drop" """
    heeded = {
        "numeric": f"tolerance {answers.tolerance:g}",
        "choice": f"choices {', '.join(answers.choices)}",
        "regex": f"pattern {answers.pattern}",
    }
    plain: dict[str, str] = to_builtins(answers.normalise)
    return "; ".join(
        [
            ", ".join(answers.judge),
            *(told for name, told in heeded.items() if name in answers.judge),
            *([] if answers.threshold is None else [f"threshold {answers.threshold:g}"]),
            ", ".join(f"{name} {value}" for name, value in plain.items()),
        ]
    )


def _named(row: Row) -> list[str]:
    return [row.shown_method, *(setting_text(value) for value in row.settings.values())]


def _label(row: Row) -> str:
    return f"{clean(row.method)} {settings_text(row.settings)}".rstrip()


def _cells(one: Accuracy) -> list[object]:
    interval = or_unknown(one.interval, lambda found: _reach(one, found))
    counts = [one.judged, one.prompts, one.failed, one.cut, one.missing, one.unjudged]
    return [one.judge, _value(one), interval, or_unknown(one.correct, count_text), *counts]


def _beside(one: Accuracy) -> list[object]:
    versus = one.versus
    if one.value is None:
        return [*[UNKNOWN] * 5, f"not known: {one.reason}"]
    if versus is None or versus.value is None:
        return [*[UNKNOWN] * 5, verdict(versus) if versus else UNKNOWN]
    interval = or_unknown(versus.interval, lambda found: _reach(one, found, "+"))
    p = or_unknown(versus.p, lambda p: f"{p:.2g}")
    return [number_text(one.kind, versus.value, "+"), interval, versus.better, versus.worse, p, verdict(versus)]


def _wrong_text(row: Row, one: Accuracy, each: Wrong) -> str:
    """ "hf_sdpa batch_size=4, numeric, prompt q7: expected 72, answered 71, in …" """
    score = "" if one.kind == "share" else f" scores {each.score:.3f}"
    answered = each.why if each.answer is None else "" if each.answer == each.output else f"answered {each.answer!r}"
    cut = "cut at max_new_tokens" if each.cut else ""
    parts = (f"expected {each.expected!r}", answered, cut, f"output {each.output!r}")
    return f"{_label(row)}, {one.judge}, prompt {each.prompt_id}{score}: {', '.join(part for part in parts if part)}"


# --- JSON -------------------------------------------------------------------------


def values(found: Accuracy | None) -> dict[str, Any] | None:
    """Plain values, from 0 to 1; of the reference itself and where there is no difference its values are null."""
    if found is None:
        return None
    interval, versus = found.interval, found.versus
    plain: dict[str, Any] = to_builtins(found)
    for name in ("interval", "versus", "cut"):
        del plain[name]
    return {
        **plain,
        "wrong": list(plain["wrong"]),
        "truncated": found.cut,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "versus_reference": None if versus is None else _versus_values(versus),
    }


def reasons(row: Row) -> dict[str, str]:
    """Why `accuracy` is null, if it is."""
    none = "nothing is generated" if row.scores else "the run judges no answers (answers: of the sweep file)"
    return {} if row.accuracy else {"accuracy": none}


def _versus_values(versus: Difference) -> dict[str, Any]:
    plain: dict[str, Any] = to_builtins(versus)
    del plain["interval"]
    low, high = (versus.interval.low, versus.interval.high) if versus.interval else (None, None)
    return {**plain, "low": low, "high": high, "verdict": verdict(versus)}
