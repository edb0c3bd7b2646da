"""Hugging Face Transformers: `model.generate` on a padded batch, in this process.

engine_args of a method go to `from_pretrained`, except "generate", whose
entries go to GenerationConfig.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from protocol.records import BatchStats, Generation, LoadTimes, RuntimeMetadata
from protocol.specs import BackendConfig, CallParams, PromptBatch
from workers.backends import runtime
from workers.backends.admission import admit, check
from workers.backends.base import Backend, EngineDead, Output, assemble, batch_stats, plain
from workers.backends.text import TextDecoder

GENERATE = "generate"
#: What is set from the call or the method in every GenerationConfig.
OURS = {
    *("max_new_tokens", "do_sample", "eos_token_id", "pad_token_id", "use_cache", "temperature", "top_p", "top_k"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("disable_compile", "cache_implementation", "compile_config", "max_cache_len"),
}
DYNAMIC_NOTE = "kv_cache_tokens: the cache grows with each sequence, so there is no capacity"
STATIC_NOTE = "kv_cache_tokens: a static cache is made for each batch, so there is no fixed capacity"
COMPILE_NOTE = "compiled: compilation happens in the first batch of each shape"


class HfBackend(Backend):
    _model: Any = None
    _decode: TextDecoder
    _metadata: RuntimeMetadata
    _compile_config: Any = None
    _limit: int | None = None

    @classmethod
    def import_engine(cls) -> str:
        import torch  # noqa: F401
        import transformers

        # Transformers resolves its names lazily; without this most of its import would fall into the load.
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig  # noqa: F401

        return str(transformers.__version__)

    def load(self) -> RuntimeMetadata:
        check(self.config)
        watch = runtime.Stopwatch()
        self._decode = TextDecoder(self.config.model_path, self.config.trust_remote_code)
        tokenizer_s = watch.lap_s()
        self._model = _load_model(self.config)
        weights_s = watch.lap_s()
        self._compile_config = self._prepare_compile()
        self._limit = self.config.max_model_len or _context_length(self._model)
        self._metadata = self._describe(LoadTimes(tokenizer_s=tokenizer_s, weights_s=weights_s))
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        prompts = admit(batch, self._limit, int(self._model.config.get_text_config().vocab_size))
        if self.config.method.ngram and len(prompts) > 1:
            raise ValueError(f"n-gram lookup takes one prompt at a time, and this batch has {len(prompts)}")
        inputs, options = self._inputs(prompts, batch.call), self._generation_config(batch.call)
        try:
            rows, wall_s, clock = self._run(inputs, options, batch.call)
        except Exception as exc:
            if _is_device_fault(exc):
                raise EngineDead(f"{type(exc).__name__}: {exc}") from exc
            raise
        outputs = [_output(prompt.id, row, clock, batch.call) for prompt, row in zip(batch.prompts, rows, strict=True)]
        generations = assemble(batch, outputs, self._decode, batch.call.stop_token_ids)
        return generations, batch_stats(generations, wall_s, self._peak_bytes(), self._extra(clock))

    def runtime_metadata(self) -> RuntimeMetadata:
        memory = runtime.with_device_memory(self.memory.read(), self.config.device)
        return replace(self._metadata, memory=memory, compiled=self._compiled())

    def shutdown(self) -> None:
        self._model = None
        gc.collect()

    def _describe(self, load: LoadTimes) -> RuntimeMetadata:
        method, model = self.config.method, self._model
        attention = str(model.config.get_text_config()._attn_implementation)
        return runtime.describe(
            self.config,
            engine_version=runtime.version("transformers") or "unknown",
            devices=_device_names(self.config.device),
            dtype=str(model.dtype).removeprefix("torch."),
            attention_backend=attention,
            max_model_len=self._limit,
            threads=runtime.threads(),
            options=plain(self._options()),
            flags=runtime.attention_flags(method.attention, attention)
            + runtime.overridden(_model_args(self.config), method.engine_args)
            + [f"{runtime.FLAG_OVERRIDE}:{GENERATE}.{key}" for key in self._own_options() if key in OURS],
            notes=[STATIC_NOTE, COMPILE_NOTE] if method.compile else [DYNAMIC_NOTE],
            load=load,
        )

    def _options(self) -> dict[str, Any]:
        from torch._dynamo import config as dynamo

        method = self.config.method
        return {
            "model_class": type(self._model).__name__,
            "compile_mode": self._compile_config.mode if self._compile_config else None,
            "recompile_limit": dynamo.recompile_limit if self._compile_config else None,
            "cache": "static" if method.compile else "dynamic",
            "padding": "left",
            "ngram_draft_tokens": method.ngram.draft_tokens if method.ngram else None,
            "engine_args": method.engine_args,
        }

    def _prepare_compile(self) -> Any:
        """The one CompileConfig used for all batches: the compiled call is kept by equality with it."""
        if not self.config.method.compile:
            return None
        from torch._dynamo import config as dynamo
        from transformers import CompileConfig

        # Past the limit torch runs uncompiled after one warning, and the point would no longer be what it says.
        dynamo.fail_on_recompile_limit_hit = True
        if self.config.torch_compile_cache_size_limit:
            dynamo.recompile_limit = self.config.torch_compile_cache_size_limit
        compiled = CompileConfig(mode=self.config.torch_compile_mode or self.config.method.compile)
        compiled._compile_all_devices = True
        return compiled

    def _compiled(self) -> bool | None:
        """From dynamo's own count of graphs; None while nothing has run yet."""
        if not self._compile_config:
            return False
        from torch._dynamo.utils import counters

        return bool(counters["stats"]["unique_graphs"]) or None

    def _generation_config(self, call: CallParams) -> Any:
        """Every value that could otherwise come from the model's folder or from a default is set."""
        from transformers import GenerationConfig

        sampled = call.temperature > 0
        values: dict[str, Any] = {
            "max_new_tokens": call.max_new_tokens,
            "do_sample": sampled,
            "eos_token_id": None if call.ignore_eos or not call.stop_token_ids else list(call.stop_token_ids),
            "pad_token_id": _pad_id(call),
            "use_cache": True,
        }
        if sampled:
            values |= {"temperature": call.temperature, "top_p": call.top_p, "top_k": 0}
        return GenerationConfig(**{**values, **self._cache_options(), **self._own_options()})

    def _cache_options(self) -> dict[str, Any]:
        ngram = self.config.method.ngram
        if ngram:
            return {"prompt_lookup_num_tokens": ngram.draft_tokens, "max_matching_ngram_size": ngram.max_n}
        if not self._compile_config:
            # On a GPU a static cache compiles by default; only a method that says so may.
            return {"disable_compile": True}
        # One length for all batches keeps the cache's shape, and so the number of graphs.
        length = {"max_cache_len": self._limit} if self.config.max_model_len else {}
        return {"cache_implementation": "static", "compile_config": self._compile_config, **length}

    def _own_options(self) -> dict[str, Any]:
        return dict(self.config.method.engine_args.get(GENERATE, {}))

    def _inputs(self, prompts: Sequence[Sequence[int]], call: CallParams) -> dict[str, Any]:
        """Left padding with a mask of our own: pad is often an id that also occurs in prompts."""
        import torch

        width = max(map(len, prompts))
        ids = [[_pad_id(call)] * (width - len(one)) + list(one) for one in prompts]
        mask = [[0] * (width - len(one)) + [1] * len(one) for one in prompts]
        device = self._model.device
        return {"input_ids": torch.tensor(ids, device=device), "attention_mask": torch.tensor(mask, device=device)}

    def _run(self, inputs: dict[str, Any], options: Any, call: CallParams) -> tuple[list[list[int]], float, StepClock]:
        import torch

        if call.temperature > 0:
            torch.manual_seed(call.seed)
        self._synchronise()
        clock = StepClock(self.host.tick)
        with torch.inference_mode():
            out = self._model.generate(**inputs, generation_config=options, streamer=clock)
        self._synchronise()
        wall_s = clock.elapsed_s()
        return out[:, inputs["input_ids"].shape[1] :].tolist(), wall_s, clock

    def _synchronise(self) -> None:
        if self.config.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def _peak_bytes(self) -> int | None:
        memory = runtime.with_device_memory(self.memory.read(busy=True), self.config.device)
        return runtime.peak_bytes(memory, self.config.device)

    def _extra(self, clock: StepClock) -> dict[str, float]:
        extra = {"steps": float(clock.steps)}
        if self._compile_config:
            from torch._dynamo.utils import counters

            extra["unique_graphs"] = float(counters["stats"]["unique_graphs"])
        return extra


class StepClock:
    """A streamer: `generate` hands it the prompt once, then each step's tokens, already on the host.

    Rows of a batch advance together, so one count of tokens serves all of them.
    """

    def __init__(self, tick: Any = lambda: None) -> None:
        self._tick = tick
        self._ends: list[float] = []  # by number of tokens - 1: seconds at which a row had that many
        self._prompt_seen = False
        self.steps = 0
        self._start = time.perf_counter()

    def put(self, tokens: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        # One token for each row, or with speculation several for the only row.
        count = int(tokens.shape[1]) if tokens.ndim == 2 else 1
        self._ends += [self.elapsed_s()] * count
        self.steps += 1
        self._tick()

    def end(self) -> None: ...

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._start

    def token_s(self, number: int) -> float | None:
        """Seconds until a row had its `number`-th token, counted from 1."""
        return self._ends[number - 1] if 1 <= number <= len(self._ends) else None


def _output(prompt_id: str, row: list[int], clock: StepClock, call: CallParams) -> Output:
    stop = () if call.ignore_eos else call.stop_token_ids
    count = next((i for i, token in enumerate(row, 1) if token in stop), len(row))
    return Output(prompt_id, row[:count], ttft_s=clock.token_s(1), latency_s=clock.token_s(count))


def _pad_id(call: CallParams) -> int:
    """Only a filler under the mask: never a token added to the model's vocabulary."""
    return call.stop_token_ids[0] if call.stop_token_ids else 0


def _model_args(config: BackendConfig) -> dict[str, Any]:
    args: dict[str, Any] = {"dtype": config.dtype, "trust_remote_code": config.trust_remote_code}
    if config.method.attention:
        args["attn_implementation"] = config.method.attention
    return args


def _load_model(config: BackendConfig) -> Any:
    from transformers import AutoModelForCausalLM, GenerationConfig

    own = {key: value for key, value in config.method.engine_args.items() if key != GENERATE}
    model = AutoModelForCausalLM.from_pretrained(config.model_path, **{**_model_args(config), **own})
    model = model.to(config.device).eval()
    # generate fills whatever we leave open from this object: penalties, top_k and stop ids of the model's folder.
    model.generation_config = GenerationConfig()
    return model


def _context_length(model: Any) -> int | None:
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None


def _device_names(device: str) -> list[str]:
    if device != "cuda":
        return []
    import torch

    return [str(torch.cuda.get_device_name())]


def _is_device_fault(exc: Exception) -> bool:
    """After a fault of the device each later call fails too. Running out of memory is not one."""
    import torch

    if isinstance(exc, torch.OutOfMemoryError):
        return False
    return isinstance(exc, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(exc)
