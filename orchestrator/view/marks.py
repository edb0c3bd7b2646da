"""Which rows must not be compared as they are, and why: what the results mark before they show a speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.judge import company, fairness
from orchestrator.judge.agreement import Agreement
from orchestrator.judge.effective import Ran
from orchestrator.judge.findings import Finding
from orchestrator.judge.ran import lint
from orchestrator.judge.readback import resolved
from orchestrator.judge.reference import reference_method
from orchestrator.plan import SweepPoint, WorkerStart
from orchestrator.view.burden import last_metadata
from orchestrator.view.runview import RunView, Worker
from orchestrator.view.wording import clean

MARK = "*"
#: Not alone: that is no reason against a comparison as long as all methods had company.
COMPANY = "&"


def marks(view: RunView) -> dict[str, list[str]]:
    """Point → why its figures may not be compared as they are, its outputs apart; points without a reason are left
    out."""
    found: dict[str, list[str]] = {}
    for finding in (*before(view), *findings(view)):
        for point in finding.points if finding.level == "warning" else ():
            found.setdefault(point, []).append(clean(finding.text))
    return found


def of_outputs(agreement: Agreement) -> Iterator[str]:
    if agreement.bad:
        yield f"outputs {agreement.verdict}"


def before(view: RunView) -> list[Finding]:
    """Out of what is asked of the methods, as `plan` told it. A warning says what ran; one that nothing read back
    settles has the points that it is about."""
    found = fairness.lint([point.config for point in view.plan.listed if point.role == "measure"])
    return resolved(found, _all_ran(view), findings(view), reference_method(view.plan))


def findings(view: RunView) -> list[Finding]:
    """Out of what the workers said that they ran with, and what ran beside them; warnings first."""
    on_gpus = all(start.config.device == "cuda" for start in view.plan.starts)
    found = [*company.lint(_crowded(view), on_gpus=on_gpus), *lint(_all_ran(view), reference_method(view.plan))]
    return sorted(found, key=lambda one: one.level != "warning")


def _crowded(view: RunView) -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = {}
    for point in view.plan.listed:
        stand = view.replay.stands.get(point.id)
        if stand and stand.records and point.role == "measure":
            found.setdefault(point.method, {})[point.id] = stand.crowded
    return found


def _all_ran(view: RunView) -> list[Ran]:
    starts = {point.id: start for start in view.plan.starts for point in start.points}
    ran = (_ran(worker, starts, view.points) for worker in view.workers.values())
    return [one for one in ran if one is not None]


def _ran(worker: Worker, starts: dict[str, WorkerStart], points: Mapping[str, SweepPoint]) -> Ran | None:
    """Its last word; what it said when it became ready where it had no other. None if it never did."""
    start = next((starts[point] for point in worker.points if point in starts), None)
    last = last_metadata(worker)
    if worker.ready is None or start is None or last is None:
        return None
    return Ran(
        incarnation=worker.launched.incarnation,
        config=start.config,
        metadata=last,
        points=tuple(worker.points),
        fingerprint=worker.launched.fingerprint,
        sampled=any(points[one].config.temperature > 0 for one in worker.points if one in points),
    )
