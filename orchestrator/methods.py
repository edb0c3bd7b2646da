"""Methods: named, fixed ways to run an engine, and where each can't run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, get_args

from orchestrator.definition.builtin import NGRAM, builtin
from orchestrator.definition.requirements import SGLANG_UNCAPTURED, Capability, Kind, unfit_gpu, wrong_kind
from protocol.buckets import overflows
from protocol.specs import BackendConfig, Engine, MethodSpec

__all__ = ["ENGINES", "NAME_RULE", "NGRAM", "Kind", "builtin", "is_name", "misfits", "refuse"]

ENGINES: Final[tuple[str, ...]] = get_args(Engine)


def refuse(method: MethodSpec, kind: Kind, gpus: Iterable[tuple[str, Capability | None]] = ()) -> str | None:
    """Why `method` can't run on a machine of this kind with these GPUs, each with its compute
    capability; None if it can, as far as that is known without the engine's environment."""
    return wrong_kind(method, kind) or unfit_gpu(method, gpus)


NAME_RULE = "use letters, digits, dot, underscore and hyphen; begin with a letter or a digit; at most 64"


def is_name(text: str) -> bool:
    """Fit for a file name, a table and a command line."""
    good = all(c.isascii() and (c.isalnum() or c in "._-") for c in text)
    return good and 0 < len(text) <= 64 and text[0].isalnum()


def misfits(config: BackendConfig) -> list[str]:
    """What this configuration asks of its engine that can't be done as asked; the worker refuses the same things, only
    later. A setting that merely does nothing in this method is no misfit: see `definition.acting`."""
    scored = config.images_per_prompt > 0 and config.task == "score"
    pictured = ["prompts with images can't be scored"] if scored else []
    return pictured + _MISFITS[config.method.engine](config)


def _hf_misfits(config: BackendConfig) -> list[str]:
    method, compiles = config.method, config.method.compile is not None
    flex_on_cpu = method.attention == "flex_attention" and config.device == "cpu"
    plain = not (compiles or method.rocket_bucket or method.ngram or method.continuous_batching)
    checks: dict[str, object] = {
        "prompt lookup runs one prompt at a time: it needs batch_size 1": method.ngram and config.batch_size > 1,
        "prompt lookup does not run on the static cache of compile and rocket_bucket": (
            method.ngram and (compiles or method.rocket_bucket)
        ),
        "it keeps no KV cache between batches: prefix_caching must be false": config.prefix_caching,
        "eager is false, but no compile mode is given": method.eager is False and not compiles,
        "on a CPU flex_attention has no kernel for padding: it needs batch_size 1 and no rocket_bucket": (
            flex_on_cpu and (config.batch_size > 1 or method.rocket_bucket)
        ),
        "score is one plain forward pass, which nothing of compile, buckets, n-grams or paging acts on": (
            config.task == "score" and not plain
        ),
        "prompts with images go with none of continuous_batching, rocket_bucket and prompt lookup": (
            config.images_per_prompt and (method.continuous_batching or method.rocket_bucket or method.ngram)
        ),
        "expert_load watches the routers of padded, uncompiled batches without drafts": (
            config.expert_load and (compiles or method.ngram or method.continuous_batching)
        ),
        "expert_load counts the tokens of generated outputs, and score makes none": (
            config.expert_load and config.task == "score"
        ),
        f"no bucket holds a batch of {config.batch_size} prompts": overflows(config),
        **_hf_paged_checks(config),
        **_hf_parallel_checks(config),
    }
    return [reason for reason, applies in checks.items() if applies]


def _hf_paged_checks(config: BackendConfig) -> dict[str, object]:
    method, attention = config.method, config.method.attention or "sdpa"
    if not method.continuous_batching:
        return {}
    return {
        "continuous_batching goes with none of compile, rocket_bucket and ngram": (
            method.compile or method.rocket_bucket or method.ngram
        ),
        f"continuous_batching has no {attention}": (
            attention not in ("sdpa", "eager", "paged|eager") and "flash" not in attention
        ),
        "continuous_batching tells no log-probabilities of tokens that it did not choose": config.logprobs,
    }


def _hf_parallel_checks(config: BackendConfig) -> dict[str, object]:
    method, stages = config.method, config.pipeline_parallel_size > 1
    return {
        "tensor parallelism goes with none of pipeline stages, compile, rocket buckets and continuous_batching": (
            config.tensor_parallel_size > 1
            and (stages or method.compile or method.rocket_bucket or method.continuous_batching)
        ),
        "a CPU is one device: pipeline_parallel_size must be 1": stages and config.device == "cpu",
        "pipeline stages can be neither compiled nor paged": stages and (method.compile or method.continuous_batching),
    }


def _vllm_misfits(config: BackendConfig) -> list[str]:
    stages = config.device == "cpu" and config.pipeline_parallel_size > 1
    checks = {
        "on a CPU its later pipeline stages die of their first batch unless it compiles: leave out eager": (
            stages and config.method.eager
        ),
        "expert_load watches the routers, which compiled code and CUDA graphs pass by: it needs eager": (
            config.expert_load and not config.method.eager
        ),
        **_own_checks(config),
    }
    return [reason for reason, applies in checks.items() if applies]


def _sglang_misfits(config: BackendConfig) -> list[str]:
    method, on_cpu = config.method, config.device == "cpu"
    uncaptured = not on_cpu and method.attention in SGLANG_UNCAPTURED
    wanted = method.rocket_bucket or method.eager is False
    checks = {
        "eager is false, but a CPU has no CUDA graphs": on_cpu and method.eager is False,
        f"{method.attention} runs without the CUDA graphs that are asked for": uncaptured and wanted,
        **_own_checks(config),
    }
    return [reason for reason, applies in checks.items() if applies]


def _own_checks(config: BackendConfig) -> dict[str, object]:
    """Of engines that compile by options of their own, and whose rocket buckets are the sizes that CUDA graphs are
    captured for."""
    rocket = config.method.rocket_bucket
    return {
        "it compiles by options of its own: leave out compile": config.method.compile,
        "rocket_bucket sets the sizes of CUDA graphs, which a CPU has none of": rocket and config.device == "cpu",
        "rocket_bucket sets the sizes of CUDA graphs, which eager leaves out": rocket and config.method.eager,
        f"no bucket holds a batch of {config.batch_size} prompts": overflows(config),
    }


_MISFITS: dict[str, Callable[[BackendConfig], list[str]]] = {
    "hf": _hf_misfits,
    "vllm": _vllm_misfits,
    "sglang": _sglang_misfits,
    "scripted": lambda _: [],
}
