"""The rows of a report as a table: the figures of one method at one combination of settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from orchestrator.exports.columns import RUN, Column, Kind, Line
from orchestrator.exports.source import Source, asked
from orchestrator.view.figures import figures, row_figures
from orchestrator.view.rows import rows as rows_of
from orchestrator.view.summary import Row
from protocol.specs import BackendConfig, MethodSpec

#: What a row has beside its figures, where it is more or less than a key and a value of the report's JSON.
_KEY: Final = (
    *RUN,
    Column("method", "word", ""),
    Column("engine", "word", ""),
    Column("settings", "json", "those that tell the rows of one method apart"),
)
_OUTPUTS: Final = {
    "ok": "prompts that have an output, counted in each repeat",
    "failed": "prompts that failed, in each repeat",
    "missing": "prompts of which there is no record, in each repeat",
}
_UNITS: Final = (
    Column("unit", "word", "what intervals are made of: repeats, or batches of a lone one"),
    Column("units", "integer", "how many there are"),
)
_TOLD: Final[dict[str, tuple[Kind, str]]] = {
    "points": ("words", "ids of its points"),
    "outcome": ("word", "how the worst of its repeats ended"),
    "cause": ("text", "why, in one line"),
    "notes": ("words", "what its figures suffered"),
    "marks": ("words", "why its figures may not be compared as they are; an empty list where they may"),
    "warnings": ("words", "what disturbed its measurement"),
    "flags": ("json", "flag → how many outputs or batches carry it"),
    "neighbours": ("json", "which other workers there were meanwhile, during how many batches"),
    "batches_lost": ("integer", "batches that gave nothing"),
    "repeats_skipped": ("integer", "as those before were enough"),
    "reference": ("word", "the method that its speed is set against"),
    "batches": ("json", "how many measured batches had how many prompts"),
    "warmed_up": ("flag", ""),
    "compared_by": ("word", "the figure that ratios and rates by repeat are of"),
    "tokens_per_s_by_repeat": ("json", "repeat → that figure"),
    "outlying_batches": ("json", "those far from the others; they are in all figures"),
    "other_judges": ("json", "the same by each other judge"),
    "batches_compared": ("integer", "how many were looked at for that"),
}
#: By the first judge of the run, a part each of what the report's JSON has as `accuracy`.
_ACCURACY: Final[dict[str, tuple[Kind, str]]] = {
    "judge": ("word", "the first of `answers`; null, as the others, where nothing is judged"),
    "kind": ("word", "`share` of right answers, `mean` score, or score of the `corpus`"),
    "value": ("number", "from 0 to 1"),
    "low": ("number", "lower end of its interval"),
    "high": ("number", "upper end"),
    "correct": ("integer", "outputs that are right"),
    "judged": ("integer", "outputs judged, those of failed prompts among them"),
    "prompts": ("integer", "how many different prompts these are of"),
    "failed": ("integer", "outputs wrong as their prompt failed"),
    "truncated": ("integer", "outputs that ended at `max_new_tokens`"),
    "missing": ("integer", "outputs that are not there"),
    "unjudged": ("integer", "outputs of prompts with nothing to be judged by"),
    "versus_reference": ("json", "the difference to the reference"),
    "wrong": ("json", "some wrong answers"),
    "reason": ("text", "why there is no value, or no interval"),
}
_INTEGERS: Final = frozenset(
    {"generated_tokens", "prompt_tokens", "steps", "drafts", "draft_tokens", "accepted_tokens", "cached_tokens"}
    | {"num_preemptions", "unique_graphs", "recompiles", "host_cpus", "temperature_max_c"}
    | {"sm_clock_min_mhz", "memory_clock_min_mhz"}
)
_KINDS: Final[dict[str, Kind]] = {
    **{"speed_ratio_paired": "flag", "distinguishable": "flag", "returned": "flag", "speed_ratio_unit": "word"},
    **{"throttle": "words", "buckets": "json", "expert_tokens": "json", "reasons": "json"},
}
_BLANK: Final = Row(BackendConfig(method=MethodSpec("", "scripted"), model_path=""), {}, (), "ok", 0, "")
_FIGURES: Final = frozenset(figures(_BLANK))
#: The meaning of them all.
FIGURE: Final = "a figure of the report; see metrics"


def _figure(name: str) -> Column:
    counted = name in _INTEGERS or name.endswith(("_bytes", "_count"))
    return Column(name, _KINDS.get(name, "integer" if counted else "number"), FIGURE)


def _columns() -> Iterator[Column]:
    """Whatever the report's JSON has of a row; what is not known here as it stands there."""
    yield from _KEY
    for name in row_figures(_BLANK):
        if name == "outputs":
            yield from (Column(f"outputs_{part}", "integer", meaning) for part, meaning in _OUTPUTS.items())
        elif name == "accuracy":
            yield from (Column(f"accuracy_{part}", *told) for part, told in _ACCURACY.items())
        elif name == "units":
            yield from _UNITS
        elif name in _FIGURES:
            yield _figure(name)
        elif name not in ("method", "settings"):
            kind, meaning = _TOLD.get(name, ("json", "as in `report --json`"))
            yield Column(name, kind, meaning)


ROWS: Final = tuple(_columns())


def rows(source: Source) -> Iterator[Line]:
    """In the order of the sweep file. Reads every record first. Raises JournalError on damage."""
    for row in rows_of(source.view):
        found = {**dict(zip((column.name for column in RUN), source.key, strict=True)), **_flat(row)}
        yield Line(tuple(found[column.name] for column in ROWS), asked(row.config))


def _flat(row: Row) -> dict[str, Any]:
    told = row_figures(row)
    outputs, units, accuracy = told.pop("outputs"), told.pop("units"), told.pop("accuracy") or {}
    parts = {f"outputs_{name}": outputs[name] for name in _OUTPUTS}
    parts |= {f"accuracy_{name}": accuracy.get(name) for name in _ACCURACY}
    return {**told, **parts, "unit": units["of"], "units": units["count"], "engine": row.config.method.engine}
