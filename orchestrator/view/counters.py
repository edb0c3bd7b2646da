"""The counters of an engine, added up over measured batches. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: Of the process and not of the batch: the highest counts.
_STATES = frozenset({"unique_graphs"})
_BUCKET = ("bucket_batch", "bucket_length", "bucket_fill")
_EXPERT = "expert_"


@dataclass
class Counters:
    """sums, highest   by the names of BatchStats.extra; a name that no batch told is in neither
    buckets            (batch size, padded length) → batches that ran in it
    """

    sums: dict[str, float] = field(default_factory=dict)
    highest: dict[str, float] = field(default_factory=dict)
    buckets: Counter[tuple[int, int]] = field(default_factory=Counter)
    filled_cells: float = 0.0

    def add(self, extra: Mapping[str, float]) -> None:
        for name, value in extra.items():
            if name in _STATES:
                self.highest[name] = max(value, self.highest.get(name, value))
            elif name not in _BUCKET:
                self.sums[name] = self.sums.get(name, 0.0) + value
        if all(name in extra for name in _BUCKET):
            batch, length, fill = (extra[name] for name in _BUCKET)
            self.buckets[int(batch), int(length)] += 1
            self.filled_cells += fill * batch * length

    def told(self, name: str) -> float | None:
        """None where no batch told it."""
        return self.sums.get(name, self.highest.get(name))

    @property
    def acceptance(self) -> float | None:
        """Accepted / proposed tokens of speculation."""
        return _share(self.told("accepted_tokens"), self.told("draft_tokens"))

    @property
    def accepted_length(self) -> float | None:
        """Tokens that one verified draft yields, the verifier's own among them: 1 + accepted / drafts."""
        share = _share(self.told("accepted_tokens"), self.told("drafts"))
        return None if share is None else 1 + share

    @property
    def bucket_fill(self) -> float | None:
        """Prompt tokens / padded cells."""
        cells = sum(batch * length * count for (batch, length), count in self.buckets.items())
        return self.filled_cells / cells if cells else None

    @property
    def imbalance(self) -> float | None:
        """Tokens of the busiest expert / mean of the layer's experts that got any, in the most uneven layer."""
        layers = (list(layer.values()) for layer in self.experts.values())
        return max((_busiest(layer) for layer in layers if any(layer)), default=None)

    @property
    def experts(self) -> dict[int, dict[int, float]]:
        """Layer → expert → tokens that the router sent to it."""
        found: dict[int, dict[int, float]] = {}
        for name, tokens in self.sums.items():
            if name.startswith(_EXPERT):
                layer, expert = name.removeprefix(_EXPERT).split("_")
                found.setdefault(int(layer), {})[int(expert)] = tokens
        return found


def _busiest(tokens: Sequence[float]) -> float:
    return max(tokens) * len(tokens) / sum(tokens)


def together(parts: Iterable[Counters]) -> Counters:
    found = Counters()
    for part in parts:
        found.add({**part.sums, **part.highest})
        found.buckets.update(part.buckets)
        found.filled_cells += part.filled_cells
    return found


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
