"""What became of the warnings from before a run, by what the workers read back from their engines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from orchestrator.judge.effective import KV_TOLERANCE, Ran, together
from orchestrator.judge.findings import Finding, value_text
from orchestrator.judge.ran import by_method, load_cells
from protocol.records import RuntimeMetadata

_READ: Final[dict[str, Callable[[RuntimeMetadata], Any]]] = {
    "threads": lambda m: m.threads,
    "quantization": lambda m: m.settings.quantization,
    "KV cache dtype": lambda m: m.settings.kv_cache_dtype,
    "KV cache": lambda m: m.kv_cache_tokens,
    "draft": lambda m: together(m.settings.ngram_min, m.settings.ngram_max, m.settings.draft_tokens),
}
STANDS: Final = "not known to be the same, so the warning stands"


def resolved(
    before: Iterable[Finding], ran: Sequence[Ran], after: Sequence[Finding], reference: str | None
) -> list[Finding]:
    """The findings of `before`, each warning with what `ran`. One that is not known to have ended in the same thing
    stands: it gets the points of the methods that were asked otherwise than `reference`. Where what ran is known to
    differ, `after` says so, and whether it matters."""
    return [_resolved(one, ran, after, reference) if one.level == "warning" and ran else one for one in before]


def _resolved(one: Finding, ran: Sequence[Ran], after: Sequence[Finding], reference: str | None) -> Finding:
    below = [found for found in after if found.what == one.read_back]
    marked = {point for found in below if found.level == "warning" for point in found.points}
    beside = [both for cell in load_cells(ran) for both in _beside(one, cell, reference)]
    if not beside:
        return replace(one, ran="no two methods that were asked otherwise")
    told = [([_read(one, worker) for worker in (*usual, *other)], other) for usual, other in beside]
    doubtful = (other for values, other in told if None in values or not (below or _alike(one, values)))
    points = tuple(point for other in doubtful for worker in other for point in worker.points if point not in marked)
    if points:
        return replace(one, ran=STANDS, points=points)
    if below:
        return replace(one, ran=f"{one.read_back} differs, see After")
    seen = dict.fromkeys(value_text(value) for values, _ in told for value in values)
    return replace(one, ran=f"the same ({one.read_back}: {', '.join(seen)})")


def _beside(one: Finding, cell: Iterable[Ran], reference: str | None) -> Iterator[tuple[list[Ran], list[Ran]]]:
    """Workers of the reference, or of the first method where it is not here, and those of one asked otherwise."""
    methods = {name: workers for name, workers in by_method(cell).items() if name in one.who}
    usual = reference if reference in methods else next(iter(methods), "")
    yield from ((methods[usual], methods[name]) for name in methods if one.who[name] != one.who[usual])


def _read(one: Finding, worker: Ran) -> Any:
    read = _READ.get(one.read_back)
    return None if read is None else read(worker.metadata)


def _alike(one: Finding, values: Sequence[Any]) -> bool:
    if one.read_back == "KV cache":
        return bool(max(values) <= min(values) * (1 + KV_TOLERANCE))
    return len(set(values)) == 1
