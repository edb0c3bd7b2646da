"""After a run: whether other slots were at work while some methods were measured and not while others were. Pure.

Workers on GPUs of their own, with CPUs of their own, have power and the way to the host's memory in common: that is
noted. Workers that compute on CPUs share what their speed is made of, memory bandwidth and caches: that is warned of.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.judge.findings import Finding

ALONE = "alone"


def lint(crowded: Mapping[str, Mapping[str, bool]], *, on_gpus: bool) -> list[Finding]:
    """`crowded`: method → point → whether something ran on another slot during one of its batches. Points that were
    not measured are left out. `on_gpus`: each worker had some of its own."""
    who = {method: _told(list(points.values())) for method, points in crowded.items() if points}
    if ALONE not in who.values() or set(who.values()) == {ALONE}:
        return []
    return [
        Finding(
            level="note" if on_gpus else "warning",
            what="company",
            who=who,
            why="work on other slots takes memory bandwidth, caches and power, and not all methods had it beside them",
            advice="devices: {exclusive: true} lets one worker run at a time",
            points=tuple(point for points in crowded.values() for point, beside in points.items() if beside),
        )
    ]


def _told(points: list[bool]) -> str:
    if not any(points):
        return ALONE
    return "beside work on other slots" + ("" if all(points) else f" in {sum(points)} of {len(points)} points")
