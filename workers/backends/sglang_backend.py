"""SGLang through its offline `Engine`: the scheduler and the detokenizer are its children.

Left to itself, SGLang answers the death of a child by killing its whole tree,
this process included, without a word. Both of its handlers are replaced, so
that the death is reported instead; and its children are watched, as it overlooks
one that ends with status 0, or while it loads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
from msgspec.structs import replace

from protocol.buckets import NoBucket
from protocol.records import BatchStats, Generation, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, PromptBatch, PromptInput, unpack_ids
from workers.backends import runtime, sglang_settings, sglang_vision
from workers.backends.admission import CannotHonour, admit, check
from workers.backends.base import Backend, EngineDead, Output, Position, assemble, batch_stats, plain
from workers.backends.children import NEWS_S, Children
from workers.backends.model_folder import read_config
from workers.backends.sglang_args import (
    bind_ranks,
    buckets,
    call_args,
    engine_args,
    is_ngram,
    set_environment,
    usable_length,
)
from workers.backends.sglang_output import Mixture, Result, ends, expert_load, generated, results, scored, totals
from workers.backends.sglang_signals import StoppedBySigterm, child_failed, on_child_failure, signal_handlers
from workers.backends.text import TextDecoder
from workers.backends.watch import watched

TITLE = "sglang::"


class SglangTextBackend(Backend):
    _engine: Any = None
    _decode: TextDecoder
    _metadata: RuntimeMetadata
    _limit: int = 0
    _vocab_size: int | None = None
    _mixture: Mixture | None = None
    _asked: Mapping[str, Any] = {}

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self._terminated = threading.Event()
        self._children = Children(TITLE, self.host.give_up)

    @classmethod
    def prepare(cls) -> None:
        runtime.keep_environment_readable()
        set_environment()
        sglang_vision.set_environment()

    @classmethod
    def import_engine(cls) -> str:
        import sglang
        from sglang.srt.entrypoints.engine import Engine  # noqa: F401  the package's own name for it is lazy

        return str(sglang.__version__)

    def load(self) -> RuntimeMetadata:
        check(self.config)
        self._mixture = self._experts_to_count()
        watch = runtime.Stopwatch()
        self._decode = TextDecoder(self.config.model_path, self.config.trust_remote_code)
        tokenizer_s = watch.lap_s()
        with self._children.loading():
            self._engine = self._build()
            self._engine.tokenizer_manager.signal_handler_class = signal_handlers(self._terminated)
            self._require_children()
            self._metadata = self._describe(sglang_settings.resolved(self._engine.get_server_info()), tokenizer_s)
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        prompts = admit(batch, self._limit, self._vocab_size, self.config.images_per_prompt)
        self._require_bucket(len(prompts))
        self._require_children()
        manager = self._engine.tokenizer_manager
        with watched(manager, "_create_tokenized_object", lambda request, *_, **__: request.sampling_params) as handed:
            answers, started, wall_s = self._run(prompts, batch)
        started_ts = started + _clock_offset()
        outputs = [
            _output(prompt, answer, started_ts, batch.call)
            for prompt, answer in zip(batch.prompts, answers, strict=True)
        ]
        generations = assemble(batch, outputs, self._decode, batch.call.stop_token_ids, wall_s)
        if batch.call.task == "generate":
            held = {stop for params in handed for stop in ends(params, manager.model_config.hf_eos_token_id)}
            self._metadata = runtime.with_ends(self._metadata, batch.call, held)
        return generations, batch_stats(generations, wall_s, self._peak_bytes(), self._counters(answers))

    def runtime_metadata(self) -> RuntimeMetadata:
        return replace(self._metadata, memory=runtime.with_loaded(self.memory.read(), self._metadata.memory))

    def shutdown(self) -> None:
        """Kills every child of this process: a worker keeps none of its own."""
        self._children.stop()
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def _build(self) -> Any:
        from sglang.srt.entrypoints.engine import Engine

        bind_ranks(self.config)
        self._asked = {**engine_args(self.config, on_child_failure), **sglang_vision.engine_args(self.config)}
        engine = Engine(**self._args())
        if child_failed.is_set():
            raise EngineDead("a child process of SGLang failed while it started; its traceback is in the log")
        return engine

    def _experts_to_count(self) -> Mixture | None:
        """None where nobody asks. Raises CannotHonour for a model without experts: SGLang's scheduler would die."""
        found = Mixture.of(read_config(self.config.model_path)) if self.config.expert_load else None
        if self.config.expert_load and found is None:
            raise CannotHonour("expert_load is asked for, and config.json tells of no experts")
        return found

    def _args(self) -> dict[str, Any]:
        return {**self._asked, **self.config.method.engine_args}

    def _require_bucket(self, rows: int) -> None:
        """SGLang runs a batch past the largest size without a graph."""
        sizes = buckets(self.config)
        if sizes and rows > sizes[-1]:
            raise NoBucket(f"no bucket holds a batch of {rows} prompts: the largest is {sizes[-1]}")

    def _require_children(self) -> None:
        """SGLang does not look at its children between requests, and would wait for their answer for ever."""
        gone = [pid for pid in self._engine.get_all_child_pids() if not _is_running(pid)]
        if gone or child_failed.is_set():
            pids = ", ".join(map(str, gone)) or "unknown"
            raise EngineDead(str(self._children.death(NEWS_S) or f"a child process of SGLang is gone (pid {pids})"))

    def _run(self, prompts: list[list[int]], batch: PromptBatch) -> tuple[list[Result], float, float]:
        """Results in the order of the prompts, the hand-over on perf_counter's clock, and seconds taken."""
        ids = sglang_vision.sent_ids(batch.prompts, prompts)
        args = call_args(batch, ids, self.config.expert_load) | sglang_vision.call_args(batch.prompts)
        try:
            with StoppedBySigterm(self._engine.loop, self._terminated):
                started = time.perf_counter()
                answer = self._engine.generate(**args)
                wall_s = time.perf_counter() - started
        except Exception as exc:
            if child_failed.is_set() or self._engine.tokenizer_manager.rid_to_state:
                # What is left inside would run on together with the next batch.
                raise EngineDead(str(self._children.death(NEWS_S) or "SGLang can't go on")) from exc
            raise
        return results(answer), started, wall_s

    def _describe(self, info: Mapping[str, Any], tokenizer_s: float) -> RuntimeMetadata:
        model, config = self._engine.tokenizer_manager.model_config, self.config
        tokens, dtype = int(info["max_total_num_tokens"]), str(model.dtype).removeprefix("torch.")
        self._vocab_size = int(model.vocab_size)
        self._limit = usable_length(config, int(model.context_len), tokens)
        pictures = sglang_vision.processor(config, self._engine.tokenizer_manager)
        return runtime.describe(
            config,
            device=str(info["device"]),
            engine_version=str(info["version"]),
            dtype=dtype,
            attention_backend=sglang_settings.attention(info),
            kv_cache_tokens=tokens,
            kv_cache_bytes=sglang_settings.kv_cache_bytes(info),
            max_model_len=self._limit,
            compiled=bool(info["enable_torch_compile"]),
            settings=replace(sglang_settings.settings(info, dtype, config), image_processor=pictures),
            options=plain(sglang_settings.options(info, config)),
            flags=[
                *sglang_settings.flags(info, self._args(), dtype, self._limit, config),
                *runtime.overridden(self._asked, config.method.engine_args),
                *([runtime.FLAG_SEED] if config.temperature > 0 else []),
            ],
            notes=list(sglang_settings.notes(info, self._limit, config)),
            load=sglang_settings.load_times(info, tokenizer_s),
            memory=sglang_settings.memory(info, config),
        )

    def _counters(self, answers: Sequence[Result]) -> dict[str, float]:
        counted = totals(answers, is_ngram(self.config.method.engine_args))
        return counted | expert_load(answers, self._mixture) if self._mixture else counted

    def _peak_bytes(self) -> int | None:
        return runtime.peak_bytes(self.memory.read(busy=True), self.config.device)


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _clock_offset() -> float:
    """Wall clock minus perf_counter, as SGLang itself adds it to its stamps."""
    from sglang.srt.observability.req_time_stats import convert_time_to_realtime

    return float(convert_time_to_realtime(0.0))


def _output(prompt: PromptInput, answer: Result, started_ts: float, call: CallParams) -> Output:
    """SGLang counts from its own receipt of a request, we from the hand-over of the batch before it."""
    meta = answer.meta
    waited_s = meta.get("request_received_ts", started_ts) - started_ts
    first_s, last_s = meta.get("first_token_latency"), meta.get("e2e_latency")
    return Output(
        prompt.id,
        answer.token_ids,
        text=answer.text,
        finish=answer.finish,
        ttft_s=None if first_s is None else waited_s + first_s,
        latency_s=None if last_s is None else waited_s + last_s,
        generated_tokens=answer.completion_tokens,
        positions=_positions(prompt, answer, call),
        flags=(runtime.FLAG_SEED,) if call.temperature > 0 and call.task == "generate" else (),
        error=answer.error or sglang_vision.miscounted(prompt, meta.get("prompt_tokens")),
    )


def _positions(prompt: PromptInput, answer: Result, call: CallParams) -> list[Position] | None:
    if call.task == "score":
        return scored(answer, unpack_ids(prompt.token_ids)[prompt.score_from :])
    return generated(answer) if call.logprobs else None
