"""What a worker tells of each token, asked for and held against itself; the same for every engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from protocol.messages import BatchDone
from protocol.records import Generation, Logprobs, RuntimeMetadata
from protocol.specs import BackendConfig, PromptBatch, PromptInput, unpack_floats, unpack_ids
from tests.engines.conftest import Prompts
from tests.engines.driver import Worker, batch

K = 3
#: Prefill and decoding round differently, in float32 too.
SAME_NATS = 1e-3

Start = Callable[..., Worker]


@contextmanager
def starting(python: str, engine: str) -> Iterator[Start]:
    """Starts workers, each in a folder with a short path: that of a socket holds 107 bytes. Nothing of them is left."""
    folders: list[tempfile.TemporaryDirectory[str]] = []
    workers: list[Worker] = []

    def begin(**env: str) -> Worker:
        folders.append(tempfile.TemporaryDirectory(prefix="al-t"))
        workers.append(Worker(python, engine, Path(folders[-1].name), env))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.close()
        assert worker.survivors() == []
    for folder in folders:
        folder.cleanup()


@dataclass(frozen=True)
class Record:
    """What one worker said. `metadata` is of the load, `last` of the end. `plain`: the greedy call once more, without
    log-probabilities."""

    metadata: RuntimeMetadata
    last: RuntimeMetadata
    greedy: BatchDone
    greedy_scored: BatchDone
    hot: BatchDone
    hot_scored: BatchDone
    plain: BatchDone


def record(worker: Worker, settings: BackendConfig, prompts: Prompts, new_tokens: int, stop: Sequence[int]) -> Record:
    """Each output is scored again, by a hot call and by a cold one. `stop`: of the greedy calls."""
    metadata = worker.load(settings).metadata
    call: dict[str, Any] = {"max_new_tokens": new_tokens}
    greedy = worker.run(batch("greedy", prompts.ids, stop, logprobs=K, **call))
    hot = worker.run(batch("hot", prompts.ids, (), logprobs=K, temperature=1.7, seed=3, **call))
    greedy_scored = worker.run(scoring("s1", prompts.ids, greedy, temperature=1.7))
    hot_scored = worker.run(scoring("s2", prompts.ids, hot))
    plain = worker.run(batch("plain", prompts.ids, stop, **call))
    goodbye, _ = worker.end()
    assert goodbye.metadata is not None
    return Record(metadata, goodbye.metadata, greedy, greedy_scored, hot, hot_scored, plain)


def scoring(name: str, ids: Mapping[str, Sequence[int]], done: BatchDone, **call: Any) -> PromptBatch:
    """To score what `done` generated."""
    whole = {one.prompt_id: [*ids[one.prompt_id], *unpack_ids(one.token_ids)] for one in done.generations}
    asked = batch(name, whole, (), task="score", logprobs=K, **call)
    return replace(asked, prompts=[PromptInput(p.id, p.token_ids, len(ids[p.id])) for p in asked.prompts])


def by_id(done: BatchDone) -> dict[str, Generation]:
    return {generation.prompt_id: generation for generation in done.generations}


def ids_of(done: BatchDone) -> dict[str, list[int]]:
    return {name: unpack_ids(one.token_ids) for name, one in by_id(done).items()}


def told(generation: Generation) -> Logprobs:
    assert generation.logprobs is not None
    return generation.logprobs


def check_scores(made: BatchDone, scored: BatchDone) -> None:
    """An output that is scored has the log-probabilities that it was made with."""
    outputs, scores = by_id(made), by_id(scored)
    assert outputs.keys() == scores.keys()
    for name, output in outputs.items():
        score, own, again = scores[name], told(output), told(scores[name])
        assert (score.finish_reason, score.generated_tokens, score.error) == ("scored", 0, "")
        assert score.prompt_tokens == output.prompt_tokens + output.generated_tokens
        assert unpack_floats(again.chosen) == pytest.approx(unpack_floats(own.chosen), abs=SAME_NATS)
        assert unpack_floats(again.top) == pytest.approx(unpack_floats(own.top), abs=SAME_NATS)


def check_likeliest(greedy: BatchDone) -> None:
    """At each position the token itself is the likeliest."""
    for output in greedy.generations:
        own, ids = told(output), unpack_ids(output.token_ids)
        assert (own.k, len(unpack_floats(own.chosen))) == (K, output.generated_tokens)
        assert unpack_ids(own.top_ids)[::K] == ids
        assert unpack_floats(own.top)[::K] == unpack_floats(own.chosen)


def draws_others(hot: BatchDone) -> bool:
    """Whether a hot call took unlikely tokens: else its scores would say nothing of temperature."""
    return any(unpack_ids(told(one).top_ids)[::K] != unpack_ids(one.token_ids) for one in hot.generations)
