"""What is checked before an engine sees anything, so that each engine refuses the same things.

Left to themselves engines differ: one truncates an over-long request in
silence, one dies of an empty prompt, one of an id outside its vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.buckets import overflows
from protocol.specs import BackendConfig, CallParams, MethodSpec, PromptBatch, PromptInput, unpack_ids

#: Engines need room for one more token than they score: some make one all the same, and it is thrown away.
SCORING_NEW_TOKENS = 1
_TOO_SMALL = "no bucket holds a batch of {} prompts"


class NotAdmitted(ValueError):
    """A batch holds a prompt that no engine may be given. Lists all of them."""


class CannotHonour(ValueError):
    """The configuration asks for something that this engine can't do as asked. Lists everything."""


def admit(batch: PromptBatch, max_model_len: int | None, vocab_size: int | None, images: int = 0) -> list[list[int]]:
    """The prompts' ids as the model sees them. Raises NotAdmitted for an empty prompt, for one that with
    the new tokens exceeds `max_model_len` tokens, for an id not below `vocab_size`, for more
    than `images` images, and for one that is to be scored and has nothing to score."""
    prompts = [unpack_ids(prompt.seen) for prompt in batch.prompts]
    scores = batch.call.task == "score"
    new = SCORING_NEW_TOKENS if scores else batch.call.max_new_tokens
    bare = [p for p, ids in zip(batch.prompts, prompts, strict=True) if not 0 < (p.score_from or 0) < len(ids)]
    problems = [f"prompt {prompt.id}: has nothing to score" for prompt in bare if scores]
    problems += [
        f"prompt {prompt.id}: {problem}"
        for prompt, ids in zip(batch.prompts, prompts, strict=True)
        for problem in _problems(ids, new, max_model_len, vocab_size)
    ]
    problems += [f"prompt {prompt.id}: {why}" for prompt in batch.prompts for why in _pictured(prompt, images, scores)]
    if problems:
        raise NotAdmitted("; ".join(problems))
    return prompts


def _pictured(prompt: PromptInput, images: int, scores: bool) -> Iterator[str]:
    count = len(prompt.images)
    if count > images:
        yield f"has {count} images, and {images or 'none'} may be in a prompt"
    if count and scores:
        yield "has images, and is to be scored"


def _problems(ids: Sequence[int], new: int, limit: int | None, vocab_size: int | None) -> Iterator[str]:
    if not ids:
        yield "has no tokens"
    if limit is not None and len(ids) + new > limit:
        yield f"{len(ids)} tokens and {new} new ones exceed the limit of {limit}"
    if vocab_size is not None and ids and max(ids) >= vocab_size:
        yield f"token id {max(ids)} is outside the vocabulary of {vocab_size}"


def check(config: BackendConfig) -> None:
    """Raises CannotHonour if the engine of `config.method` can't do exactly what is asked."""
    problems = list(refusals(config))
    if problems:
        raise CannotHonour(f"method {config.method.name} ({config.method.engine}): " + "; ".join(problems))


def refusals(config: BackendConfig) -> Iterator[str]:
    """One sentence for each thing asked that would be ignored or approximated."""
    if config.images_per_prompt and config.input_mode != "vision":
        yield f"prompts have images, and input_mode is {config.input_mode}"
    if config.images_per_prompt and config.task == "score":
        yield "prompts with images can't be scored"
    yield from _other_machine(config)
    yield from {"hf": _hf, "vllm": _vllm, "sglang": _sglang}[config.method.engine](config)


def _other_machine(config: BackendConfig) -> Iterator[str]:
    """What needs another kind of device. vLLM would silently take another attention, SGLang's children would die."""
    engine, attention, cuda = config.method.engine, config.method.attention, config.device == "cuda"
    if cuda and attention in _CPU_ONLY[engine]:
        yield f"{attention} is its attention for CPUs"
    elif engine == "hf" and not cuda and attention and "flash" in attention:
        yield f"{attention} needs a GPU"
    elif engine != "hf" and not cuda and attention not in _ON_CPU[engine]:
        yield f"on a CPU it has no {attention or 'attention of its own choice without AMX'}"
    if engine == "sglang" and not cuda and config.method.engine_args.get("speculative_algorithm") == "NGRAM":
        yield "its n-gram speculation needs CUDA kernels"


_CPU_ONLY: dict[str, tuple[str, ...]] = {"hf": (), "vllm": ("CPU_ATTN",), "sglang": ("intel_amx",)}
_ON_CPU: dict[str, tuple[str | None, ...]] = {
    "vllm": (None, "CPU_ATTN"),
    "sglang": ("torch_native", "flex_attention", "intel_amx"),
}


def _hf(config: BackendConfig) -> Iterator[str]:
    method = config.method
    if config.prefix_caching:
        yield "it keeps no KV cache between calls, so prefix_caching can't be on"
    if method.compile and method.eager:
        yield "eager and compile exclude each other"
    if method.eager is False and not method.compile:
        yield "eager is false, and no compile mode is given"
    yield from _hf_parallel(config)
    yield from _hf_ngram(method)
    yield from _hf_paged(config)
    if method.rocket_bucket and method.attention == "flex_attention" and config.device == "cpu":
        yield "on a CPU flex_attention takes no padding, and rocket buckets pad"
    if overflows(config):
        yield _TOO_SMALL.format(config.batch_size)
    if config.images_per_prompt and (method.continuous_batching or method.rocket_bucket or method.ngram):
        yield "none of continuous_batching, rocket_bucket and ngram takes prompts with images"
    if config.expert_load and (method.ngram or method.compile or method.continuous_batching):
        yield "expert_load watches the routers of padded, uncompiled batches, without drafts that are thrown away"
    yield from _hf_call(config, CallParams.of(config))


def _hf_parallel(config: BackendConfig) -> Iterator[str]:
    method, stages = config.method, config.pipeline_parallel_size
    shared = config.tensor_parallel_size > 1
    if shared and (stages > 1 or method.compile or method.rocket_bucket or method.continuous_batching):
        yield "tensor parallelism goes with none of pipeline stages, compile, rocket buckets and continuous_batching"
    if stages > 1 and config.device == "cpu":
        yield "a CPU has one device, and pipeline parallelism is asked for"
    if stages > 1 and (method.compile or method.continuous_batching):
        yield "the hooks that move activations from device to device can't be compiled, nor a paged cache be split"


def _hf_ngram(method: MethodSpec) -> Iterator[str]:
    if method.ngram and method.ngram.min_n != 1:
        yield f"its n-gram lookup goes down to single tokens, so min_n can't be {method.ngram.min_n}"
    if method.ngram and (method.compile or method.rocket_bucket):
        yield "n-gram lookup does not run on the static cache that compilation and rocket buckets need"


def _hf_paged(config: BackendConfig) -> Iterator[str]:
    method = config.method
    if not method.continuous_batching:
        return
    if method.compile or method.rocket_bucket or method.ngram:
        yield "continuous_batching goes with none of compile, rocket_bucket and ngram"
    if method.attention not in (None, "sdpa", "eager", "paged|eager") and "flash" not in (method.attention or ""):
        yield f"continuous_batching has no {method.attention}"
    if config.device == "cpu" and config.kv_cache_bytes is None:
        yield "on a CPU continuous_batching needs kv_cache_bytes"


def check_call(config: BackendConfig, call: CallParams) -> None:
    """Raises CannotHonour if Transformers can't do what this call asks of it."""
    problems = list(_hf_call(config, call))
    if problems:
        raise CannotHonour(f"method {config.method.name} ({config.method.engine}): " + "; ".join(problems))


def _hf_call(config: BackendConfig, call: CallParams) -> Iterator[str]:
    method = config.method
    if call.task == "score" and (method.compile or method.rocket_bucket or method.ngram or method.continuous_batching):
        yield "scoring is one plain forward pass, which nothing of compile, buckets, n-grams or paging acts on"
    if call.task == "score" and config.expert_load:
        yield "expert_load counts the tokens of generated outputs, and this call is to score"
    if call.logprobs and method.continuous_batching:
        yield "continuous_batching tells no log-probabilities of tokens that it did not choose"


def _vllm(config: BackendConfig) -> Iterator[str]:
    yield from _own_compiler(config)
    if config.device == "cpu" and config.kv_cache_bytes is None and config.gpu_memory_utilization is None:
        yield "on a CPU it needs kv_cache_bytes"
    if config.device == "cpu" and config.pipeline_parallel_size > 1 and config.method.eager:
        # Its warm-up makes what they receive into, and is left out with eager and a given size of the cache.
        yield "on a CPU its later pipeline stages die of their first batch unless it compiles, and eager is asked for"
    if config.expert_load and not config.method.eager:
        yield "expert_load watches the routers, which compiled code and CUDA graphs pass by: it needs eager"
    yield from _graph_buckets(config)


def _sglang(config: BackendConfig) -> Iterator[str]:
    yield from _own_compiler(config)
    if config.method.ngram:
        yield "its n-gram speculation keeps a trie over all requests and has no min_n and max_n"
    if config.device == "cpu" and config.kv_cache_bytes is None:
        yield "on a CPU it needs kv_cache_bytes"
    if config.device == "cpu" and config.method.eager is False:
        yield "eager is false, and there are no CUDA graphs on a CPU"
    yield from _captures(config)


def _captures(config: BackendConfig) -> Iterator[str]:
    """SGLang's attention implementations without CUDA graphs."""
    method, wanted = config.method, config.method.rocket_bucket or config.method.eager is False
    if config.device == "cuda" and wanted and method.attention in ("torch_native", "flex_attention"):
        yield f"{method.attention} runs without the CUDA graphs that are asked for"
    yield from _graph_buckets(config)


def _graph_buckets(config: BackendConfig) -> Iterator[str]:
    """Where rocket buckets are the sizes that CUDA graphs are captured for."""
    method = config.method
    if not method.rocket_bucket:
        return
    if config.device == "cpu":
        yield "rocket_bucket sets the sizes of CUDA graphs, and there are none on a CPU"
    if method.eager:
        yield "rocket_bucket sets the sizes of CUDA graphs, and eager leaves them out"
    if overflows(config):
        yield _TOO_SMALL.format(config.batch_size)


def _own_compiler(config: BackendConfig) -> Iterator[str]:
    if config.method.compile:
        yield "it drives torch.compile by options of its own, so compile can't be honoured (use eager, or engine_args)"
