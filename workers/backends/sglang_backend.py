"""SGLang through its offline `Engine`: the scheduler and the detokenizer are its children.

Left to itself, SGLang answers the death of a child by killing its whole tree,
this process included, without a word. Both of its handlers are replaced, so
that the death is reported instead; and its children are watched, as it overlooks
one that ends with status 0, or while it loads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
from msgspec.structs import replace

from protocol.records import BatchStats, Generation, LoadTimes, RuntimeMetadata
from protocol.specs import BackendConfig, PromptBatch
from workers.backends import runtime
from workers.backends.admission import admit, check
from workers.backends.base import Backend, EngineDead, Output, assemble, batch_stats, plain
from workers.backends.children import NEWS_S, Children
from workers.backends.model_folder import UnknownCacheShape
from workers.backends.sglang_args import (
    Result,
    device_bytes_per_token,
    engine_args,
    results,
    sampling_params,
    set_environment,
    usable_length,
)
from workers.backends.sglang_signals import StoppedBySigterm, child_failed, on_child_failure, signal_handlers
from workers.backends.text import TextDecoder

SEED_NOTE = "seed: SGLang does not reproduce a per-request seed"
THREADS_NOTE = "threads: SGLang's scheduler process does not tell"
DEVICE_MEMORY_NOTE = "memory: device figures are inside SGLang's scheduler process"
KV_BYTES_NOTE = "kv_cache_bytes: does not follow from config.json for this architecture"
TITLE = "sglang::"
LENGTH_NOTE = "max_model_len: SGLang serves a few tokens less than its context or its KV cache holds"


class SglangTextBackend(Backend):
    _engine: Any = None
    _decode: TextDecoder
    _metadata: RuntimeMetadata
    _limit: int = 0
    _vocab_size: int | None = None

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self._terminated = threading.Event()
        self._children = Children(TITLE, self.host.give_up)

    @classmethod
    def prepare(cls) -> None:
        runtime.keep_environment_readable()
        set_environment()

    @classmethod
    def import_engine(cls) -> str:
        import sglang
        from sglang.srt.entrypoints.engine import Engine  # noqa: F401  the package's own name for it is lazy

        return str(sglang.__version__)

    def load(self) -> RuntimeMetadata:
        check(self.config)
        watch = runtime.Stopwatch()
        self._decode = TextDecoder(self.config.model_path, self.config.trust_remote_code)
        tokenizer_s = watch.lap_s()
        with self._children.loading():
            self._engine = self._build()
            self._engine.tokenizer_manager.signal_handler_class = signal_handlers(self._terminated)
            self._require_children()
            self._metadata = self._describe(self._engine.get_server_info(), tokenizer_s)
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        prompts = admit(batch, self._limit, self._vocab_size)
        self._require_children()
        answers, started, wall_s = self._run(prompts, batch)
        offset = _clock_offset()
        flags = (runtime.FLAG_SEED,) if batch.call.temperature > 0 else ()
        outputs = [
            _output(prompt.id, answer, started + offset, flags)
            for prompt, answer in zip(batch.prompts, answers, strict=True)
        ]
        generations = assemble(batch, outputs, self._decode, batch.call.stop_token_ids)
        return generations, batch_stats(generations, wall_s, self._peak_bytes(), _totals(answers))

    def runtime_metadata(self) -> RuntimeMetadata:
        return replace(self._metadata, memory=self.memory.read())

    def shutdown(self) -> None:
        """Kills every child of this process: a worker keeps none of its own."""
        self._children.stop()
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None

    def _build(self) -> Any:
        from sglang.srt.entrypoints.engine import Engine

        engine = Engine(**{**engine_args(self.config, on_child_failure), **self.config.method.engine_args})
        if child_failed.is_set():
            raise EngineDead("a child process of SGLang failed while it started; its traceback is in the log")
        return engine

    def _require_children(self) -> None:
        """SGLang does not look at its children between requests, and would wait for their answer for ever."""
        gone = [pid for pid in self._engine.get_all_child_pids() if not _is_running(pid)]
        if gone or child_failed.is_set():
            pids = ", ".join(map(str, gone)) or "unknown"
            raise EngineDead(str(self._children.death(NEWS_S) or f"a child process of SGLang is gone (pid {pids})"))

    def _run(self, prompts: list[list[int]], batch: PromptBatch) -> tuple[list[Result], float, float]:
        """Results in the order of the prompts, the hand-over on perf_counter's clock, and seconds taken."""
        params = sampling_params(batch.call)
        try:
            with StoppedBySigterm(self._engine.loop, self._terminated):
                started = time.perf_counter()
                answer = self._engine.generate(input_ids=prompts, sampling_params=params)
                wall_s = time.perf_counter() - started
        except Exception as exc:
            if child_failed.is_set() or self._engine.tokenizer_manager.rid_to_state:
                # What is left inside would run on together with the next batch.
                raise EngineDead(str(self._children.death(NEWS_S) or "SGLang can't go on")) from exc
            raise
        return results(answer), started, wall_s

    def _describe(self, info: dict[str, Any], tokenizer_s: float) -> RuntimeMetadata:
        manager, method = self._engine.tokenizer_manager, self.config.method
        tokens = int(info["max_total_num_tokens"])
        self._vocab_size = int(manager.model_config.vocab_size)
        self._limit = usable_length(self.config, int(manager.model_config.context_len), tokens)
        attention = _attention(info)
        extra_stops = sorted(set(manager.model_config.hf_eos_token_id or ()) - set(self.config.stop_token_ids))
        kv_bytes = self._kv_cache_bytes(tokens)
        return runtime.describe(
            self.config,
            engine_version=str(info["version"]),
            dtype=str(info["dtype"]),
            attention_backend=attention,
            kv_cache_tokens=tokens,
            kv_cache_bytes=kv_bytes,
            max_model_len=self._limit,
            compiled=bool(info["enable_torch_compile"]),
            options=plain(_options(info, extra_stops, method.engine_args)),
            flags=[
                *runtime.attention_flags(method.attention, attention),
                *runtime.overridden(engine_args(self.config, on_child_failure), method.engine_args),
                *([runtime.FLAG_EXTRA_STOP] if extra_stops and not self.config.ignore_eos else []),
                *([runtime.FLAG_SEED] if self.config.temperature > 0 else []),
            ],
            notes=[
                SEED_NOTE,
                THREADS_NOTE,
                *([DEVICE_MEMORY_NOTE] if self.config.device == "cuda" else []),
                *([KV_BYTES_NOTE] if kv_bytes is None else []),
                *([LENGTH_NOTE] if self._limit < (self.config.max_model_len or 0) else []),
            ],
            load=_load_times(info, tokenizer_s),
        )

    def _kv_cache_bytes(self, tokens: int) -> int | None:
        try:
            ranks = self.config.tensor_parallel_size * self.config.pipeline_parallel_size
            return tokens * device_bytes_per_token(self.config) * ranks
        except UnknownCacheShape:
            return None

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


def _output(prompt_id: str, answer: Result, started_ts: float, flags: Sequence[str]) -> Output:
    """SGLang counts from its own receipt of a request, we from the hand-over of the batch before it."""
    meta = answer.meta
    waited_s = meta.get("request_received_ts", started_ts) - started_ts
    first_s, last_s = meta.get("first_token_latency"), meta.get("e2e_latency")
    return Output(
        prompt_id,
        answer.token_ids,
        text=answer.text,
        finish=answer.finish,
        ttft_s=None if first_s is None else waited_s + first_s,
        latency_s=None if last_s is None else waited_s + last_s,
        generated_tokens=answer.completion_tokens,
        flags=tuple(flags),
    )


def _totals(answers: Sequence[Result]) -> dict[str, float]:
    names = {"cached_tokens": "cached_tokens", "num_retractions": "num_preemptions"}
    return {ours: float(sum(a.meta.get(theirs) or 0 for a in answers)) for theirs, ours in names.items()}


def _attention(info: dict[str, Any]) -> str | None:
    """One name, or both where prefill and decode differ."""
    common = info.get("attention_backend")
    parts = [info.get(f"{phase}_attention_backend") or common for phase in ("prefill", "decode")]
    return ",".join(dict.fromkeys(part for part in parts if part)) or None


def _load_times(info: dict[str, Any], tokenizer_s: float) -> LoadTimes:
    """SGLang's own figures; starting its processes is in none of them."""
    told = info.get("startup_time") or {}
    graphs = [value for value in (told.get("cuda_graph") or {}).values() if value]
    return LoadTimes(
        tokenizer_s=tokenizer_s,
        weights_s=told.get("load_weight"),
        kv_cache_s=told.get("kv_cache_allocation"),
        compile_s=sum(graphs) if graphs else None,
    )


OPTIONS = (
    "sampling_backend",
    "page_size",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "schedule_policy",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "kv_cache_dtype",
    "mem_fraction_static",
    "random_seed",
)


def _decode_graphs(info: dict[str, Any]) -> Any:
    """What decodes in the end: "disabled" or the backend. The argument disable_cuda_graph is only what was asked."""
    config = info.get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, dict) else getattr(config, "decode", None)
    return decode.get("backend") if isinstance(decode, dict) else getattr(decode, "backend", None)


def _options(info: dict[str, Any], extra_stops: Sequence[int], own_args: dict[str, Any]) -> dict[str, Any]:
    state = (info.get("internal_states") or [{}])[0]
    return {
        **{name: info.get(name) for name in OPTIONS},
        "max_running_requests": state.get("effective_max_running_requests_per_dp", info.get("max_running_requests")),
        "cuda_graph_decode": _decode_graphs(info),
        "extra_stop_ids": list(extra_stops),
        "engine_args": own_args,
    }
