"""What is checked before an engine sees anything, so that each engine refuses the same things.

Left to themselves engines differ: one truncates an over-long request in
silence, one dies of an empty prompt, one of an id outside its vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.specs import BackendConfig, PromptBatch, unpack_ids


class NotAdmitted(ValueError):
    """A batch holds a prompt that no engine may be given. Lists all of them."""


class CannotHonour(ValueError):
    """The configuration asks for something that this engine can't do as asked. Lists everything."""


def admit(batch: PromptBatch, max_model_len: int | None, vocab_size: int | None) -> list[list[int]]:
    """The prompts' ids. Raises NotAdmitted for an empty prompt, for one that with
    the new tokens exceeds `max_model_len` tokens, and for an id not below `vocab_size`."""
    prompts = [unpack_ids(prompt.token_ids) for prompt in batch.prompts]
    new = batch.call.max_new_tokens
    problems = [
        f"prompt {prompt.id}: {problem}"
        for prompt, ids in zip(batch.prompts, prompts, strict=True)
        for problem in _problems(ids, new, max_model_len, vocab_size)
    ]
    if problems:
        raise NotAdmitted("; ".join(problems))
    return prompts


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
    if config.method.rocket_bucket:
        yield "rocket_bucket is not supported yet"
    if config.input_mode == "vision":
        yield "input_mode is vision, and this backend takes text only"
    yield from {"hf": _hf, "vllm": _vllm, "sglang": _sglang}[config.method.engine](config)


def _hf(config: BackendConfig) -> Iterator[str]:
    method = config.method
    if config.tensor_parallel_size * config.pipeline_parallel_size > 1:
        yield "it runs on one device only, and tensor or pipeline parallelism is asked for"
    if config.prefix_caching:
        yield "it keeps no KV cache between calls, so prefix_caching can't be on"
    if method.compile and method.eager:
        yield "eager and compile exclude each other"
    if method.eager is False and not method.compile:
        yield "eager is false, and no compile mode is given"
    if not method.compile and (config.torch_compile_mode or config.torch_compile_cache_size_limit):
        yield "torch_compile_mode or torch_compile_cache_size_limit is set, and this method does not compile"
    if method.ngram and method.ngram.min_n != 1:
        yield f"its n-gram lookup goes down to single tokens, so min_n can't be {method.ngram.min_n}"
    if method.ngram and method.compile:
        yield "n-gram lookup does not run on the static cache that compilation needs"


def _vllm(config: BackendConfig) -> Iterator[str]:
    yield from _own_compiler(config)
    if config.device == "cpu" and config.kv_cache_bytes is None and config.gpu_memory_utilization is None:
        yield "on a CPU it needs kv_cache_bytes"


def _sglang(config: BackendConfig) -> Iterator[str]:
    yield from _own_compiler(config)
    if config.method.ngram:
        yield "its n-gram speculation keeps a trie over all requests and has no min_n and max_n"
    if config.device == "cpu" and config.kv_cache_bytes is None:
        yield "on a CPU it needs kv_cache_bytes"
    if config.device == "cpu" and config.method.eager is False:
        yield "eager is false, and there are no CUDA graphs on a CPU"


def _own_compiler(config: BackendConfig) -> Iterator[str]:
    if config.method.compile or config.torch_compile_mode or config.torch_compile_cache_size_limit:
        yield (
            "it drives torch.compile by options of its own, so compile, torch_compile_mode and "
            "torch_compile_cache_size_limit can't be honoured (use eager, or engine_args)"
        )
