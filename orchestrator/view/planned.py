"""A plan as text: the points by worker start, in the order they run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.definition import fits
from orchestrator.definition.clusteruse import cluster_text
from orchestrator.definition.durations import duration_text
from orchestrator.plan import Plan, WorkerStart
from orchestrator.view.wording import counted
from protocol.specs import call_fields, load_fields


def render(plan: Plan, place: Sequence[str] = ()) -> Iterator[str]:
    """What `plan` prints first. `place`: what workers on this machine run on."""
    points, starts = counted(len(plan.points), "point"), counted(len(plan.starts), "worker start")
    yield f"{plan.name}: {points}, {counted(len(plan.prompt_ids), 'prompt')} each, {starts}"
    yield f"model {plan.model.name}, prompts {plan.prompts_digest}, plan {plan.digest}"
    yield from place
    yield from _conduct_lines(plan)
    yield from plan.notes
    varying = fits.varying([p.config for p in plan.points])
    load = [name for name in varying if name in load_fields()]
    call = [name for name in varying if name in call_fields()]
    for number, start in enumerate(plan.starts, 1):
        yield from _start_lines(number, start, load, call, plan)


def _conduct_lines(plan: Plan) -> Iterator[str]:
    measurement = plan.measurement
    yield f"order {measurement.order_text}"
    if plan.stop_after_s is not None:
        yield f"each start of the run ends after {duration_text(plan.stop_after_s)}"
    if plan.launcher != "local":
        yield f"workers on {cluster_text(plan.launcher, plan.cluster)}"
        yield "which GPUs and how much memory the nodes have is known once workers run there"
    can_act = plan.repeats > measurement.least and any(point.config.task == "generate" for point in plan.points)
    if measurement.stop_early is not None and can_act:
        level, share = f"{measurement.confidence:.4g}", f"{measurement.stop_early:.4g}"
        least = counted(measurement.least, "repeat")
        yield f"a cell ends after {least} or more, once its {level} interval of tokens/s is within {share} of it"


def _start_lines(
    number: int, start: WorkerStart, load: Sequence[str], call: Sequence[str], plan: Plan
) -> Iterator[str]:
    """`load`, `call`: the fields that differ within the plan."""
    settings = f"  {fits.label(start.config, load)}" if load else ""
    yield ""
    own = f"; worker {start.config.method.worker[0]}" if start.config.method.worker else ""
    yield f"{number}. {start.config.method.name}  (environment {start.env}{own}){settings}"
    for point in start.points:
        which = f"  repeat {point.repeat + 1} of {plan.repeats}" if plan.repeats > 1 else ""
        if point.role == "drift":
            which = "  once more, for drift"
        yield f"   {point.id}  {fits.label(point.config, call) or f'batch_size={point.config.batch_size}'}{which}"
