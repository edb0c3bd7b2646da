"""Shares of right answers, mean scores and their differences, with intervals. Prompts are the independent units: what
the repeats of one prompt say hangs together, so each prompt is one value, the mean over its repeats.

share       Wilson's score interval (Wilson, 1927). Where repeats of a prompt differ it is made for as many outputs as
            would be worth the same if all were independent: Kish's effective number (Kish, 1965), which is
            share × (1 − share) / the variance of the prompts' mean
mean        Student's t over prompts
difference  of shares, over the prompts that both have: Bonett and Price's interval (2012), and McNemar's exact test
            (McNemar, 1947), which is the sign test of the prompts at which one is better. Both must say so for two to
            be told apart. Of means Student's t over the prompts' differences
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from orchestrator.view.stats import Interval


def share_interval(values: Sequence[float], outputs: int, confidence: float) -> Interval:
    """Of the mean of prompts' shares, one or more; `outputs`: of how many in all."""
    share = mean(values)
    return wilson(share, effective(values, outputs), confidence)


def wilson(share: float, count: float, confidence: float) -> Interval:
    z = _normal(confidence)
    weight = z * z / count
    middle = (share + weight / 2) / (1 + weight)
    reach = z / (1 + weight) * math.sqrt(max(share * (1 - share), 0.0) / count + weight / (4 * count))
    return Interval(max(0.0, middle - reach), min(1.0, middle + reach))


def effective(values: Sequence[float], outputs: int) -> float:
    """Between the number of prompts, where all outputs of each are alike, and that of outputs."""
    share = mean(values)
    variance = math.fsum((value - share) ** 2 for value in values) / len(values)
    alone = share * (1 - share)
    return min(float(outputs), len(values) * alone / variance) if variance > 0 and alone > 0 else float(len(values))


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def mean_interval(values: Sequence[float], confidence: float, low: float = 0.0) -> Interval:
    """Of two values or more, each from `low` to 1."""
    from orchestrator.view import resample

    middle = mean(values)
    variance = math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
    reach = resample.student_t(len(values) - 1, (1 + confidence) / 2) * math.sqrt(variance / len(values))
    return Interval(max(low, middle - reach), min(1.0, middle + reach))


def difference_interval(differences: Sequence[float], confidence: float) -> Interval:
    """Of shares at the same prompts, one or more: as if one more prompt had gone each way."""
    count = len(differences) + 2
    middle = math.fsum(differences) / count
    variance = (math.fsum(one * one for one in differences) + 2) / count - middle**2
    reach = _normal(confidence) * math.sqrt(max(variance, 0.0) / count)
    return Interval(max(-1.0, middle - reach), min(1.0, middle + reach))


def sign_test(better: int, worse: int) -> float:
    """The probability of a split as uneven as this one, or more, if each way were as likely."""
    count = better + worse
    tail = math.fsum(math.exp(_log_choose(count, k) - count * math.log(2)) for k in range(min(better, worse) + 1))
    return min(1.0, 2 * tail)


def percentiles(values: Sequence[float], confidence: float) -> Interval:
    """Of resamples: the bootstrap's interval (Efron, 1979; of BLEU: Koehn, 2004)."""
    ordered = sorted(values)
    beyond = (1 - confidence) / 2 * (len(ordered) - 1)
    return Interval(ordered[math.floor(beyond)], ordered[math.ceil(len(ordered) - 1 - beyond)])


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def _normal(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
