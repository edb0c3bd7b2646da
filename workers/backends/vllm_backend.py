"""vLLM through its offline `LLM` class, token ids in and out.

With one device the engine runs in this process, unless the method's own
variables say otherwise; with several, in children of its own, watched because
`LLM.generate` never returns once its engine process is killed.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from protocol.records import BatchStats, Generation, LoadTimes, MemoryUse, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, PromptBatch
from workers.backends import runtime
from workers.backends.admission import admit, check
from workers.backends.base import Backend, EngineDead, Output, assemble, batch_stats, plain
from workers.backends.children import NEWS_S, Children, Death
from workers.backends.text import TextDecoder
from workers.backends.vllm_args import engine_args, in_process, sampling_params

#: vLLM's default of 5 s is less than its normal teardown takes; past it, it kills its children.
SHUTDOWN_TIMEOUT_S = 20.0
MULTIPROCESSING, TITLE = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_PROCESS_NAME_PREFIX"
SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"
LOAD_NOTE = "load: vLLM's own processes tell their times in their log only"
COMPILE_NOTE = "load.compile_s: profiling, making the KV cache and warm-up are in it"
SPEED_COUNTERS = ("vllm:num_preemptions", "vllm:spec_decode_")


class VllmTextBackend(Backend):
    _llm: Any = None
    _decode: TextDecoder
    _metadata: RuntimeMetadata
    _children: Children | None = None

    @classmethod
    def prepare(cls) -> None:
        runtime.keep_environment_readable()
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")

    @classmethod
    def import_engine(cls) -> str:
        import vllm
        from vllm import LLM, SamplingParams  # noqa: F401

        return str(vllm.__version__)

    def load(self) -> RuntimeMetadata:
        check(self.config)
        _check_platform(self.config.device)
        watch = runtime.Stopwatch()
        self._decode = TextDecoder(self.config.model_path, self.config.trust_remote_code)
        tokenizer_s = watch.lap_s()
        _set_environment(self.config)
        self._children = Children(f"{os.environ.get(TITLE, 'VLLM')}::", self.host.give_up)
        with self._children.loading():
            with LoadLog() as log:
                self._llm = self._build()
            self._metadata = self._describe(replace(log.times(self._compiled()), tokenizer_s=tokenizer_s))
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        model = self._llm.llm_engine.vllm_config.model_config
        prompts = admit(batch, int(model.max_model_len), int(model.get_vocab_size()))
        before = self._counters()
        results, started, wall_s = self._run(prompts, batch.call)
        outputs = [_output(prompt.id, result, started) for prompt, result in zip(batch.prompts, results, strict=True)]
        generations = assemble(batch, outputs, self._decode, batch.call.stop_token_ids)
        extra = {name: value - before.get(name, 0.0) for name, value in self._counters().items()}
        extra["cached_tokens"] = float(sum(result.num_cached_tokens or 0 for result in results))
        return generations, batch_stats(generations, wall_s, self._peak_bytes(), extra)

    def runtime_metadata(self) -> RuntimeMetadata:
        return replace(self._metadata, memory=self._memory())

    def shutdown(self) -> None:
        if self._children:
            self._children.stop()
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown(timeout=SHUTDOWN_TIMEOUT_S)
            self._llm = None

    def _build(self) -> Any:
        from vllm import LLM

        return LLM(**{**engine_args(self.config), **self.config.method.engine_args})

    def _run(self, prompts: Sequence[list[int]], call: CallParams) -> tuple[list[Any], float, float]:
        """Results in the order of the prompts, the hand-over on the monotonic clock, and seconds taken."""
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        params = sampling_params(call)
        started = time.monotonic()
        try:
            results = self._llm.generate(inputs, params, use_tqdm=False)
        except Exception as exc:
            if self._is_dead(exc):
                raise EngineDead(str(self._death() or "vLLM can't go on")) from exc
            raise
        return results, started, time.monotonic() - started

    def _is_dead(self, exc: Exception) -> bool:
        """Requests left inside would run on together with the next batch, so such an engine is as good as dead."""
        from vllm.v1.engine.exceptions import EngineDeadError

        return isinstance(exc, EngineDeadError) or bool(self._llm.llm_engine.has_unfinished_requests())

    def _compiled(self) -> bool:
        return int(self._llm.llm_engine.vllm_config.compilation_config.mode or 0) > 0

    def _death(self) -> Death | None:
        return self._children.death(NEWS_S) if self._children else None

    def _describe(self, load: LoadTimes) -> RuntimeMetadata:
        ranks: list[dict[str, Any]] = self._llm.collective_rpc("airlock_probe")
        engine = self._llm.llm_engine.vllm_config
        attention = ",".join(sorted({name for rank in ranks for name in rank["attention"]})) or None
        method, sizes = self.config.method, [rank["kv_cache_bytes"] for rank in ranks]
        return runtime.describe(
            self.config,
            engine_version=_version(),
            devices=[rank["device"] for rank in ranks if rank["device"]],
            dtype=str(engine.model_config.dtype).removeprefix("torch."),
            attention_backend=attention,
            kv_cache_tokens=_kv_cache_tokens(engine.cache_config),
            kv_cache_bytes=None if None in sizes else sum(sizes),
            max_model_len=int(engine.model_config.max_model_len),
            compiled=self._compiled(),
            threads=ranks[0]["threads"],
            options=plain(_options(engine, ranks[0], method.engine_args)),
            flags=runtime.attention_flags(method.attention, attention)
            + runtime.overridden(engine_args(self.config), method.engine_args),
            notes=([] if load.weights_s is not None else [LOAD_NOTE])
            + ([COMPILE_NOTE] if load.compile_s is not None else []),
            load=load,
        )

    def _memory(self) -> MemoryUse:
        memory = self.memory.read()
        if self.config.device != "cuda" or os.environ[MULTIPROCESSING] == "0":
            return runtime.with_device_memory(memory, self.config.device)
        ranks = self._llm.collective_rpc("airlock_probe")
        names = ("device_allocated_bytes", "device_reserved_bytes", "device_peak_bytes")
        return replace(memory, **{name: sum(rank[name] or 0 for rank in ranks) for name in names})

    def _peak_bytes(self) -> int | None:
        if self.config.device == "cuda":
            return self._memory().device_peak_bytes
        return self.memory.read(busy=True).host_peak_rss_bytes

    def _counters(self) -> dict[str, float]:
        """vLLM's own totals since its start; read outside the timed region."""
        return {
            metric.name.removeprefix("vllm:"): float(metric.value)
            for metric in self._llm.get_metrics()
            if metric.name.startswith(SPEED_COUNTERS) and isinstance(getattr(metric, "value", None), (int, float))
        }


class LoadLog:
    """Picks two durations out of vLLM's own log lines; vLLM says them nowhere else.
    Sees the lines of this process only. A handler would not do: building the
    engine configures logging anew and drops it, and wraps the factory that it finds."""

    WEIGHTS, START = "Loading weights took", "init engine (profile"

    def __init__(self) -> None:
        self._found: dict[str, float] = {}
        self._make = logging.getLogRecordFactory()

    def __enter__(self) -> LoadLog:
        logging.setLogRecordFactory(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        if logging.getLogRecordFactory() == self._record:  # else vLLM's own, built on ours, is in use
            logging.setLogRecordFactory(self._make)

    def _record(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        part = next((part for part in (self.WEIGHTS, self.START) if str(record.msg).startswith(part)), None)
        if part and isinstance(record.args, tuple) and record.args and isinstance(record.args[0], (int, float)):
            self._found[part] = float(record.args[0])
        return record

    def times(self, compiled: bool) -> LoadTimes:
        """vLLM's one figure for profiling, KV cache and warm-up is the compiler's, where there is one."""
        weights_s, start_s = self._found.get(self.WEIGHTS), self._found.get(self.START)
        if compiled:
            return LoadTimes(weights_s=weights_s, compile_s=start_s)
        return LoadTimes(weights_s=weights_s, kv_cache_s=start_s)


def _output(prompt_id: str, result: Any, started: float) -> Output:
    """vLLM's stamps are of the same monotonic clock as `started`, in its children too."""
    one, metrics = result.outputs[0], result.metrics
    return Output(
        prompt_id,
        list(one.token_ids),
        finish=one.finish_reason,
        ttft_s=metrics.first_token_ts - started if metrics else None,
        latency_s=metrics.last_token_ts - started if metrics else None,
        prompt_token_ids=result.prompt_token_ids,
    )


def _options(engine: Any, rank: Mapping[str, Any], own_args: Mapping[str, Any]) -> dict[str, Any]:
    scheduler, cache, compilation = engine.scheduler_config, engine.cache_config, engine.compilation_config
    return {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": scheduler.enable_chunked_prefill,
        "async_scheduling": scheduler.async_scheduling,
        "prefix_caching": cache.enable_prefix_caching,
        "block_size": cache.block_size,
        "kv_cache_dtype": cache.cache_dtype,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "compilation_mode": getattr(compilation.mode, "name", compilation.mode),
        "cudagraph_mode": getattr(compilation.cudagraph_mode, "name", compilation.cudagraph_mode),
        "executor": str(engine.parallel_config.distributed_executor_backend),
        "speculation": engine.speculative_config.method if engine.speculative_config else None,
        "model_runner": rank["model_runner"],
        "engine_args": dict(own_args),
    }


def _kv_cache_tokens(cache: Any) -> int | None:
    """vLLM's own figure, which knows of layers that share blocks; else the plain product."""
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens is None and cache.num_gpu_blocks:
        tokens = cache.num_gpu_blocks * cache.block_size
    return int(tokens) if tokens else None


def _set_environment(config: BackendConfig) -> None:
    """vLLM reads these when it builds the engine, not when it is imported."""
    os.environ.setdefault(MULTIPROCESSING, "0" if in_process(config) else "1")
    os.environ.setdefault(SOCKET_FOLDER, short_path(tempfile.gettempdir()))
    if config.device == "cpu":
        # Loading its cache fails there ("has no attribute 'finalize_loading'") and costs half a minute each time.
        os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")


def short_path(folder: str) -> str:
    """The shorter one of the absolute and the relative path, which all of vLLM's processes start at: a
    socket's path holds 107 bytes, and vLLM makes names of 36 out of it."""
    return min(folder, os.path.relpath(folder), key=len)


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _check_platform(device: str) -> None:
    from vllm.platforms import current_platform

    if current_platform.device_type != device:
        raise ValueError(f"this build of vLLM runs on {current_platform.device_type or 'no device'}, not on {device}")
