"""What is known of one point under way, and what its failures have cost so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from orchestrator.config import Policies
from orchestrator.definition.inputs import Prompt
from orchestrator.outcomes import Cause
from orchestrator.plan import SweepPoint
from orchestrator.record.output import Record
from orchestrator.schedule import BatchPlan, Queue
from protocol.specs import CallParams, PromptBatch

#: However much a point measures in between: each death costs a load.
MOST_DEATHS = 20
#: What makes one load fail so makes every load of the same settings fail.
LASTING = frozenset({"environment", "config", "model"})


class Earlier(NamedTuple):
    """What earlier lives of the run left of one point: the prompts that have a record, and of those
    whose record is an error why, the first one first."""

    done: frozenset[str] = frozenset()
    bad: Mapping[str, Cause] = MappingProxyType({})


class Flight(NamedTuple):
    """A batch that is out."""

    batch: PromptBatch
    planned: BatchPlan

    @classmethod
    def of(
        cls,
        point: SweepPoint,
        planned: BatchPlan,
        prompts: Mapping[str, Prompt],
        *,
        warmup: bool,
        most_tokens: int | None = None,
    ) -> Flight:
        call = CallParams.of(point.config)
        inputs = [prompts[i].sent(call.task) for i in planned.prompt_ids]
        if most_tokens is not None:
            call = replace(call, max_new_tokens=min(most_tokens, call.max_new_tokens))
        return cls(PromptBatch(planned.batch_id, inputs, call, warmup), planned)


class Doubt(NamedTuple):
    """A failed batch whose worker lives: the prompts' fault or the process's?"""

    flight: Flight
    cause: Cause


@dataclass
class PointState:
    """`warm_in` is the incarnation that has run its warm-up; `cause` the first that cost a
    prompt; `crash` the last that cost a worker; `spent` the fresh workers by class of cause, `deaths` all of them."""

    point: SweepPoint
    queue: Queue
    good: int = 0
    errors: int = 0
    deaths: int = 0
    spent: Counter[str] = field(default_factory=Counter)
    poisoned_chunk: str = ""
    warmups_left: int = 0
    warm_in: str = ""
    warmup_failed: bool = False
    cause: Cause | None = None
    crash: Cause | None = None

    def died(self, cause: Cause) -> None:
        self.crash = cause
        self.deaths += 1

    def convict(self, batch_id: str, cause: Cause, *, crash: bool) -> None:
        """The first prompt that is found in each chunk is free of charge."""
        if crash:
            chunk, _, _ = batch_id.partition(".")
            self.spent[cause.cls] += chunk == self.poisoned_chunk
            self.poisoned_chunk = chunk

    def note(self, records: Iterable[Record]) -> None:
        """A good record gives the point all its fresh workers back."""
        errors = [record.error for record in records if record.error is not None]
        good = sum(record.error is None for record in records)
        self.cause = self.cause or (errors[0] if errors else None)
        self.errors += len(errors)
        self.good += good
        if good:
            self.spent.clear()

    def is_spent(self, cause: Cause, policies: Policies) -> bool:
        return self.spent[cause.cls] > policies.of(cause.cls).times or self.deaths > MOST_DEATHS


@dataclass
class Loads:
    """What failed loads have cost one worker start. `refusal`: why none like it can succeed."""

    policies: Policies
    failures: Counter[str] = field(default_factory=Counter)
    refusal: Cause | None = None

    def failed(self, cause: Cause) -> Cause | None:
        """The cause to give the start up for, once its class has spent its loads."""
        self.failures[cause.cls] += 1
        policy = self.policies.of(cause.cls)
        if self.failures[cause.cls] <= policy.loads:
            return None
        spent = replace(cause, policy=policy.of_loads)
        self.refusal = spent if cause.cls in LASTING else None
        return spent


@dataclass
class Prober:
    """Which prompt to ask an engine that has just failed at another."""

    prompts: Mapping[str, Prompt]
    good: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)

    def answered(self, prompts: Iterable[str]) -> None:
        """They are measured: if one failed as a probe before, it was the process that failed."""
        self.good.update(prompts)
        self.bad -= self.good

    def choose(self, queue: Queue, failed: Iterable[str]) -> str | None:
        """One that was answered before, else one that was part of no failure; the shortest, as
        length is what most often makes a prompt fail. None if there is none."""
        barred = self.bad | set(failed)
        for group in (self.good, queue.clean):
            if left := [p for p in group if p not in barred]:
                return min(left, key=lambda p: (len(self.prompts[p].token_ids), p))
        return None
