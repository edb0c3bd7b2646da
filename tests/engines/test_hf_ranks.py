"""Tensor parallelism of Transformers: a process for each rank, on a CPU over gloo."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from protocol.messages import Fatal
from protocol.specs import PromptBatch, unpack_floats
from tests.engines.conftest import FindPython, Prompts
from tests.engines.driver import EXIT_S, MAX_MODEL_LEN, Worker, batch
from tests.engines.hf_jobs import NEW_TOKENS, TOP, ids, job, of, run, to_score, told
from tests.engines.hf_run import Result
from workers.backends.hf_ranks import TITLE

pytestmark = pytest.mark.engine

NGRAM = {"min_n": 1, "max_n": 3, "draft_tokens": 4}
MOE_LAYERS, EXPERTS = 2, 8


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: the path of a socket holds 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="al-t") as name:
        yield Path(name)


@pytest.fixture
def worker(engine_env: FindPython, folder: Path) -> Iterator[Worker]:
    started = Worker(engine_env("hf"), "hf", folder)
    yield started
    started.close()


def alone(python: str, model: str, *batches: PromptBatch, **method: object) -> Result:
    with tempfile.TemporaryDirectory(prefix="al-t") as name:
        (found,) = run(python, Path(name), job(model, batches, method))
    return found


def test_two_ranks_give_what_one_process_gives(
    worker: Worker, engine_env: FindPython, tiny_llama: str, prompts: Prompts
) -> None:
    asked = of(prompts, logprobs=TOP)
    expected = alone(engine_env("hf"), tiny_llama, asked)
    found = worker.load(job(tiny_llama, [], {}, tensor_parallel_size=2).config).metadata
    done = worker.run(asked)
    scored = worker.run(to_score(prompts, done.generations))
    sampled = [ids(worker.run(of(prompts, temperature=1.0, seed=7)).generations) for _ in range(2)]
    goodbye, status = worker.end()
    assert (found.settings.tensor_parallel_size, found.settings.pipeline_parallel_size, found.flags) == (2, 1, [])
    assert ids(done.generations) == ids(expected.done[0].generations)
    for one, other in zip(done.generations, expected.done[0].generations, strict=True):
        assert unpack_floats(told(one).chosen) == pytest.approx(unpack_floats(told(other).chosen), abs=1e-3)
    for one, other in zip(scored.generations, done.generations, strict=True):
        assert unpack_floats(told(one).chosen) == pytest.approx(unpack_floats(told(other).chosen), abs=1e-3)
    assert sampled[0] == sampled[1] != ids(done.generations)
    assert expected.metadata
    whole = expected.metadata.memory.weights_bytes or 0
    assert whole < (found.memory.weights_bytes or 0) < 2 * whole, "what is not shared out lies in both ranks"
    assert (status, worker.survivors()) == (0, [])
    assert goodbye.metadata
    assert (found.stop_token_ids, goodbye.metadata.stop_token_ids) == (None, prompts.stop), "read back from what ran"


def test_a_batch_that_is_not_admitted_leaves_the_ranks_in_step(
    worker: Worker, engine_env: FindPython, tiny_llama: str, prompts: Prompts
) -> None:
    one_by_one = [of(prompts, name) for name in prompts.ids]
    expected = alone(engine_env("hf"), tiny_llama, *one_by_one)
    worker.load(job(tiny_llama, [], {"ngram": NGRAM}, tensor_parallel_size=2).config)
    found = []
    for single in one_by_one:
        assert "one prompt at a time" in worker.fail(of(prompts)).error.message
        too_long = batch("long", {"long": [5] * MAX_MODEL_LEN}, prompts.stop, max_new_tokens=NEW_TOKENS)
        assert "long" in worker.fail(too_long).error.message
        found.append(ids(worker.run(single).generations))
    worker.end()
    assert found == [ids(done.generations) for done in expected.done]


def test_the_load_of_experts_is_counted_once(
    worker: Worker, engine_env: FindPython, tiny_moe: str, prompts: Prompts
) -> None:
    worker.load(job(tiny_moe, [], {}, tensor_parallel_size=2, expert_load=True).config)
    done = worker.run(of(prompts, ignore_eos=True))
    worker.end()
    expected = alone(engine_env("hf"), tiny_moe, of(prompts, ignore_eos=True))
    assert ids(done.generations) == ids(expected.done[0].generations)
    tokens = sum(one.prompt_tokens + one.generated_tokens - 1 for one in done.generations)
    loads = [sum(done.stats.extra[f"expert_{layer}_{at}"] for at in range(EXPERTS)) for layer in range(MOE_LAYERS)]
    assert loads == [2 * tokens] * MOE_LAYERS


def test_heads_that_can_not_be_shared_out_are_refused_at_load(worker: Worker, model: str) -> None:
    with pytest.raises(AssertionError, match="tensor_parallel_size 2 does not divide the model's heads"):
        worker.load(job(model, [], {}, tensor_parallel_size=2).config)
    assert worker.wait() == 70


@pytest.mark.parametrize("busy", [False, True], ids=["between batches", "in a batch"])
def test_a_rank_that_is_killed_ends_the_worker(worker: Worker, tiny_llama: str, prompts: Prompts, busy: bool) -> None:
    worker.load(job(tiny_llama, [], {}, tensor_parallel_size=2, max_new_tokens=200).config)
    family = psutil.Process(worker.pid).children(recursive=True)
    (rank,) = (one for one in family if one.name().startswith(TITLE))
    if busy:
        worker.send_batch(of(prompts, ignore_eos=True, max_new_tokens=200))
    os.kill(rank.pid, signal.SIGKILL)
    fatal = worker.expect(Fatal)
    assert "airlock-rank-1" in fatal.error.message
    assert "SIGKILL" in fatal.error.message
    assert worker.wait() == 70
    assert psutil.wait_procs(family, timeout=EXIT_S)[1] == []


@pytest.mark.gpu
def test_each_rank_has_a_gpu_of_its_own(worker: Worker, tiny_llama: str, prompts: Prompts) -> None:
    if len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2:
        pytest.skip("this machine has not two NVIDIA GPUs")
    found = worker.load(job(tiny_llama, [], {}, tensor_parallel_size=2, device="cuda").config).metadata
    done = worker.run(of(prompts))
    worker.end()
    assert (found.settings.tensor_parallel_size, len(found.devices), found.flags) == (2, 2, [])
    assert (done.stats.peak_memory_bytes or 0) > (found.memory.weights_bytes or 0) > 0
    assert all(one.generated_tokens for one in done.generations)
