"""What an engine gave for a prompt, as the record that is kept. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from orchestrator.definition.inputs import Prompt
from orchestrator.events import Event
from orchestrator.outcomes import Cause
from orchestrator.plan import SweepPoint
from orchestrator.provenance import HostUse
from orchestrator.record.output import Record, RecordLogprobs
from orchestrator.run.joining import join
from orchestrator.run.tally import Flight
from orchestrator.schedule import BatchPlan
from protocol.records import (
    FLAG_BAD_LOGPROBS,
    FLAG_NO_LOGPROBS,
    FLAG_SPLIT_BATCH,
    FLAG_SURPLUS_RESULTS,
    BatchStats,
    Generation,
    Logprobs,
)
from protocol.specs import unpack_floats, unpack_ids

T = TypeVar("T")


class Beside(NamedTuple):
    """What else ran while a batch did: on the host, and which other workers of this run, "slot1: vllm_default"."""

    host: HostUse | None = None
    neighbours: tuple[str, ...] = ()


NOTHING = Beside()


class Book(Protocol):
    """Where what happens is written down."""

    def emit(self, event: Event) -> None: ...

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: list[Record],
        stats: BatchStats | None,
        flags: list[str],
        beside: Beside,
    ) -> None: ...


class Kept(NamedTuple):
    """What is written down of a batch: its records, its own flags, and the prompts with a good answer."""

    records: list[Record]
    flags: list[str]
    good: Sequence[str] = ()


def kept(
    point: SweepPoint,
    flight: Flight,
    incarnation: str,
    generations: list[Generation],
    prompts: Mapping[str, Prompt],
    flags: Sequence[str],
) -> Kept:
    """Of a batch that was answered: a record for every prompt, an error record where the answer is none."""
    batch, planned = flight
    joined = join(batch, generations, {i: prompts[i].sent_digest(batch.call.task) for i in planned.prompt_ids})
    flags = [*([FLAG_SPLIT_BATCH] if planned.split else []), *flags]
    records = [record_of(point, planned, incarnation, generation, flags) for generation in joined.good]
    for prompt_id, fault in joined.bad.items():
        cause = Cause(cls="engine_error", message=fault, phase="busy", policy="record")
        records.append(error_record(point, planned, incarnation, prompts[prompt_id], cause))
    surplus = [FLAG_SURPLUS_RESULTS] if joined.surplus else []
    return Kept(records, [*flags, *surplus], [generation.prompt_id for generation in joined.good])


def record_of(
    point: SweepPoint, planned: BatchPlan, incarnation: str, generation: Generation, flags: Sequence[str]
) -> Record:
    return Record(
        point=point.id,
        batch=planned.batch_id,
        method=point.method,
        prompt_id=generation.prompt_id,
        prompt_digest=generation.prompt_digest,
        prompt_tokens=generation.prompt_tokens,
        text=generation.text,
        token_ids=unpack_ids(generation.token_ids),
        generated_tokens=generation.generated_tokens,
        finish_reason=generation.finish_reason,
        ttft_s=generation.ttft_s,
        latency_s=generation.latency_s,
        batch_size=len(planned.prompt_ids),
        repeat=point.repeat,
        incarnation=incarnation,
        itl_s=None if generation.itl_s is None else unpack_floats(generation.itl_s),
        logprobs=None if generation.logprobs is None else _logprobs(generation.logprobs),
        flags=[*generation.flags, *_lacking(point, generation), *flags],
    )


def _lacking(point: SweepPoint, generation: Generation) -> list[str]:
    """Log-probabilities that were asked for and did not come: a worker that overlooks the request must not look as if
    nobody had made it."""
    asked = point.config.logprobs or point.config.task == "score"
    told = generation.logprobs is not None or FLAG_BAD_LOGPROBS in generation.flags
    empty = not generation.generated_tokens and point.config.task == "generate"
    return [] if told or empty or not asked else [FLAG_NO_LOGPROBS]


def _logprobs(packed: Logprobs) -> RecordLogprobs:
    return RecordLogprobs(
        chosen=unpack_floats(packed.chosen),
        top_ids=_rows(unpack_ids(packed.top_ids), packed.k),
        top=_rows(unpack_floats(packed.top), packed.k),
    )


def _rows(flat: list[T], width: int) -> list[list[T]]:
    return [flat[at : at + width] for at in range(0, len(flat), width)] if width else []


def error_record(point: SweepPoint, planned: BatchPlan, incarnation: str, prompt: Prompt, cause: Cause) -> Record:
    """The record of a prompt that gave nothing."""
    task = point.config.task
    return Record(
        point=point.id,
        batch=planned.batch_id,
        method=point.method,
        prompt_id=prompt.id,
        prompt_digest=prompt.sent_digest(task),
        prompt_tokens=prompt.sent_tokens(task),
        text="",
        token_ids=[],
        generated_tokens=0,
        finish_reason="error",
        ttft_s=None,
        latency_s=None,
        batch_size=len(planned.prompt_ids),
        repeat=point.repeat,
        incarnation=incarnation,
        error=cause,
    )
