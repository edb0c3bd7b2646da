"""Hugging Face Transformers, in this process: `generate` on padded batches, or its continuous batching.

engine_args of a method go to `from_pretrained`, except two: "generate", whose entries go to
GenerationConfig, and "continuous_batching", whose entries go to ContinuousBatchingConfig.
"""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import Any

from msgspec.structs import replace

from protocol import buckets
from protocol.records import BatchStats, EngineSettings, Generation, LoadTimes, MemoryUse, RuntimeMetadata
from protocol.specs import CallParams, PromptBatch
from workers.backends import hf_compile, hf_model, hf_notes, hf_ranks, hf_settings, runtime
from workers.backends.admission import admit, check, check_call
from workers.backends.base import Backend, EngineDead, assemble, batch_stats, plain
from workers.backends.hf_compile import Compilation
from workers.backends.hf_generate import OURS, Answer, Generator, Shaping
from workers.backends.hf_model import GENERATE, PAGED
from workers.backends.hf_paged import Paged
from workers.backends.hf_ranks import Ranks, Told
from workers.backends.text import TextDecoder


class HfBackend(Backend):
    _model: Any = None
    _decode: TextDecoder
    _metadata: RuntimeMetadata
    _compilation: Compilation | None = None
    _generator: Generator | None = None
    _paged: Paged | None = None
    _ranks: Ranks | None = None
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
        self._model = self._load_model()
        weights_s = watch.lap_s()
        self._limit = hf_settings.usable_length(self._model, self.config.max_model_len)
        times = self._start(LoadTimes(tokenizer_s=tokenizer_s, weights_s=weights_s))
        self._metadata = self._describe(times)
        return self.runtime_metadata()

    def generate(self, batch: PromptBatch) -> tuple[list[Generation], BatchStats]:
        prompts = admit(batch, self._limit, hf_model.vocabulary(self._model), self.config.images_per_prompt)
        check_call(self.config, batch.call)
        try:
            answer = self._answer(batch, prompts)
        except Exception as exc:
            if hf_model.is_device_fault(exc):
                raise EngineDead(f"{type(exc).__name__}: {exc}") from exc
            raise
        if batch.call.task == "generate":
            self._metadata = runtime.with_ends(self._metadata, batch.call, answer.held)
        generations = assemble(batch, answer.outputs, self._decode, batch.call.stop_token_ids, answer.wall_s)
        return generations, batch_stats(generations, answer.wall_s, self._peak_bytes(), answer.extra)

    def runtime_metadata(self) -> RuntimeMetadata:
        found, told = self._settings(), self._metadata
        return replace(
            told,
            memory=runtime.with_loaded(self._memory(), told.memory),
            compiled=hf_settings.compiled(found.compile_mode),
            settings=replace(found, eos=told.settings.eos),
            flags=list(dict.fromkeys([*told.flags, *(self._compilation.flags() if self._compilation else ())])),
        )

    def shutdown(self) -> None:
        if self._paged:
            self._paged.stop()
        if self._ranks:
            self._ranks.stop()
        self._generator = self._paged = self._model = None
        gc.collect()

    def _load_model(self) -> Any:
        if self.config.tensor_parallel_size == 1:
            return hf_model.load_model(self.config)
        self._ranks = Ranks(self.config, self.host.give_up)
        with self._ranks.loading():
            return hf_model.load_model(self.config)

    def _start(self, times: LoadTimes) -> LoadTimes:
        """Makes what batches run in, and gives `times` with those of compiling, warming up and the cache."""
        watch = runtime.Stopwatch()
        if self.config.method.continuous_batching:
            self._paged = Paged(self.config, self._model, self._limit or 0, self.host.tick)
            self._paged.start(CallParams.of(self.config))
            # A warm-up that captures graphs makes the cache too, and does not tell the two apart.
            return replace(times, **{"warmup_s" if self._paged.captures else "kv_cache_s": watch.lap_s()})
        self._generator = Generator(self.config, self._model, self._shaping(), self.host.tick)
        if not self._generator.buckets:
            return times
        self._generator.warm_up()
        compile_s = self._compilation.seconds if self._compilation else None
        return replace(times, compile_s=compile_s, warmup_s=max(0.0, watch.lap_s() - (compile_s or 0.0)))

    def _shaping(self) -> Shaping:
        config, chosen = self.config, None
        if config.method.rocket_bucket:
            chosen = buckets.choose(config, self._limit or 0)
        if config.compiles_here:
            # The decode step has one shape for each batch size.
            hf_compile.allow(config.torch_compile_cache_size_limit, len(chosen.batch_sizes) if chosen else 0)
            captures = hf_compile.cuda_graphs(config.compile_mode, config.device) == hf_compile.CAPTURES
            self._compilation = Compilation(captures)
        return Shaping(chosen, hf_compile.compile_config(config), self._compilation)

    def _answer(self, batch: PromptBatch, prompts: list[list[int]]) -> Answer:
        if self._paged:
            return self._paged.answer(batch, prompts)
        assert self._generator is not None
        run = partial(hf_ranks.answer, self.config, self._model, self._generator, batch, prompts)
        return self._ranks.together(batch, prompts, run) if self._ranks else run()

    def _describe(self, load: LoadTimes) -> RuntimeMetadata:
        model = self._model
        tokens, size = self._paged.capacity() if self._paged else (None, None)
        weights = hf_model.weights_bytes(model) + sum(one.weights_bytes for one in self._others())
        return runtime.describe(
            self.config,
            device=model.device.type,
            engine_version=runtime.version("transformers") or "unknown",
            devices=[
                *hf_model.device_names(self.config.device),
                *(name for one in self._others() for name in one.devices),
            ],
            dtype=hf_settings.dtype_of(model),
            attention_backend=hf_model.attention_of(model),
            kv_cache_tokens=tokens,
            kv_cache_bytes=size,
            max_model_len=self._limit,
            threads=runtime.threads(),
            options=plain(self._options()),
            flags=self._flags(),
            notes=hf_notes.notes(self.config, runtime.threads(), len(os.sched_getaffinity(0))),
            load=load,
            memory=MemoryUse(weights_bytes=weights),
        )

    def _flags(self) -> list[str]:
        own, ours = hf_model.own_args, self._paged.ours() if self._paged else {}
        told = {**hf_model.model_args(self.config), **self.config.method.engine_args}
        asked = {"attention": told.get("attn_implementation"), "dtype": told["dtype"]}
        found = {"attention": hf_model.attention_of(self._model), "dtype": hf_settings.dtype_of(self._model)}
        return [
            *runtime.not_honoured(asked, found),
            *runtime.overridden(hf_model.model_args(self.config), self.config.method.engine_args),
            *(f"{runtime.FLAG_OVERRIDE}:{GENERATE}.{key}" for key in own(self.config, GENERATE) if key in OURS),
            *(f"{runtime.FLAG_OVERRIDE}:{PAGED}.{key}" for key in own(self.config, PAGED) if key in ours),
        ]

    def _settings(self) -> EngineSettings:
        pictures = self._generator.pictures if self._generator else None
        return replace(
            self._paged.settings() if self._paged else hf_settings.settings(self._model, *self._generation()),
            quantization=hf_model.quantization_of(self._model),
            image_processor=pictures.processor if pictures else None,
            tensor_parallel_size=getattr(self._model, "tp_size", None) or 1,
            pipeline_parallel_size=len(hf_model.devices_of(self._model)),
        )

    def _generation(self) -> tuple[Any, bool]:
        """The GenerationConfig that the last batch ran with, or the one that the first will be given; which one."""
        assert self._generator is not None
        ran = self._generator.ran
        return (self._generator.options(CallParams.of(self.config)), False) if ran is None else (ran, True)

    def _options(self) -> dict[str, Any]:
        found = {
            "model_class": type(self._model).__name__,
            "devices": hf_model.devices_of(self._model),
            "recompile_limit": self._compilation.limit if self._compilation else None,
        }
        if self._paged:
            return {**found, "padding": "none", **self._paged.options()}
        assert self._generator is not None
        chosen = self._generator.buckets
        if chosen is None:
            return {**found, "padding": "left", "cache": self._generation()[0].cache_implementation or "dynamic"}
        shapes = {
            "batch_sizes": chosen.batch_sizes,
            "lengths": chosen.lengths,
            "cache_tokens": chosen.cache_tokens,
        }
        return {**found, "padding": "left", "cache": "static", "buckets": shapes}

    def _peak_bytes(self) -> int | None:
        return runtime.peak_bytes(self._memory(busy=True), self.config.device)

    def _memory(self, *, busy: bool = False) -> MemoryUse:
        own = runtime.with_device_memory(self.memory.read(busy=busy), self.config.device)
        return hf_ranks.added(own, [one.memory for one in self._others()])

    def _others(self) -> list[Told]:
        return self._ranks.told if self._ranks else []
