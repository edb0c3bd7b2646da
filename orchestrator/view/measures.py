"""What the records and counters of one point add up to, in arrays: a run of many records is read once. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from sys import intern

from orchestrator.definition.measurement import Measurement
from orchestrator.events import BatchCommitted
from orchestrator.outcomes import Cause
from orchestrator.record.output import FLAG_SUSPENDED, Record
from orchestrator.view.counters import Counters
from protocol.records import FLAG_NO_TIMING, FLAG_SURPLUS_RESULTS

#: Flags that no record of the batch carries.
_OF_BATCHES = frozenset({FLAG_SURPLUS_RESULTS, FLAG_NO_TIMING})
#: Told among the flags: outputs that ended neither with a stop id nor at their limit.
UNKNOWN_END = "finish_unknown"
#: Causes of failed prompts kept for the report, per point.
KEPT_ERRORS = 20


@dataclass(slots=True)
class Chunk:
    """A batch of the plan as one repeat measured it; where it was cut, its parts together. Only prompts without an
    error count. `good` met the SLO, `unjudged` may have: the engine does not tell."""

    wall_s: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    requests: int = 0
    good: int = 0
    unjudged: int = 0


@dataclass
class Series:
    """One figure of many prompts or tokens, in seconds, and the chunk that each is of: `ends` are the places
    where the chunk in `owners` ends."""

    values: array[float] = field(default_factory=lambda: array("d"))
    owners: list[str] = field(default_factory=list)
    ends: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, chunk: str, value: float | None) -> None:
        if value is not None:
            self.values.append(value)
        self._end(chunk)

    def add_all(self, chunk: str, values: list[float | None]) -> None:
        told = [value for value in values if value is not None] if None in values else values
        self.values.fromlist(told)  # type: ignore[arg-type]
        self._end(chunk)

    def _end(self, chunk: str) -> None:
        if self.owners and self.owners[-1] == chunk:
            self.ends[-1] = len(self.values)
        else:
            self.owners.append(chunk)
            self.ends.append(len(self.values))

    def parts(self) -> Iterator[tuple[str, array[float]]]:
        begin = 0
        for owner, end in zip(self.owners, self.ends, strict=True):
            yield owner, self.values[begin:end]
            begin = end


@dataclass
class Measures:
    """Of one point. Only prompts without an error count in the figures.

    chunks    by their name in the plan: the same prompts have the same one in every method and repeat. Of the
              measured batches: those with timings and no record that was replaced later
    sizes     how many prompts were handed over at once, those that failed too → how many measured batches had so many
    ttft_s …  where the engine tells; see `metrics` for the formulas
    """

    ok: int = 0
    failed: int = 0
    peak_bytes: int | None = None
    chunks: dict[str, Chunk] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    ttft_s: Series = field(default_factory=Series)
    itl_s: Series = field(default_factory=lambda: Series(array("f")))  # one for each token: as they travelled
    tpot_s: Series = field(default_factory=Series)
    latency_s: Series = field(default_factory=Series)
    counters: Counters = field(default_factory=Counters)
    flags: Counter[str] = field(default_factory=Counter)
    errors: list[tuple[str, Cause]] = field(default_factory=list)

    def add_batch(self, commit: BatchCommitted, measured: bool) -> None:
        self.flags.update(flag for flag in commit.flags if flag in _OF_BATCHES)
        stats = commit.stats
        if stats is None:
            return
        peaks = (self.peak_bytes, stats.peak_memory_bytes)
        self.peak_bytes = max((peak for peak in peaks if peak is not None), default=None)
        if measured:
            self.chunks.setdefault(chunk_of(commit.batch), Chunk()).wall_s += stats.wall_s
            self.sizes[len(commit.prompts)] += 1
            self.counters.add(stats.extra)

    def add_record(self, record: Record, measured: bool, slo: Measurement) -> None:
        self.flags.update(record.flags)
        if record.finish_reason == "unknown":
            self.flags[UNKNOWN_END] += 1
        if record.error is not None:
            self._add_error(record.prompt_id, record.error)
            return
        self.ok += 1
        chunk = chunk_of(record.batch)
        if FLAG_SUSPENDED not in record.flags:
            self._add_times(record, chunk)
        if measured:
            _count(self.chunks[chunk], record, slo)

    def _add_error(self, prompt_id: str, error: Cause) -> None:
        self.failed += 1
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append((prompt_id, error))

    def _add_times(self, record: Record, chunk: str) -> None:
        self.ttft_s.add(chunk, record.ttft_s)
        self.latency_s.add(chunk, record.latency_s)
        self.itl_s.add_all(chunk, record.itl_s or [])
        if record.generated_tokens > 1:
            self.tpot_s.add(chunk, _tpot_s(record))


def chunk_of(batch: str) -> str:
    """ "3f9a01bc-7.0" → "7": the number of the batch in the plan."""
    return intern(batch.rpartition("-")[2].partition(".")[0])


def of_warmup(batch: str) -> bool:
    """ "3f9a01bc-w0" """
    return chunk_of(batch).startswith("w")


def has_slo(slo: Measurement) -> bool:
    return not (slo.slo_ttft_s is slo.slo_tpot_s is slo.slo_latency_s is None)


def _count(chunk: Chunk, record: Record, slo: Measurement) -> None:
    chunk.tokens += record.generated_tokens
    chunk.prompt_tokens += record.prompt_tokens
    chunk.requests += 1
    good = _meets(record, slo)
    chunk.good += good is True
    chunk.unjudged += good is None


def _meets(record: Record, slo: Measurement) -> bool | None:
    """None where a figure is not known that would decide it."""
    if not has_slo(slo):
        return True
    # A lone token has no further ones to wait for.
    tpot_s = _tpot_s(record) if record.generated_tokens > 1 else 0.0
    pairs = (
        (record.ttft_s, slo.slo_ttft_s),
        (tpot_s, slo.slo_tpot_s),
        (record.latency_s, slo.slo_latency_s),
    )
    asked = [(value, most) for value, most in pairs if most is not None]
    if any(value is not None and value > most for value, most in asked):
        return False
    return None if any(value is None for value, _ in asked) else True


def _tpot_s(record: Record) -> float | None:
    if record.ttft_s is None or record.latency_s is None or record.latency_s < record.ttft_s:
        return None  # a last token before the first: the two are of clocks that do not agree
    return (record.latency_s - record.ttft_s) / (record.generated_tokens - 1)
