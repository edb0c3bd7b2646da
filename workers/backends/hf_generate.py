"""`model.generate` on one padded batch: static batching, with or without buckets, compilation or prompt lookup."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from protocol.buckets import Buckets, Shape
from protocol.specs import BackendConfig, CallParams, PromptBatch
from workers.backends import hf_compile, hf_logprobs, hf_settings
from workers.backends.admission import NotAdmitted
from workers.backends.base import Output, cut_at_eos
from workers.backends.hf_clock import StepClock
from workers.backends.hf_compile import FLAG_NOT_COMPILED, Compilation
from workers.backends.hf_experts import RouterLoad
from workers.backends.hf_model import GENERATE, eos_ids, own_args, pad_id, padded, synchronise
from workers.backends.hf_ngram import DraftCounter
from workers.backends.hf_vision import Pictures
from workers.backends.watch import watched

#: What is set from the call or the method in every GenerationConfig.
OURS = {
    *("max_new_tokens", "do_sample", "eos_token_id", "pad_token_id", "use_cache", "temperature", "top_p", "top_k"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "output_logits", "return_dict_in_generate"),
    *("disable_compile", "cache_implementation", "compile_config", "max_cache_len"),
}
#: Tokens of a warm-up call: the first comes from the prompt, the others from the decode step. Where CUDA graphs
#: are used it is run once, then captured, then replayed.
WARM_TOKENS = 4


@dataclass(frozen=True)
class Answer:
    """What a batch gave: outputs in its order, seconds of the engine's own call, counters, and the ids that the engine
    held as the ends of an output."""

    outputs: list[Output]
    wall_s: float
    extra: dict[str, float]
    held: Collection[int] = ()


@dataclass(frozen=True)
class Shaping:
    """What fixes the shapes and the graphs of a method. `compiled` is the CompileConfig of the decode step;
    `compilation` watches torch.compile, where anything goes through it."""

    buckets: Buckets | None = None
    compiled: Any = None
    compilation: Compilation | None = None


class Generator:
    """One loaded model. `tick` is called at every step. `ran` is the GenerationConfig of the last batch as `generate`
    completed it, None before the first."""

    def __init__(self, config: BackendConfig, model: Any, shaping: Shaping, tick: Callable[[], object]) -> None:
        self._config, self._model, self._tick = config, model, tick
        self.buckets, self._compiled, self._compilation = shaping.buckets, shaping.compiled, shaping.compilation
        self._caches: dict[int, Any] = {}
        self._drafts = DraftCounter(model) if config.method.ngram else None
        self._load = RouterLoad(model) if config.expert_load else None
        self.pictures = Pictures(config) if config.images_per_prompt else None
        self.ran: Any = None
        self._criteria: Iterable[Any] = ()

    def warm_up(self) -> None:
        """Runs every bucket once, so that nothing is compiled or captured in a measured batch."""
        call = replace(CallParams.of(self._config), max_new_tokens=min(WARM_TOKENS, self._config.max_new_tokens))
        options = self.options(replace(call, ignore_eos=True))
        for shape in self.buckets.shapes() if self.buckets else ():
            inputs = self._inputs([[pad_id(call)] * shape.length], call, shape)
            self._call(inputs, options, StepClock(self._tick), self._cache_of(shape))

    def answer(self, batch: PromptBatch, prompts: Sequence[Sequence[int]]) -> Answer:
        import torch

        call = batch.call
        shape = self._shape(prompts, call)
        inputs, options = self._inputs(prompts, call, shape), self.options(call)
        again = self._compilation.recompiles if self._compilation else 0
        if self._load:
            self._load.start()
        if call.temperature > 0:
            torch.manual_seed(call.seed)
        synchronise(self._config.device)
        clock = StepClock(self._tick)
        if self.pictures:  # decoding and preparing images counts, as it does in the other engines
            inputs |= self.pictures.inputs(batch.prompts, shape.length, self._model)
        made, logits = self._call(inputs, options, clock, self._cache_of(shape))
        synchronise(self._config.device)
        wall_s = clock.elapsed_s()
        ids, stop = made[: len(prompts), shape.length :], eos_ids(call) or ()
        rows = [cut_at_eos(row, stop) for row in ids.tolist()]  # the rest is padding
        extra = self._extra(clock, shape, prompts, again)
        if self._load:
            extra |= self._load.counts(inputs["attention_mask"], [len(row) for row in rows])
        told = hf_logprobs.of_steps(logits, ids, call.logprobs) if call.logprobs else [None] * len(rows)
        return Answer(self._outputs(batch, rows, told, clock), wall_s, extra, hf_settings.ends(self._criteria))

    def _shape(self, prompts: Sequence[Sequence[int]], call: CallParams) -> Shape:
        need = Shape(len(prompts), max(map(len, prompts)))
        if self.buckets:
            return self.buckets.fit(*need, call.max_new_tokens)
        if self._config.method.ngram and len(prompts) > 1:
            raise NotAdmitted(f"n-gram lookup takes one prompt at a time, and this batch has {len(prompts)}")
        padded = any(len(one) < need.length for one in prompts)
        if padded and self._config.method.attention == "flex_attention" and self._config.device == "cpu":
            raise NotAdmitted("on a CPU flex_attention takes no padding: prompts of a batch must be equally long")
        return need

    def _inputs(self, prompts: Sequence[Sequence[int]], call: CallParams, shape: Shape) -> dict[str, Any]:
        """Rows that fill a bucket repeat the first prompt."""
        rows = [*prompts, *[prompts[0]] * (shape.batch - len(prompts))]
        return padded(rows, shape.length, call, self._model.device)

    def options(self, call: CallParams) -> Any:
        """A GenerationConfig in which every value is set that could otherwise come from the model's
        folder or from a default."""
        from transformers import GenerationConfig

        values = {**sampling(call), **self._cache_options()}
        if call.logprobs:  # keeps each step's logits, and with them the cache, which a run for speed must not pay for
            values |= {"output_logits": True, "return_dict_in_generate": True}
        return GenerationConfig(**{**values, **own_args(self._config, GENERATE)})

    def _cache_options(self) -> dict[str, Any]:
        ngram = self._config.method.ngram
        if ngram:
            return {"prompt_lookup_num_tokens": ngram.draft_tokens, "max_matching_ngram_size": ngram.max_n}
        # On a GPU a static cache compiles by default; only a method that says so may.
        how = {"compile_config": self._compiled} if self._compiled else {"disable_compile": True}
        if self.buckets or not self._compiled:
            return how
        # One length for all batches keeps the cache's shape, and so the number of graphs.
        length = {"max_cache_len": self._config.max_model_len} if self._config.max_model_len else {}
        return how | {"cache_implementation": "static"} | length

    def _cache_of(self, shape: Shape) -> Any:
        """With buckets, the one static cache of this batch size: CUDA graphs are recorded for the addresses of a
        cache, and generate would make another for every batch."""
        if self.buckets and shape.batch not in self._caches:
            from transformers import StaticCache

            text = self._model.config.get_text_config(decoder=True)
            self._caches[shape.batch] = StaticCache(config=text, max_cache_len=self.buckets.cache_tokens)
        return self._caches.get(shape.batch)

    def _call(self, inputs: dict[str, Any], options: Any, clock: StepClock, cache: Any) -> tuple[Any, Any]:
        """All ids, prompts included, and the logits of each step where they are asked for."""
        import torch

        kept = {} if cache is None else {"past_key_values": cache}
        with torch.inference_mode():
            if cache is not None:
                cache.reset()
            with watched(self._model, "_get_stopping_criteria", _completed) as seen:
                made = self._model.generate(**inputs, **kept, generation_config=options, streamer=clock)
        self.ran, self._criteria = seen[-1]
        return (made, None) if isinstance(made, torch.Tensor) else (made.sequences, made.logits)

    def _outputs(
        self, batch: PromptBatch, rows: Sequence[list[int]], told: Sequence[Any], clock: StepClock
    ) -> list[Output]:
        flags, outputs = self._flags(clock), []
        for prompt, row, positions in zip(batch.prompts, rows, told, strict=True):
            times = clock.times_s(len(row))
            first, last = (times[0], times[-1]) if times else (None, None)
            kept = positions[: len(row)] if positions else None
            outputs.append(
                Output(prompt.id, row, ttft_s=first, latency_s=last, times_s=times, positions=kept, flags=flags)
            )
        return outputs

    def _flags(self, clock: StepClock) -> tuple[str, ...]:
        """Of all outputs of a batch. The prompt's step is not compiled, so one token alone compiles nothing."""
        if not self._compilation:
            return ()
        skipped = self._compiled is not None and clock.steps > 1 and not hf_compile.graphs()
        return self._compilation.flags() + ((FLAG_NOT_COMPILED,) if skipped else ())

    def _extra(self, clock: StepClock, shape: Shape, prompts: Sequence[Sequence[int]], again: int) -> dict[str, float]:
        extra = {"steps": float(clock.steps)}
        if self._drafts:
            extra |= self._drafts.take() | {"accepted_tokens": float(clock.tokens - clock.steps)}
        if self._compilation:
            extra["unique_graphs"] = float(hf_compile.graphs())
            extra["recompiles"] = float(self._compilation.recompiles - again)
        if self.buckets:
            fill = sum(map(len, prompts)) / shape.cells
            extra |= {"bucket_batch": float(shape.batch), "bucket_length": float(shape.length), "bucket_fill": fill}
        return extra


def _completed(criteria: Any, *_: Any, generation_config: Any, **__: Any) -> tuple[Any, Any]:
    return generation_config, criteria


def sampling(call: CallParams) -> dict[str, Any]:
    """Values of a GenerationConfig that say what a call asks for."""
    sampled = call.temperature > 0
    values: dict[str, Any] = {
        "max_new_tokens": call.max_new_tokens,
        "do_sample": sampled,
        "eos_token_id": eos_ids(call),
        "pad_token_id": pad_id(call),
        "use_cache": True,
    }
    return values | ({"temperature": call.temperature, "top_p": call.top_p, "top_k": 0} if sampled else {})
