"""How the methods' outputs agree, as Markdown, as lines for a terminal and as JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from orchestrator.errors import InputError, Problem
from orchestrator.judge.agreement import Agreement, Agreements
from orchestrator.judge.consistency import Consistency
from orchestrator.judge.distance import Distance
from orchestrator.plan import SweepPoint
from orchestrator.view import judged as reading
from orchestrator.view.markup import cell, grid
from orchestrator.view.runview import RunView
from orchestrator.view.summary import settings_of, varying
from orchestrator.view.wording import UNKNOWN, clean, count_text, counted, or_unknown, setting_text, settings_text

#: Of the outputs of one row that differ; `agree` lists all.
LISTED = 3
WHAT = """\
Same: outputs with exactly the reference's token ids (scores: within 0.001 nats). Prefix: tokens before the first
difference / tokens of the longer output, the mean. Gap: by how many nats the reference prefers its own token where
they first differ, the largest. KL: of the likeliest tokens' distributions, a lower bound, mean and largest. All of
it, and what each verdict means: docs/fairness.md."""


def judged(view: RunView, against: RunView | None = None) -> Agreements:
    """`against`: another run whose reference is taken. Raises InputError if it shares no prompt with this one."""
    if against is None:
        return view.agreements
    if not set(view.plan.prompt_ids) & set(against.plan.prompt_ids):
        message = f"it shares no prompt id with {view.run_dir}"
        raise InputError([Problem(str(against.run_dir), "", message)])
    return reading.judged(view, against=against)


def markdown(view: RunView) -> Iterator[str]:
    """The section of the report; nothing where there is only one method and no second output of it."""
    found = view.agreements
    names = varying(view.plan)
    rows = [row for row in found.rows if row.outputs or row.failed or row.verdict not in ("reference", "unknown")]
    if rows:
        yield f"Reference: {cell(found.reference)}."
        yield ""
        head = [
            "method",
            *names,
            "against",
            "outputs",
            "same",
            "first difference",
            "prefix",
            "gap",
            "KL mean",
            "KL max",
        ]
        yield from grid([*head, "perplexity", "verdict"], [_cells(view, row, names) for row in rows])
        yield ""
        yield WHAT
        for row in rows:
            if row.differences or row.why or row.base_repeat:
                yield from (f"- {cell(line)}" for line in _row_lines(label(view, row, names), row, LISTED))
    for line in consistency_lines(found.consistency):
        yield f"- {cell(line)}"


def _cells(view: RunView, row: Agreement, names: Iterable[str]) -> list[object]:
    settings = settings_of(view.points[row.points[0]], names).values()
    return [
        row.method,
        *map(setting_text, settings),
        _against(view, row, names),
        row.outputs,
        f"{count_text(row.same)} of {count_text(row.outputs)}" if row.outputs else UNKNOWN,
        or_unknown(row.first, lambda at: f"after {counted(at, 'token')}"),
        or_unknown(row.prefix, lambda share: f"{share:.1%}"),
        or_unknown(row.gap_max, lambda gap: f"{gap:.3g}"),
        or_unknown(row.kl_mean, lambda kl: f"{kl:.2g}"),
        or_unknown(row.kl_max, lambda kl: f"{kl:.2g}"),
        perplexity_text(row),
        row.verdict,
    ]


def _against(view: RunView, row: Agreement, names: Iterable[str]) -> str:
    """ "its own repeat 1", "hf_sdpa batch_size=1, repeat 1" """
    if row.base is None or row.base_repeat is None:
        return UNKNOWN
    repeat = f"repeat {row.base_repeat + 1}"
    base = view.points[row.base]
    return f"its own {repeat}" if row.own else f"{_named(base, names)}, {repeat}"


def perplexity_text(row: Agreement) -> str:
    if row.perplexity is None:
        return UNKNOWN
    ratio = "" if row.perplexity_ratio is None else f" (× {row.perplexity_ratio:.4g})"
    return f"{row.perplexity:.4g}{ratio}"


def label(view: RunView, row: Agreement, names: Iterable[str]) -> str:
    """ "hf_sdpa batch_size=4"; `names`: of the settings that vary."""
    return _named(view.points[row.points[0]], names)


def _named(point: SweepPoint, names: Iterable[str]) -> str:
    return f"{clean(point.method)} {settings_text(settings_of(point, names))}".rstrip()


def _row_lines(named: str, row: Agreement, most: int) -> Iterator[str]:
    yield _head(named, row)
    yield from (f"{named}: {line}" for line in _stand_in(row))
    yield from (f"{named}: {difference_text(one)}" for one in row.differences[:most])
    if len(row.differences) > most:
        yield f"{named}: and {counted(len(row.differences) - most, 'more output')}"


def _stand_in(row: Agreement) -> Iterator[str]:
    if row.base_repeat:
        yield f"held against repeat {row.base_repeat + 1} of the reference, as those before it have fewer outputs"


def _head(named: str, row: Agreement) -> str:
    return f"{named}: {row.verdict}" + (f": {row.why}" if row.why else "")


def difference_text(one: Distance) -> str:
    """ "prompt sum, after 7 tokens: 3575, not 504; gap 0.12 nats" """
    where = f"prompt {clean(one.prompt_id)}, after {counted(one.at or 0, 'token')}"
    match one.kind:
        case "other prompt":
            return f"prompt {clean(one.prompt_id)}: was given other token ids"
        case "cut short":
            return f"{where}: ends without an end-of-sequence token, where the reference goes on"
        case "runs on":
            return f"{where}: goes on, where the reference's last token is"
        case "scored":
            return f"{where}: log-probabilities differ by {or_unknown(one.delta_max, lambda d: f'{d:.3g} nats')}"
        case "ends earlier":
            return f"{where}: ends with {one.token}, not on with {one.reference_token}{_gap_text(one)}"
        case "ends later":
            return f"{where}: goes on with {one.token}, not ends with {one.reference_token}{_gap_text(one)}"
        case _:
            return f"{where}: {one.token}, not {one.reference_token}{_gap_text(one)}"


def _gap_text(one: Distance) -> str:
    if one.gap is None:
        return "; gap not known"
    return f"; gap {'at least ' if one.gap_is_bound else ''}{one.gap:.3g} nats"


def consistency_lines(found: Iterable[Consistency]) -> Iterator[str]:
    for one in found:
        dtype = "" if one.dtype == "auto" else f" in {one.dtype}"
        yield (
            f"{clean(one.method)}{dtype} against itself over {one.over}: "
            f"{count_text(one.same)} of {counted(one.outputs, 'output')} of {counted(one.prompts, 'prompt')} "
            "came out the same"
        )


# --- the verb `agree` ---------------------------------------------------------------


def lines(view: RunView, found: Agreements) -> Iterator[str]:
    """Every difference, with how the two texts go on."""
    names = varying(view.plan)
    yield f"reference: {clean(found.reference or UNKNOWN)}"
    for row in found.rows:
        yield ""
        yield _head(label(view, row, names), row)
        yield from (f"  {line}" for line in _figures(row))
        for one in row.differences:
            yield f"  {difference_text(one)}"
            if one.text or one.reference_text:
                yield f"    {clean(one.text)!r}"
                yield f"    {clean(one.reference_text)!r} (reference)"
    if found.consistency:
        yield ""
    yield from consistency_lines(found.consistency)


def _figures(row: Agreement) -> Iterator[str]:
    yield from _stand_in(row)
    if row.outputs:
        beside = f" as in its own repeat {row.base_repeat + 1}" if row.own and row.base_repeat is not None else ""
        prefix = "" if row.prefix is None else f", {row.prefix:.1%} of their tokens before a difference"
        yield f"{count_text(row.same)} of {counted(row.outputs, 'output')} the same{beside}{prefix}"
    if row.failed:
        yield f"{counted(row.failed, 'prompt')} could not be compared"
    if row.kl_mean is not None and row.kl_max is not None:
        yield f"KL {row.kl_mean:.2g} nats a token, {row.kl_max:.2g} at most"
    if row.delta_max is not None:
        yield f"log-probabilities of the same tokens differ by {row.delta_max:.2g} nats at most"
    if row.perplexity is not None and row.reference_perplexity is not None:
        yield f"perplexity {row.perplexity:.4g}, the reference's {row.reference_perplexity:.4g}"


def as_json(found: Agreements) -> dict[str, Any]:
    return {**json_parts(found), "rows": list(json_rows(found))}


def json_parts(found: Agreements) -> dict[str, Any]:
    """The rows one after another: each may hold many differences."""
    return {
        "reference": found.reference,
        "rows": json_rows(found),
        "consistency": to_builtins(found.consistency),
    }


def json_rows(found: Agreements, *, differences: bool = True) -> Iterator[dict[str, Any]]:
    for one in found.rows:
        plain: dict[str, Any] = to_builtins(replace(one, differences=tuple(one.differences) if differences else ()))
        last = {"first": one.first, "gap_max": one.gap_max, "perplexity_ratio": one.perplexity_ratio, "bad": one.bad}
        yield plain | last


def load(run: Path, other: Path | None) -> tuple[RunView, Agreements]:
    """Raises JournalError, InputError."""
    view = RunView.load(run)
    return view, judged(view, None if other is None else RunView.load(other))
