"""From the distances of a method's outputs to one word about them. Pure.

What each verdict means and where its bounds come from stands in docs/fairness.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.judge.distance import Distance
from orchestrator.judge.told import Told
from orchestrator.plan import SweepPoint

Verdict = Literal["reference", "agrees", "agrees within ties", "diverges", "garbage", "other prompts", "unknown"]
#: Under these a speed means nothing.
BAD: Final[tuple[Verdict, ...]] = ("diverges", "garbage", "other prompts")

#: Degenerate outputs, of prompts whose reference is none, past which the rest does not matter.
GARBAGE_SHARE: Final = 0.5
#: No output is the same, and on average less than such a share of its tokens comes before the first difference.
GARBAGE_PREFIX: Final = 0.1
#: Fewer prompts, or outputs of fewer tokens on average, can all differ at once by a near-tie each.
GARBAGE_PROMPTS: Final = 4
GARBAGE_TOKENS: Final = 8
#: Scores that differ by no more are called equal: the rounding of float32 sums taken in another order.
SAME_NATS: Final = 1e-3


@dataclass
class Tally:
    """What the outputs of one method in one cell add up to. `apart`: those that differ; `most`: the
    nats up to which a difference is a near-tie; `own`: the reference is a repeat of this very cell."""

    most: float
    points: list[SweepPoint] = field(default_factory=list)
    base: SweepPoint | None = None
    own: bool = False
    outputs: int = 0
    tokens: int = 0
    prefixes: float = 0.0
    same: int = 0
    tied: int = 0
    undecided: int = 0
    failed: int = 0
    degenerate: int = 0
    apart: list[Distance] = field(default_factory=list)
    kl_sum: float = 0.0
    positions: int = 0
    kl_max: float | None = None
    delta_max: float | None = None
    nll: float = 0.0
    reference_nll: float = 0.0
    scored: int = 0
    first_error: str = ""

    @property
    def sampled(self) -> bool:
        return self.points[0].config.temperature > 0

    def fail(self, why: str) -> None:
        self.failed += 1
        self.first_error = self.first_error or why

    def add(self, reference: Told, other: Told, found: Distance) -> None:
        self.outputs += 1
        self.tokens += len(reference.ids)
        self.prefixes += found.prefix
        self.degenerate += other.degenerate and not reference.degenerate
        self._count(found)
        self.kl_sum += found.kl_sum
        self.positions += found.positions
        self.kl_max = _larger(self.kl_max, found.kl_max)
        self.delta_max = _larger(self.delta_max, found.delta_max)
        self.nll += found.nll
        self.reference_nll += found.reference_nll
        self.scored += found.tokens

    def _count(self, found: Distance) -> None:
        if found.kind == "same" or (found.kind == "scored" and found.tied(SAME_NATS)):
            self.same += 1
            return
        tied = found.tied(self.most)
        self.apart.append(found)
        self.tied += tied is True
        self.undecided += tied is None


def judge(tally: Tally) -> tuple[Verdict, str]:
    """The verdict and why: the first that applies, what is worst first."""
    if tally.base is None:
        return "unknown", "the reference did no such work: its sampling settings are others"
    if not tally.outputs:
        return _without_outputs(tally, tally.base)
    if others := sum(d.kind == "other prompt" for d in tally.apart):
        return "other prompts", (
            f"{others} of {tally.outputs} prompts were other token ids than the reference's: "
            "another chat template or tokenizer, or a doubled begin-of-sequence token"
        )
    if garbage := _garbage(tally):
        return "garbage", garbage
    if tally.sampled:
        return "unknown", _sampled(tally, tally.base)
    return _by_gap(tally)


def _without_outputs(tally: Tally, base: SweepPoint) -> tuple[Verdict, str]:
    if all(point.id == base.id for point in tally.points):
        return "reference", ""
    return "unknown", f"no output to compare: {tally.first_error or 'nothing ran'}"


def _sampled(tally: Tally, base: SweepPoint) -> str:
    if tally.own:
        return f"sampled, and compared only with its own repeat {base.repeat + 1}, which says nothing of other engines"
    return f"sampled, and compared with {base.method}: engines draw different numbers, so outputs may well differ"


def _garbage(tally: Tally) -> str:
    """Why the outputs are no answers of this model; empty if nothing says so."""
    if tally.degenerate > GARBAGE_SHARE * tally.outputs:
        return f"{tally.degenerate} of {tally.outputs} outputs say nothing, or one token over and over"
    few = tally.outputs < GARBAGE_PROMPTS or tally.tokens < GARBAGE_TOKENS * tally.outputs
    if few or tally.sampled or tally.same or tally.prefixes >= GARBAGE_PREFIX * tally.outputs:
        return ""
    if tally.tied > GARBAGE_SHARE * tally.outputs:  # then near-ties explain it, at whatever position
        return ""
    share = tally.prefixes / tally.outputs
    return f"not one output is the reference's, and they part after {share:.0%} of their tokens on average"


def _by_gap(tally: Tally) -> tuple[Verdict, str]:
    far = len(tally.apart) - tally.tied - tally.undecided
    if far:
        ends = sum(d.kind in ("cut short", "runs on") for d in tally.apart)
        parts = [
            f"{far - ends} of {tally.outputs} outputs differ by more than {tally.most:g} nats" if far > ends else "",
            f"{ends} of {tally.outputs} outputs end elsewhere without an end-of-sequence token" if ends else "",
        ]
        return "diverges", "; ".join(part for part in parts if part)
    if tally.undecided:
        return "unknown", f"{_too_few(tally)}{_undecided(tally)}"
    rest = f"{tally.failed} of {tally.failed + tally.outputs} could not be compared" if tally.failed else ""
    if tally.apart:
        said = f"{tally.tied} of {tally.outputs} outputs differ, each by {tally.most:g} nats or less"
        return "agrees within ties", "; ".join(filter(None, (said, rest)))
    return "agrees", rest


def _too_few(tally: Tally) -> str:
    """Of few outputs none of which is the same, there may be a fault that more would show."""
    if tally.same or tally.outputs >= GARBAGE_PROMPTS or any(one.kind == "scored" for one in tally.apart):
        return ""
    many = f"none of {tally.outputs} outputs is" if tally.outputs > 1 else "the only output is not"
    return f"{many} the reference's, too few to tell a fault from near-ties; "


def _undecided(tally: Tally) -> str:
    if any(one.kind == "scored" for one in tally.apart):
        return f"of {tally.undecided} of {tally.outputs} outputs not all log-probabilities are known"
    if any(one.gap_is_bound for one in tally.apart):
        why = "logprobs is too small to hold both tokens"
    elif tally.base is not None and tally.base.config.logprobs:
        why = "the reference does not tell them there"
    else:
        why = "ask for logprobs"
    return f"{tally.undecided} of {tally.outputs} outputs differ, by how many nats is not known: {why}"


def _larger(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else max(one, other)
