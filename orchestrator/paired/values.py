"""A comparison of runs as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from msgspec import to_builtins

from orchestrator.paired.gate import Word
from orchestrator.paired.pair import Pair, Turn
from orchestrator.paired.review import Judged, Review
from orchestrator.paired.unpaired import Difference
from orchestrator.view.compare import ratio_values


def values(found: Sequence[Review], code: int) -> dict[str, Any]:
    """`code`: the exit code."""
    return {"exit_code": code, "comparisons": [_review(one) for one in found]}


def _review(one: Review) -> dict[str, Any]:
    before, after = one.found.sides
    return {
        "before": before.path,
        "after": after.path,
        "before_began_at": before.began_at,
        "after_began_at": after.began_at,
        "threshold": one.threshold,
        "comparisons_tested": one.family,
        "verdicts": {word: one.count(word) for word in get_args(Word)},
        "changes": [*map(_turn, one.found.turns), *map(_change, one.judged)],
        "differences": _plain(one.found.differences),
        "machine_differs": one.found.machine,
        "cells": [_cell(pair) for pair in one.found.pairs],
        "vanished": one.found.vanished,
        "apart": [{"cell": name, "differences": _plain(why)} for name, why in one.found.apart],
        "only": [{"cell": name, "run": side.path, "side": side.name} for name, side in one.found.only],
    }


def _plain(found: Sequence[Difference]) -> list[dict[str, str]]:
    return [{"what": what, "before": old, "after": new} for what, old, new in found]


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "cell": turn.subject,
        "figure": turn.what,
        "before": turn.before,
        "after": turn.after,
        "verdict": turn.word,
        "why": turn.why,
    }


def _change(judged: Judged) -> dict[str, Any]:
    one, verdict = judged.change, judged.verdict
    ratio = ratio_values(one.ratio, one.confidence)
    del ratio["distinguishable"]
    return {
        "cell": one.subject,
        "figure": one.metric.name,
        "unit": one.metric.unit,
        "before": one.before,
        "after": one.after,
        **ratio,
        "change": one.size,
        "change_low": one.span and one.span.low,
        "change_high": one.span and one.span.high,
        "interval_over": one.basis,
        "interval_units": list(one.units),
        "p_value": verdict.p_value,
        "p_adjusted": verdict.p_adjusted,
        "verdict": verdict.word,
        "why": verdict.why,
        "starts_needed": verdict.starts,
    }


def _cell(pair: Pair) -> dict[str, Any]:
    before, after, speed = pair.before, pair.after, pair.speed
    told = ratio_values(speed.ratio, speed.confidence)
    if speed.within or speed.doubt:
        told["distinguishable"] = None
    return {
        "method": before.method,
        "settings": to_builtins(before.settings),
        "before_tokens_per_s": speed.before,
        "after_tokens_per_s": speed.after,
        "before_outcome": before.outcome,
        "after_outcome": after.outcome,
        "before_marks": list(before.marks),
        "after_marks": list(after.marks),
        "before_warnings": list(before.warnings),
        "after_warnings": list(after.warnings),
        **told,
        "interval_over": speed.basis,
        "interval_units": list(speed.units),
        "within_runs_only": speed.within,
        "outputs": {**asdict(pair.outputs), "share": pair.outputs.share},
    }
