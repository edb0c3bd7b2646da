"""When a cell has been measured often enough. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from orchestrator.definition.measurement import Measurement


def enough(rates: Sequence[float], rule: Measurement) -> str:
    """Why no more repeats are needed, in words; "" if they are. `rates`: tokens/s of those so far, each above 0."""
    if rule.stop_early is None or len(rates) < max(rule.least_repeats, 2):
        return ""
    mean, half = statistics.fmean(rates), half_width(rates, rule.confidence)
    if not half <= rule.stop_early * mean:  # an endless interval of equal rates is no number
        return ""
    found = f"{mean:.1f} ± {half:.1f} tokens/s at confidence {rule.confidence:.4g}"
    return f"{len(rates)} repeats gave {found}, within stop_early {rule.stop_early:.4g}"


def half_width(rates: Sequence[float], confidence: float) -> float:
    """Of Student's interval of their mean: t · s / √n, with n - 1 degrees of freedom and both tails cut off."""
    from orchestrator.view.resample import student_t  # numpy and scipy: only where a sweep asks for it

    count = len(rates)
    t = student_t(count - 1, (1 + confidence) / 2)
    return t * statistics.stdev(rates) / math.sqrt(count)
