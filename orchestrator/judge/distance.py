"""How far two outputs for the same prompt are apart: first divergence, gap, KL divergence. Pure.

Both methods have seen the same tokens up to and with the position at which they first differ, so
their distributions are compared up to and with that one, and nowhere after it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from orchestrator.judge.told import Told

#: token         another token
#: ends earlier  an end-of-sequence token where the reference goes on
#: ends later    it goes on where the reference ends
#: cut short     the same, without an end-of-sequence token: something else ended it
#: runs on       beyond the reference's own last token
#: other prompt  it was given other token ids, so there is nothing to compare
Kind = Literal["same", "token", "ends earlier", "ends later", "cut short", "runs on", "scored", "other prompt"]

#: Log-probabilities travel as float32, of which engines give sums a little beside 1.
LEAST_SHARE = 1e-6
SHOWN_CHARACTERS = 40


class Distance(Struct, frozen=True):
    """One prompt's output beside the reference's. Natural logarithms.

    at            index of the first token that differs, of generated tokens from 0; to score, of the
                  continuation's token whose log-probability differs most
    prefix        tokens before it / tokens of the longer output: 1 for the same outputs
    gap           log p(reference's token) - log p(this one's) by the reference, where they first differ
    gap_is_bound  the reference does not tell that token's: the gap is at least so much
    kl_sum, kl_max, positions   KL(reference ‖ method), see `divergence`, over the positions where both tell theirs
    delta_max     most |difference| of the log-probabilities of tokens that both have
    nll, reference_nll, tokens   to score: sums of -log p over the tokens where both tell theirs
    untold        to score: tokens where one of them does not
    text, reference_text         how the two texts go on where they part
    """

    prompt_id: str
    kind: Kind
    at: int | None = None
    prefix: float = 1.0
    token: int | None = None
    reference_token: int | None = None
    gap: float | None = None
    gap_is_bound: bool = False
    kl_sum: float = 0.0
    kl_max: float | None = None
    positions: int = 0
    delta_max: float | None = None
    nll: float = 0.0
    reference_nll: float = 0.0
    tokens: int = 0
    untold: int = 0
    text: str = ""
    reference_text: str = ""

    def tied(self, most: float) -> bool | None:
        """Whether a near-tie of the reference explains the difference: its gap is `most` nats or
        less. None where the log-probabilities do not say."""
        if self.kind == "scored":
            return self._scored_alike(most)
        if self.kind in ("cut short", "runs on", "other prompt"):
            return False
        if self.kind == "same":
            return True
        if self.gap is None or (self.gap_is_bound and self.gap <= most):
            return None
        # On either side: a reference that by far prefers the other's token did not choose by its own numbers.
        return abs(self.gap) <= most

    def _scored_alike(self, most: float) -> bool | None:
        """What some tokens are apart convicts; that of all of them has to be known to acquit."""
        if self.delta_max is not None and self.delta_max > most:
            return False
        return None if self.delta_max is None or self.untold else True


def distance(reference: Told, other: Told, stop: Collection[int] = ()) -> Distance:
    """Of two outputs that are there. `stop`: the end-of-sequence ids that end an output."""
    if reference.digest != other.digest:
        return Distance(other.prompt_id, "other prompt", prefix=0.0)
    if reference.scored or other.scored:
        return _scores(reference, other)
    at = common(reference.ids, other.ids)
    mine, theirs = _token(other.ids, at), _token(reference.ids, at)
    kind = _kind(mine, theirs, stop)
    gap, bound = _gap(reference, at, mine, theirs)
    kls = list(_divergences(reference, other, at + 1))
    parting = common(reference.text, other.text)
    return Distance(
        other.prompt_id,
        kind,
        at=None if kind == "same" else at,
        prefix=at / max(len(reference.ids), len(other.ids), 1) if kind != "same" else 1.0,
        token=mine,
        reference_token=theirs,
        gap=gap,
        gap_is_bound=bound,
        kl_sum=sum(kls),
        kl_max=max(kls, default=None),
        positions=len(kls),
        delta_max=max((abs(a - b) for _, a, b in _pairs(reference, other, at)), default=None),
        text=other.text[parting : parting + SHOWN_CHARACTERS],
        reference_text=reference.text[parting : parting + SHOWN_CHARACTERS],
    )


def common(one: Sequence[object], other: Sequence[object]) -> int:
    """Tokens or characters before the first that differs."""
    if one == other:
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _token(ids: Sequence[int], at: int) -> int | None:
    return ids[at] if at < len(ids) else None


def _kind(mine: int | None, theirs: int | None, stop: Collection[int]) -> Kind:
    if mine is None or theirs is None:
        return "same" if mine == theirs else "cut short" if mine is None else "runs on"
    return "ends earlier" if mine in stop else "ends later" if theirs in stop else "token"


def _gap(reference: Told, at: int, mine: int | None, theirs: int | None) -> tuple[float | None, bool]:
    """By the reference alone: what it would have lost with the other's token; and whether that is a lower bound."""
    own, top = reference.chosen_at(at), reference.top_at(at)
    if mine is None or theirs is None or own is None or not top:
        return None, False
    if mine in top:
        return own - top[mine], False
    return own - min(top.values()), True


def _pairs(reference: Told, other: Told, count: int) -> Iterator[tuple[int, float, float]]:
    """Position and log-probabilities of the first `count` tokens, where both tell them."""
    for at in range(count if reference.chosen is not None and other.chosen is not None else 0):
        a, b = reference.chosen_at(at), other.chosen_at(at)
        if a is not None and b is not None:
            yield at, a, b


def _divergences(reference: Told, other: Told, count: int) -> Iterator[float]:
    for at in range(count if reference.k and other.k else 0):
        p, q = reference.top_at(at), other.top_at(at)
        if p and q:
            yield divergence(p, q)


def _scores(reference: Told, other: Told) -> Distance:
    """The tokens are given, so every position has the same past."""
    count = min(len(reference.chosen or ()), len(other.chosen or ()))
    pairs = list(_pairs(reference, other, count))
    kls = list(_divergences(reference, other, count))
    worst = max(pairs, key=lambda pair: abs(pair[1] - pair[2]), default=None)
    return Distance(
        other.prompt_id,
        "scored",
        at=None if worst is None else worst[0],
        kl_sum=sum(kls),
        kl_max=max(kls, default=None),
        positions=len(kls),
        delta_max=None if worst is None else abs(worst[1] - worst[2]),
        nll=-sum(b for _, _, b in pairs),
        reference_nll=-sum(a for _, a, _ in pairs),
        tokens=len(pairs),
        untold=max(len(reference.chosen or ()), len(other.chosen or ())) - len(pairs),
    )


def divergence(p: Mapping[int, float], q: Mapping[int, float]) -> float:
    """A lower bound of KL(p ‖ q) in nats, from the log-probabilities of the k likeliest tokens of each.

    Tokens that both list are kept apart, all that p lists alone become one bucket A, the rest of the
    vocabulary another. Joining outcomes never raises a KL divergence (the log sum inequality; Cover and
    Thomas, Elements of Information Theory, 2.7.1). What q gives to A is not told, but no token of it can
    be likelier than the last that q lists: of what that leaves open, the value with the least divergence is taken.
    """
    shared = p.keys() & q.keys()
    alone = [math.exp(value) for token, value in p.items() if token not in shared]
    apart = sum(math.exp(p[token]) * (p[token] - q[token]) for token in shared)
    p_alone = sum(alone)
    p_rest = max(1 - sum(math.exp(p[token]) for token in shared) - p_alone, LEAST_SHARE)
    q_open = max(1 - sum(math.exp(q[token]) for token in shared), LEAST_SHARE)
    if not p_alone:
        return max(apart + p_rest * math.log(p_rest / q_open), 0.0)
    most = len(alone) * math.exp(min(q.values()))
    q_alone = max(min(q_open * p_alone / (p_alone + p_rest), most), LEAST_SHARE)
    q_rest = max(q_open - q_alone, LEAST_SHARE)
    return max(apart + p_alone * math.log(p_alone / q_alone) + p_rest * math.log(p_rest / q_rest), 0.0)
