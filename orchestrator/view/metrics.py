"""The figures of one row: a method at one combination of settings, all its repeats together.

    tokens/s     sum of generated tokens / sum of wall time of the engine's generate calls, over the measured
                 batches of all repeats. The time between batches is ours and left out
    TTFT         from hand-over of the batch to the prompt's first token, so waiting inside the engine counts
    ITL          between one token and the next, of all tokens of all prompts together
    TPOT         (latency - TTFT) / (generated tokens - 1) of one prompt
    quantiles    of prompts (of tokens for ITL); linear between ranks

docs/metrics.md has all of them, with where they come from. What an engine does not tell is None, never 0.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.view import stats
from orchestrator.view.measures import Chunk, Measures, Series

#: What is taken as independent: repeats, which meet all that differs from one to the next, or a lone one's batches.
Unit = Literal["repeats", "batches"]
SHARES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Spread:
    """Of one time, in seconds. `median` has an interval."""

    count: int = 0
    mean_s: float | None = None
    median: stats.Estimate | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True)
class Speed:
    """Per second of the engine's own wall time.

    output     generated tokens; None where nothing is to be generated
    total      prompt and generated tokens
    requests, good   prompts, and those of them that met the SLO; None without one, or where it can't be judged
    unjudged   prompts of which the engine does not tell what the SLO asks for
    generated_tokens, prompt_tokens   how many were counted
    repeats, batches   generated (to score: all) tokens and seconds by unit
    prompts    of each batch, how many are in it: where some failed or ran again apart, it is not the others' batch
    """

    unit: Unit = "batches"
    output: stats.Estimate | None = None
    total: stats.Estimate | None = None
    requests: float | None = None
    good: float | None = None
    met: float | None = None
    unjudged: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    repeats: stats.Pairs = field(default_factory=dict)
    batches: stats.Pairs = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> stats.Estimate | None:
        """By which methods are compared: of generated tokens, to score of all."""
        return self.total if self.output is None else self.output


@dataclass(frozen=True)
class Outlier:
    """A batch whose time per token lies outside Tukey's fences; it counts all the same."""

    repeat: int
    batch: str
    wall_s: float
    tokens: int


def speed(repeats: dict[int, Measures], scores: bool, has_slo: bool) -> Speed:
    """`repeats`: of one row, by their number. `scores`: the task is to score, not to generate."""
    of_repeats = {number: chunks for number, one in repeats.items() if (chunks := _timed(one.chunks.values()))}
    of_batches: dict[str, list[Chunk]] = {}
    for one in repeats.values():
        for name, chunk in one.chunks.items():
            if chunk.wall_s > 0:
                of_batches.setdefault(name, []).append(chunk)
    every = [chunk for chunks in of_repeats.values() for chunk in chunks]
    if not every:
        return Speed()
    unit: Unit = "repeats" if len(of_repeats) > 1 else "batches"
    by_unit = list((of_repeats if unit == "repeats" else of_batches).values())
    failed = sum(one.failed for one in repeats.values())
    return Speed(
        unit=unit,
        output=None if scores else _rate(by_unit, _generated),
        total=_rate(by_unit, _all),
        requests=sum(chunk.requests for chunk in every) / _wall_s(every),
        generated_tokens=sum(chunk.tokens for chunk in every),
        prompt_tokens=sum(chunk.prompt_tokens for chunk in every),
        repeats={number: _pair(chunks, scores) for number, chunks in of_repeats.items()},
        batches={name: _pair(chunks, scores) for name, chunks in of_batches.items()},
        prompts={name: sum(chunk.requests for chunk in chunks) for name, chunks in of_batches.items()},
        **(_goodput(every, failed) if has_slo else {}),
    )


def _goodput(chunks: Sequence[Chunk], failed: int) -> dict[str, Any]:
    """Of the prompts that were measured or failed: of one whose batch has no time nobody knows if it was in time."""
    good, unjudged, measured = (sum(getattr(one, name) for one in chunks) for name in ("good", "unjudged", "requests"))
    if unjudged:
        return {"unjudged": unjudged}
    asked = measured + failed
    return {"good": good / _wall_s(chunks), "met": good / asked if asked else None}


def pair(one: Measures, scores: bool) -> tuple[float, float] | None:
    """Tokens and seconds of all its batches that have a time."""
    chunks = _timed(one.chunks.values())
    return _pair(chunks, scores) if chunks else None


def _timed(chunks: Iterable[Chunk]) -> list[Chunk]:
    return [chunk for chunk in chunks if chunk.wall_s > 0]


def _generated(chunks: Sequence[Chunk]) -> float:
    return sum(chunk.tokens for chunk in chunks)


def _all(chunks: Sequence[Chunk]) -> float:
    return sum(chunk.tokens + chunk.prompt_tokens for chunk in chunks)


def _rate(units: Sequence[Sequence[Chunk]], amount: Callable[[Sequence[Chunk]], float]) -> stats.Estimate | None:
    return stats.rate([amount(chunks) for chunks in units], [_wall_s(chunks) for chunks in units])


def _wall_s(chunks: Sequence[Chunk]) -> float:
    return sum(chunk.wall_s for chunk in chunks)


def _pair(chunks: Sequence[Chunk], scores: bool) -> tuple[float, float]:
    return (_all if scores else _generated)(chunks), _wall_s(chunks)


def spread(series: dict[int, Series], unit: Unit) -> Spread:
    """Of one time. `series`: by repeat."""
    groups: dict[int | str, list[array[float]]] = {}
    for repeat, one in series.items():
        for chunk, values in one.parts():
            groups.setdefault(repeat if unit == "repeats" else chunk, []).append(values)
    units = [_joined(parts) for parts in groups.values()]
    values = _joined(units)
    if not values:
        return Spread()
    _, p90_s, p95_s, p99_s = stats.quantiles(values, SHARES)
    return Spread(
        count=len(values),
        mean_s=math.fsum(values) / len(values),
        median=stats.median(units),
        p90_s=p90_s,
        p95_s=p95_s,
        p99_s=p99_s,
    )


def _joined(parts: Sequence[array[float]]) -> array[float]:
    """Of one kind, as all parts of one figure are."""
    found: array[float] = array("f" if parts and parts[0].typecode == "f" else "d")
    for part in parts:
        found.extend(part)
    return found


def outliers(repeats: dict[int, Measures], scores: bool) -> tuple[tuple[Outlier, ...], int]:
    """And how many batches were looked at: those with as many prompts as the fullest. By their time per token that was
    generated (to score: that was given): one with shorter outputs is no outlier."""
    named = [(repeat, name, chunk) for repeat, one in repeats.items() for name, chunk in one.chunks.items()]
    most = max((chunk.requests for _, _, chunk in named), default=0)
    tokens = [int((_all if scores else _generated)([chunk])) for _, _, chunk in named]
    full = [
        Outlier(repeat, name, chunk.wall_s, count)
        for (repeat, name, chunk), count in zip(named, tokens, strict=True)
        if chunk.requests == most and chunk.wall_s and count
    ]
    return tuple(full[place] for place in stats.outliers([one.wall_s / one.tokens for one in full])), len(full)
