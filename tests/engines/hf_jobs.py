"""Jobs for methods of Transformers, and what is read out of their results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import msgpack
from msgspec.structs import replace

from protocol.records import Generation, Logprobs
from protocol.specs import PromptBatch, unpack_ids
from tests.engines import hf_run
from tests.engines.conftest import Prompts
from tests.engines.driver import ANSWER_S, batch, config
from tests.engines.hf_run import Job, Result

NEW_TOKENS = 12
TOP = 3


def job(model: str, batches: Sequence[PromptBatch], method: Mapping[str, Any], **fields: Any) -> Job:
    return Job(
        config("hf", model, method=method, **{"batch_size": 4, "max_new_tokens": NEW_TOKENS, **fields}), [*batches]
    )


def of(prompts: Prompts, *names: str, **call: Any) -> PromptBatch:
    ids = {name: prompts.ids[name] for name in names or prompts.ids}
    return batch("b", ids, prompts.stop, **{"max_new_tokens": NEW_TOKENS, **call})


def to_score(prompts: Prompts, generations: Sequence[Generation]) -> PromptBatch:
    """What was generated, as continuations of the same prompts."""
    whole = {g.prompt_id: prompts.ids[g.prompt_id] + unpack_ids(g.token_ids) for g in generations}
    given = batch("score", whole, prompts.stop, task="score", logprobs=TOP)
    return replace(given, prompts=[replace(one, score_from=len(prompts.ids[one.id])) for one in given.prompts])


def run(python: str, folder: Path, *jobs: Job) -> list[Result]:
    request, response = folder / "jobs", folder / "results"
    request.write_bytes(msgpack.encode(jobs))
    command = [python, hf_run.__file__, str(request), str(response)]
    subprocess.run(command, timeout=ANSWER_S, stdout=sys.stderr, check=True)
    return msgpack.decode(response.read_bytes(), type=list[Result])


def ids(done: Sequence[Generation]) -> dict[str, list[int]]:
    return {generation.prompt_id: unpack_ids(generation.token_ids) for generation in done}


def told(generation: Generation) -> Logprobs:
    assert generation.logprobs is not None
    return generation.logprobs
