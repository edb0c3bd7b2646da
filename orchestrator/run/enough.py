"""When a cell has been measured often enough: by the very interval that the results show. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.definition.measurement import Measurement
from orchestrator.view import stats
from orchestrator.view.wording import rate_text


def enough(repeats: Sequence[tuple[int, float]], rule: Measurement) -> str:
    """Why no more repeats are needed, in words; "" if they are. `repeats`: tokens and seconds of those so far, each
    above 0."""
    if rule.stop_early is None or len(repeats) < rule.least:
        return ""
    found = stats.rate(*zip(*repeats, strict=True))
    interval = found.interval(rule.confidence) if found else None
    if found is None or interval is None or interval.half > rule.stop_early * found.value:
        return ""
    said = f"{rate_text(found.value, interval.half)} tokens/s at confidence {rule.confidence:.4g}"
    return f"{len(repeats)} repeats gave {said}, within stop_early {rule.stop_early:.4g}"
