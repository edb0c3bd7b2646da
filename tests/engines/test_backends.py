"""Each real backend through its real worker: the same ids in, comparable records out."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.messages import BatchDone, BatchFailed, Fatal, Goodbye, Ready
from protocol.records import Generation
from protocol.specs import BackendConfig, unpack_ids
from tests.engines.conftest import FindPython, Prompts
from tests.engines.driver import KV_CACHE_BYTES, MAX_MODEL_LEN, Worker, batch, config

pytestmark = pytest.mark.engine

ENGINES = ("hf", "vllm", "sglang")
NGRAM = {"min_n": 1, "max_n": 3, "draft_tokens": 3}
ATTENTION = {"hf": "sdpa", "vllm": "CPU_ATTN", "sglang": "torch_native"}
FIXED_TOKENS = 12
GREEDY_TOKENS = 24


@dataclass(frozen=True)
class Record:
    """What one worker said from its start to its end."""

    ready: Ready
    greedy: BatchDone
    fixed: BatchDone
    too_long: BatchFailed
    empty: BatchFailed
    outside: BatchFailed
    again: BatchDone
    sampled: tuple[BatchDone, BatchDone]
    goodbye: Goodbye
    status: int
    survivors: list[str]


def start(python: str, engine: str, folder: Path, **env: str) -> Worker:
    return Worker(python, engine, folder, env)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: the path of a socket holds 107 bytes, and pytest's own folders use most of them."""
    with tempfile.TemporaryDirectory(prefix="al-t") as name:
        yield Path(name)


class Records:
    """Runs each engine once, when a test first asks for it: never two at a time."""

    def __init__(self, engine_env: FindPython, model: str, prompts: Prompts) -> None:
        self._engine_env, self._model, self._prompts = engine_env, model, prompts
        self._kept: dict[str, Record] = {}

    def of(self, engine: str) -> Record:
        python = self._engine_env(engine)
        if engine not in self._kept:
            with tempfile.TemporaryDirectory(prefix="al-t") as name:
                worker = start(python, engine, Path(name))
                try:
                    self._kept[engine] = self._converse(worker, config(engine, self._model, stop_token_ids=self._stop))
                finally:
                    worker.close()
        return self._kept[engine]

    @property
    def _stop(self) -> tuple[int, ...]:
        return tuple(self._prompts.stop)

    def _converse(self, worker: Worker, settings: BackendConfig) -> Record:
        ids, capital = self._prompts.ids, {"capital": self._prompts.ids["capital"]}
        two = {name: ids[name] for name in ("sum", "colours")}
        sampling: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "max_new_tokens": 8}
        ready = worker.load(settings)
        return Record(
            ready=ready,
            greedy=worker.run(batch("greedy", ids, self._stop, max_new_tokens=GREEDY_TOKENS)),
            fixed=worker.run(batch("fixed", two, self._stop, max_new_tokens=FIXED_TOKENS, ignore_eos=True)),
            too_long=worker.fail(batch("long", {**two, "huge": capital["capital"] * 20}, self._stop)),
            empty=worker.fail(batch("empty", {**two, "nothing": []}, self._stop)),
            outside=worker.fail(batch("outside", {**two, "outside": [10**6]}, self._stop)),
            again=worker.run(batch("again", capital, self._stop, max_new_tokens=GREEDY_TOKENS)),
            sampled=(
                worker.run(batch("s1", two, self._stop, **sampling)),
                worker.run(batch("s2", two, self._stop, **sampling)),
            ),
            **self._end(worker),
        )

    @staticmethod
    def _end(worker: Worker) -> dict[str, Any]:
        goodbye, status = worker.end()
        return {"goodbye": goodbye, "status": status, "survivors": worker.survivors()}


@pytest.fixture(scope="module")
def records(engine_env: FindPython, opinionated_model: str, prompts: Prompts) -> Records:
    return Records(engine_env, opinionated_model, prompts)


def by_id(done: BatchDone) -> dict[str, Generation]:
    return {generation.prompt_id: generation for generation in done.generations}


@pytest.mark.parametrize("engine", ENGINES)
def test_answers_the_question(records: Records, engine: str) -> None:
    assert "Paris" in by_id(records.of(engine).greedy)["capital"].text


@pytest.mark.parametrize("engine", ENGINES)
def test_counts_are_the_engines_own_ids(records: Records, engine: str) -> None:
    record = records.of(engine)
    for done in (record.greedy, record.fixed, record.again, *record.sampled):
        assert all(g.generated_tokens == len(unpack_ids(g.token_ids)) > 0 for g in done.generations)
        assert done.stats.generated_tokens == sum(g.generated_tokens for g in done.generations)
        assert all(g.flags == [] or g.flags == ["seed_not_honoured"] for g in done.generations)


@pytest.mark.parametrize("engine", ENGINES)
def test_finish_reasons_and_end_of_sequence(records: Records, engine: str, prompts: Prompts) -> None:
    generations = records.of(engine).greedy.generations
    assert {g.finish_reason for g in generations} == {"stop", "length"}
    for generation in generations:
        ids = unpack_ids(generation.token_ids)
        stopped = generation.finish_reason == "stop"
        assert (ids[-1] in prompts.stop) == stopped
        assert not set(ids[:-1]) & set(prompts.stop)
        assert stopped or len(ids) == GREEDY_TOKENS


@pytest.mark.parametrize("engine", ENGINES)
def test_ignore_eos_gives_the_exact_length(records: Records, engine: str) -> None:
    generations = records.of(engine).fixed.generations
    assert [g.generated_tokens for g in generations] == [FIXED_TOKENS] * 2
    assert {g.finish_reason for g in generations} == {"length"}


@pytest.mark.parametrize("engine", ENGINES)
def test_times_are_inside_the_batch(records: Records, engine: str) -> None:
    done = records.of(engine).greedy
    for generation in done.generations:
        assert generation.ttft_s is not None
        assert generation.latency_s is not None
        assert 0 < generation.ttft_s < generation.latency_s <= done.stats.wall_s
    assert (done.stats.peak_memory_bytes or 0) > 100 * 1024 * 1024


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_end_early_are_faster(records: Records, engine: str) -> None:
    generations = records.of(engine).greedy.generations
    shortest = min(generations, key=lambda g: g.generated_tokens)
    longest = max(generations, key=lambda g: g.generated_tokens)
    assert shortest.generated_tokens < longest.generated_tokens
    assert (shortest.latency_s or 0) < (longest.latency_s or 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_metadata_is_read_back(records: Records, engine: str) -> None:
    found = records.of(engine).ready.metadata
    assert (found.engine, found.device, found.dtype) == (engine, "cpu", "float32")
    assert found.attention_backend == ATTENTION[engine]
    assert found.max_model_len == MAX_MODEL_LEN
    assert all((found.engine_version, found.python_version, found.torch_version, found.transformers_version))
    assert found.flags == []
    assert found.options
    assert found.load.import_s > 0
    assert 0 < (found.load.weights_s or 0) < found.load.total_s
    assert (found.memory.host_rss_bytes or 0) > 100 * 1024 * 1024
    assert found.threads or any(note.startswith("threads:") for note in found.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_ends_of_an_output_are_those_that_the_engine_held(records: Records, engine: str, prompts: Prompts) -> None:
    ready, last = records.of(engine).ready.metadata, records.of(engine).goodbye.metadata
    assert (ready.stop_token_ids, ready.settings.eos) == (None, None)
    assert last is not None
    assert (last.stop_token_ids, last.settings.eos, last.flags) == (prompts.stop, "stop", ready.flags)


@pytest.mark.parametrize("engine", ENGINES)
def test_kv_capacity_is_what_was_asked_for(records: Records, engine: str) -> None:
    found = records.of(engine).ready.metadata
    if engine == "hf":
        assert found.kv_cache_tokens is None
        assert any(note.startswith("kv_cache_tokens:") for note in found.notes)
        return
    assert found.kv_cache_tokens is not None
    assert found.kv_cache_bytes is not None
    assert found.kv_cache_tokens > MAX_MODEL_LEN
    assert 0.9 * KV_CACHE_BYTES < found.kv_cache_bytes <= KV_CACHE_BYTES


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_prompt_fails_its_batch_only(records: Records, engine: str) -> None:
    record = records.of(engine)
    assert "prompt huge:" in record.too_long.error.message
    assert "prompt nothing:" in record.empty.error.message
    assert "prompt outside:" in record.outside.error.message
    assert not any(failed.error.fatal for failed in (record.too_long, record.empty, record.outside))
    assert by_id(record.again)["capital"].token_ids == by_id(record.greedy)["capital"].token_ids


@pytest.mark.parametrize("engine", ENGINES)
def test_a_seed_reproduces_or_the_record_says_that_it_does_not(records: Records, engine: str) -> None:
    first, second = (by_id(done) for done in records.of(engine).sampled)
    same = all(first[name].token_ids == second[name].token_ids for name in first)
    flagged = all(g.flags == ["seed_not_honoured"] for g in (*first.values(), *second.values()))
    assert flagged if engine == "sglang" else same


@pytest.mark.parametrize("engine", ENGINES)
def test_shutdown_leaves_no_process(records: Records, engine: str) -> None:
    record = records.of(engine)
    assert (record.status, record.survivors) == (0, [])
    assert record.goodbye.metadata is not None
    assert record.goodbye.metadata.memory.host_peak_rss_bytes is not None


def test_greedy_float32_is_equal_across_engines(records: Records) -> None:
    found = {engine: by_id(records.of(engine).greedy) for engine in ENGINES}
    for name, expected in found["hf"].items():
        for engine in ("vllm", "sglang"):
            assert unpack_ids(found[engine][name].token_ids) == unpack_ids(expected.token_ids), (engine, name)
            assert found[engine][name].text == expected.text
            assert found[engine][name].prompt_digest == expected.prompt_digest


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_ngram_speculation_changes_nothing_but_the_steps(
    records: Records, engine_env: FindPython, model: str, prompts: Prompts, folder: Path, engine: str
) -> None:
    """Nor do the recommendations in the model's folder, which the record ran with and this one does not."""
    expected = by_id(records.of(engine).greedy)["repeat"]
    worker = start(engine_env(engine), engine, folder)
    try:
        worker.load(config(engine, model, method={"ngram": NGRAM}, stop_token_ids=tuple(prompts.stop)))
        one = {"repeat": prompts.ids["repeat"]}
        done = worker.run(batch("ngram", one, prompts.stop, max_new_tokens=GREEDY_TOKENS))
        assert by_id(done)["repeat"].token_ids == expected.token_ids
        accepted = done.stats.extra.get("accepted_tokens", 0)
        assert accepted > 0 or done.stats.extra.get("steps", GREEDY_TOKENS) < expected.generated_tokens
        worker.end()
        assert worker.survivors() == []
    finally:
        worker.close()


def test_an_attention_that_the_engine_did_not_take_is_flagged(engine_env: FindPython, model: str, folder: Path) -> None:
    worker = start(engine_env("vllm"), "vllm", folder)
    try:
        own = {"attention_backend": "FLASH_ATTN", "max_num_seqs": 3, "seed": 5}
        found = worker.load(config("vllm", model, method={"engine_args": own}, dtype="bfloat16")).metadata
        assert found.attention_backend == "CPU_ATTN"
        assert found.flags == ["attention_not_honoured"]
        assert found.settings.max_num_seqs == 3
        assert (found.compiled, found.dtype) == (False, "bfloat16")
    finally:
        worker.close()
    assert worker.survivors() == []


def test_what_cannot_be_honoured_ends_the_load_with_every_reason(
    engine_env: FindPython, model: str, folder: Path
) -> None:
    worker = start(engine_env("hf"), "hf", folder)
    try:
        with pytest.raises(AssertionError, match="CannotHonour"):
            worker.load(config("hf", model, pipeline_parallel_size=2, prefix_caching=True))
        fatal = worker.said[-1]
        assert isinstance(fatal, Fatal)
        assert "a CPU has one device" in fatal.error.message
        assert "prefix_caching" in fatal.error.message
        assert worker.wait() != 0
    finally:
        worker.close()


def test_the_death_of_a_child_of_sglang_is_reported(
    engine_env: FindPython, model: str, prompts: Prompts, folder: Path
) -> None:
    """Left alone SGLang would kill this worker too, five seconds later and without a word."""
    worker = start(engine_env("sglang"), "sglang", folder)
    try:
        worker.load(config("sglang", model, stop_token_ids=tuple(prompts.stop)))
        worker.run(batch("first", {"sum": prompts.ids["sum"]}, prompts.stop))
        worker.send_batch(batch("long", prompts.ids, prompts.stop, max_new_tokens=200, ignore_eos=True))
        scheduler = next(p for p in psutil.Process(worker.pid).children() if "scheduler" in p.name())
        scheduler.send_signal(signal.SIGKILL)
        fatal, status = worker.fatal()
        assert (fatal.error.type, fatal.phase) == ("EngineDead", "busy")
        assert status != 0
    finally:
        worker.close()
    assert worker.survivors() == []


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_on_a_gpu(engine_env: FindPython, model: str, prompts: Prompts, folder: Path, engine: str) -> None:
    if not os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has no NVIDIA GPU")
    worker = start(engine_env(engine), engine, folder)
    try:
        settings = config(engine, model, device="cuda", dtype="bfloat16", stop_token_ids=tuple(prompts.stop))
        ready = worker.load(settings)
        done = worker.run(batch("greedy", prompts.ids, prompts.stop))
        assert "Paris" in by_id(done)["capital"].text
        assert ready.metadata.device == "cuda"
        assert ready.metadata.attention_backend
        worker.end()
        assert worker.survivors() == []
    finally:
        worker.close()
