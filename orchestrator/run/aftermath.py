"""What follows a batch that gave nothing, by the policy of its cause's class: for its queue, and at what cost."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.definition.limits import Policy
from orchestrator.outcomes import Cause
from orchestrator.run.tally import Flight, PointState
from orchestrator.schedule import BatchPlan


class Aftermath(NamedTuple):
    """
    give_up    its point ends here
    fresh      its process lives, and is of no more use
    convicted  prompts that get an error record
    """

    give_up: bool = False
    fresh: bool = False
    convicted: tuple[str, ...] = ()


def follow(
    state: PointState, flight: Flight, cause: Cause, policy: Policy, *, crash: bool, engine_works: bool
) -> Aftermath:
    """`crash`: its process went with it. `engine_works`: it has answered something, in this point or before."""
    batch, planned = flight
    if policy.do == "give_up" or (batch.warmup and crash and not policy.times):
        return Aftermath(give_up=True)
    if batch.warmup:  # one worker that it kills is free, as those of a search are
        # Alive, the process is not proved to work: what fails in it next is the first failure of its prompts.
        (state.queue.failed if crash else state.queue.again)(batch.batch_id)
        state.warmup_failed, state.warmups_left = True, 0
        return Aftermath()
    if policy.do == "halve":
        return Aftermath(convicted=_halve(state, planned, cause, crash=crash, engine_works=engine_works))
    state.queue.again(batch.batch_id)
    state.spent[cause.cls] += 1
    if not crash:  # it costs a load all the same
        state.deaths += 1
    return Aftermath(fresh=not crash)


def _halve(state: PointState, planned: BatchPlan, cause: Cause, *, crash: bool, engine_works: bool) -> tuple[str, ...]:
    """The prompts that have failed alone twice, in an engine that works."""
    if crash and not planned.again and (planned.depth == 0 or (planned.depth > 1 and not engine_works)):
        state.spent[cause.cls] += 1  # else it is part of a search, which is free once the engine is known to work
    failed = state.queue.failed(planned.batch_id, engine_works=engine_works)
    if failed and not engine_works:
        state.queue.later(planned)
        state.spent[cause.cls] += 1
        return ()
    for _ in failed:
        state.convict(planned.batch_id, cause, crash=crash)
    return failed
