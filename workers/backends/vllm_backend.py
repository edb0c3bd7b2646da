"""vLLM through its offline `LLM` class, token ids in and out.

With one device the engine runs in this process, unless the method's own
variables say otherwise; with several, in children of its own, watched because
`LLM.generate` never returns once its engine process is killed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from protocol.records import BatchStats, Generation, LoadTimes, MemoryUse, RuntimeMetadata
from protocol.specs import PromptBatch
from workers.backends import runtime, vllm_settings, vllm_vision
from workers.backends.admission import CannotHonour, admit, check
from workers.backends.base import Backend, EngineDead, assemble, batch_stats, plain
from workers.backends.children import NEWS_S, Children, Death
from workers.backends.text import TextDecoder
from workers.backends.vllm_args import TITLE, engine_args, sampling_params, set_environment
from workers.backends.vllm_output import TokenClock, ends, output
from workers.backends.watch import watched

#: vLLM's default of 5 s is less than its normal teardown takes; past it, it kills its children.
SHUTDOWN_TIMEOUT_S = 20.0
#: vLLM's totals since its start, and the names that mean the same for all engines.
COUNTERS = {
    "vllm:num_preemptions": "num_preemptions",
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
}


class VllmTextBackend(Backend):
    _llm: Any = None
    _decode: TextDecoder
    _metadata: RuntimeMetadata
    _children: Children | None = None
    _asked: Mapping[str, Any] = {}

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
        set_environment(self.config)
        self._children = Children(f"{os.environ.get(TITLE, 'VLLM')}::", self.host.give_up)
        with self._children.loading():
            with LoadLog() as log:
                self._llm = self._build()
            self._metadata = self._describe(log, tokenizer_s)
            self._watch_experts()
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        model = self._llm.llm_engine.vllm_config.model_config
        prompts = admit(batch, int(model.max_model_len), int(model.get_vocab_size()), self.config.images_per_prompt)
        before = self._counters()
        engine = self._llm.llm_engine
        # The SamplingParams that reach the core are ours as vLLM has completed them.
        asking = watched(engine.engine_core, "add_request", lambda _, request: request.params)
        with TokenClock(engine) as clock, asking as handed:
            results, started, wall_s = self._run(batch, prompts)
        pairs = zip(batch.prompts, results, strict=True)
        outputs = [output(prompt, result, started, clock, batch.call) for prompt, result in pairs]
        generations = assemble(batch, outputs, self._decode, batch.call.stop_token_ids, wall_s)
        if batch.call.task == "generate":
            held = {stop for params in handed for stop in ends(params)}
            self._metadata = runtime.with_ends(self._metadata, batch.call, held)
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

        self._asked = {**engine_args(self.config), **vllm_vision.engine_args(self.config)}
        return LLM(**{**self._asked, **self.config.method.engine_args})

    def _run(self, batch: PromptBatch, prompts: Sequence[list[int]]) -> tuple[list[Any], float, float]:
        """Results in the order of the prompts, the hand-over on the monotonic clock, and seconds taken."""
        inputs: list[dict[str, Any]] = [{"prompt_token_ids": ids} for ids in prompts]
        params = sampling_params(batch.call)
        started = time.monotonic()
        try:
            if any(one.images for one in batch.prompts):  # decoding them counts, as it does where an engine decodes
                inputs = vllm_vision.inputs(batch.prompts)
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

    def _death(self) -> Death | None:
        return self._children.death(NEWS_S) if self._children else None

    def _describe(self, log: LoadLog, tokenizer_s: float) -> RuntimeMetadata:
        ranks: list[dict[str, Any]] = self._llm.collective_rpc("airlock_probe")
        engine, config = self._llm.llm_engine.vllm_config, self.config
        pictures = vllm_vision.processor(config, engine.model_config)
        found = replace(vllm_settings.settings(engine, ranks), image_processor=pictures)
        load = log.times(ranks, found.compile_mode != "none")
        return runtime.describe(
            config,
            device=str(engine.device_config.device_type),
            engine_version=_version(),
            devices=[rank["device"] for rank in ranks if rank["device"]],
            dtype=str(engine.model_config.dtype).removeprefix("torch."),
            attention_backend=vllm_settings.attention(ranks),
            kv_cache_tokens=vllm_settings.kv_cache_tokens(engine.cache_config),
            kv_cache_bytes=runtime.total(rank["kv_cache_bytes"] for rank in ranks),
            max_model_len=int(engine.model_config.max_model_len),
            compiled=found.compile_mode != "none",
            threads=ranks[0]["threads"],
            settings=found,
            options=plain(vllm_settings.options(engine, ranks[0], config)),
            flags=vllm_settings.flags(engine, ranks, self._asked, config),
            notes=list(vllm_settings.notes(engine, ranks, load, config)),
            load=replace(load, tokenizer_s=tokenizer_s),
            memory=MemoryUse(
                **{name: runtime.total(rank[name] for rank in ranks) for name in ("weights_bytes", "graphs_bytes")}
            ),
        )

    def _memory(self) -> MemoryUse:
        return replace(runtime.with_loaded(self.memory.read(), self._metadata.memory), **self._device_memory())

    def _device_memory(self) -> dict[str, int | None]:
        """Over all ranks, each on a GPU of its own; empty on a CPU."""
        if self.config.device != "cuda":
            return {}
        ranks: list[dict[str, int]] = self._llm.collective_rpc("airlock_memory")
        return {name: runtime.total(rank[name] for rank in ranks) for name in ranks[0]}

    def _peak_bytes(self) -> int | None:
        if self.config.device == "cuda":
            return self._device_memory().get("device_peak_bytes")
        return self.memory.read(busy=True).host_peak_rss_bytes

    def _watch_experts(self) -> None:
        """Raises CannotHonour where the model has no router, or one that can't be watched."""
        if self.config.expert_load and 0 in self._llm.collective_rpc("airlock_watch_experts"):
            raise CannotHonour("expert_load is asked for, and this model has no router that vLLM lets us watch")

    def _counters(self) -> dict[str, float]:
        """vLLM's own totals since its start; read outside the timed region."""
        told = {
            COUNTERS[metric.name]: float(metric.value) for metric in self._llm.get_metrics() if metric.name in COUNTERS
        }
        return {**told, **self._expert_loads()}

    def _expert_loads(self) -> dict[str, float]:
        """Ranks that share a layer see the same tokens; other stages have other layers."""
        if not self.config.expert_load:
            return {}
        ranks = self._llm.collective_rpc("airlock_expert_loads")
        layers: dict[int, list[int]] = {layer: load for rank in ranks for layer, load in rank}
        return {f"expert_{layer}_{at}": float(n) for layer, load in layers.items() for at, n in enumerate(load)}


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

    def times(self, ranks: Sequence[Mapping[str, Any]], compiled: bool) -> LoadTimes:
        return vllm_settings.load_times(self._found.get(self.WEIGHTS), self._found.get(self.START), ranks, compiled)


def _version() -> str:
    import vllm

    return str(vllm.__version__)


def _check_platform(device: str) -> None:
    from vllm.platforms import current_platform

    if current_platform.device_type != device:
        raise ValueError(f"this build of vLLM runs on {current_platform.device_type or 'no device'}, not on {device}")
