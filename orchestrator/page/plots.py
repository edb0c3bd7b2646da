"""The plots of a run as Vega-Lite specifications. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.page.answerplot import of_answers
from orchestrator.page.burdenplots import of_burden
from orchestrator.page.heatplot import of_agreement
from orchestrator.page.plot import Plot
from orchestrator.page.speedplots import of_speed
from orchestrator.page.timeplot import of_time

__all__ = ["Plot", "absent", "plots"]

#: As many as the tables show.
MOST_ROWS: Final = 500


def plots(data: Mapping[str, Any]) -> list[Plot]:
    """`data`: what `report --json` gives. A plot that has nothing to show is left out."""
    rows, timeline = data["rows"][:MOST_ROWS], data.get("timeline")
    answers = [*of_answers(rows), *of_agreement(rows, data["agreement"])]
    return [*of_speed(rows), *answers, *of_burden(rows, timeline), *of_time(timeline)]


def absent(data: Mapping[str, Any]) -> dict[str, str]:
    """Why there is no such plot, for those that `plots` leaves out, a sentence each."""
    rows, drawn = data["rows"][:MOST_ROWS], {plot.id for plot in plots(data)}
    speeds = [row for row in rows if row[row["compared_by"]] is not None]
    nothing = f"Nothing to plot yet: {_unmeasured(data)}."
    scores = any(row["compared_by"] == "total_tokens_per_s" for row in rows)
    no_times = "nothing is generated where the task is to score" if scores else "no engine of this run tells it"
    whys = {
        "speed-ttft": f"Speed against TTFT is not drawn: {no_times}." if speeds else nothing,
        "speed-tpot": f"Speed against TPOT is not drawn: {no_times}." if speeds else "",
        "batch-sizes": "Speed by batch size is not drawn: all rows have one batch size." if speeds else "",
        "agreement": "Agreement is not drawn: no outputs were held against those of another method or repeat.",
        "load": "Times to load are not drawn: no worker became ready.",
        "memory": "Memory is not drawn: no worker told how much it held.",
        "timeline": "The timeline is not drawn: no worker was started.",
    }
    return {name: why for name, why in whys.items() if why and name not in drawn}


def _unmeasured(data: Mapping[str, Any]) -> str:
    if data["state"] == "running":
        return "no batch of this run has been measured so far"
    return f"the run is {data['state']} and no batch of it was measured"
