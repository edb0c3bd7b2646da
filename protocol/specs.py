"""What a worker is told: MethodSpec, BackendConfig, CallParams, PromptBatch.

Every field of BackendConfig says when it acts. A *load-time* field is fixed
when the engine is built, so a change needs a fresh process; a *call-time*
field travels with each batch, so points that differ only in call-time fields
share one loaded worker. `when(name)` reads the mark.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields

Engine = Literal["hf", "vllm", "sglang", "scripted"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
InputMode = Literal["auto", "text", "vision"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
#: generate: continue each prompt. score: the log-probabilities of tokens that are given, and no new ones.
Task = Literal["generate", "score"]
When = Literal["load", "call"]

LOAD = {"when": "load"}
CALL = {"when": "call"}


class NgramSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """N-gram (prompt lookup) speculation. Both bounds are always explicit:
    engines have different defaults, which would compare different methods."""

    min_n: Annotated[int, Meta(ge=1, description="shortest n-gram looked up in the prompt, tokens")]
    max_n: Annotated[int, Meta(ge=1, description="longest n-gram looked up in the prompt, tokens")]
    draft_tokens: Annotated[int, Meta(ge=1, description="tokens proposed per step")]


class MethodSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A named, fixed way to run an engine. Nothing is routed to "the fastest"."""

    name: Annotated[str, Meta(description="as the sweep and the results call it; always the same thing")]
    engine: Annotated[Engine, Meta(description="the engine that runs it; needed without a base")]
    attention: Annotated[
        str | None, Meta(description="attention implementation, by the engine's own name; null: the engine chooses")
    ] = None
    eager: Annotated[
        bool | None, Meta(description="true: no compilation and no CUDA graphs; null: the engine's default")
    ] = None
    compile: Annotated[CompileMode | None, Meta(description="torch.compile mode; null: off")] = None
    rocket_bucket: Annotated[bool, Meta(description="round batch and padded length up to fixed buckets")] = False
    continuous_batching: Annotated[
        bool, Meta(description="Transformers: generate_batch with a paged KV cache; other engines always do")
    ] = False
    ngram: Annotated[NgramSpec | None, Meta(description="n-gram (prompt lookup) speculation; null: none")] = None
    engine_args: Annotated[
        dict[str, Any], Meta(description="passed to the engine as they are, after all that Airlock sets")
    ] = {}
    env_vars: Annotated[dict[str, str], Meta(description="environment variables of the worker, set at exec")] = {}
    worker: Annotated[
        tuple[str, ...],
        Meta(description="a program, with its arguments, that speaks Airlock's protocol; started as the worker"),
    ] = ()
    summary: Annotated[str, Meta(description="a line for the listings")] = ""


PositiveInt = Annotated[int, Meta(ge=1)]
MAX_LOGPROBS = 20
Share = Annotated[float, Meta(gt=0, le=1)]


class BackendConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Everything one worker is told. Sizes in bytes, lengths in tokens."""

    method: Annotated[MethodSpec, Meta(extra=LOAD)]
    model_path: Annotated[str, Meta(description="local folder of the model", extra=LOAD)]
    device: Annotated[Literal["cuda", "cpu"], Meta(description="the kind of device it runs on", extra=LOAD)] = "cpu"
    dtype: Annotated[Dtype, Meta(description="auto: the checkpoint's own", extra=LOAD)] = "auto"
    max_model_len: Annotated[
        PositiveInt | None, Meta(description="prompt + new tokens; null: what the sweep needs", extra=LOAD)
    ] = None
    max_num_batched_tokens: Annotated[
        PositiveInt | None, Meta(description="tokens per step (vLLM, hf_paged), per prefill (SGLang)", extra=LOAD)
    ] = None
    gpu_memory_utilization: Annotated[
        Share | None, Meta(description="vLLM: share of the device's memory", extra=LOAD)
    ] = None
    sglang_mem_fraction_static: Annotated[
        Share | None, Meta(description="SGLang: share of memory for weights and KV cache", extra=LOAD)
    ] = None
    kv_cache_bytes: Annotated[
        PositiveInt | None,
        Meta(
            description="KV cache size, bytes; null: on CPUs what the sweep needs, else a share",
            extra=LOAD,
        ),
    ] = None
    input_mode: Annotated[
        InputMode, Meta(description="auto: vision for a vision-language model, else text", extra=LOAD)
    ] = "auto"
    images_per_prompt: Annotated[
        int, Meta(ge=0, description="the most images that a prompt of the sweep has", extra=LOAD)
    ] = 0
    torch_compile_cache_size_limit: Annotated[
        PositiveInt | None, Meta(description="torch._dynamo recompile limit", extra=LOAD)
    ] = None
    torch_compile_mode: Annotated[
        CompileMode | None, Meta(description="overrides the method's compile mode", extra=LOAD)
    ] = None
    bucket_batch_sizes: Annotated[
        tuple[PositiveInt, ...] | None,
        Meta(description="batch sizes of rocket buckets; null: powers of two up to batch_size", extra=LOAD),
    ] = None
    bucket_lengths: Annotated[
        tuple[PositiveInt, ...] | None,
        Meta(description="padded prompt lengths of rocket buckets, tokens; null: powers of two from 64", extra=LOAD),
    ] = None
    expert_load: Annotated[
        bool, Meta(description="mixture-of-experts: count the tokens that the router sends to each expert", extra=LOAD)
    ] = False
    tensor_parallel_size: Annotated[PositiveInt, Meta(description="GPUs that share each layer", extra=LOAD)] = 1
    pipeline_parallel_size: Annotated[
        PositiveInt, Meta(description="GPUs that share the layers out; a worker takes the product of both", extra=LOAD)
    ] = 1
    trust_remote_code: Annotated[bool, Meta(description="run Python shipped with the model", extra=LOAD)] = False
    prefix_caching: Annotated[
        bool, Meta(description="reuse KV of shared prefixes; off so that repeats do the same work", extra=LOAD)
    ] = False
    batch_size: Annotated[PositiveInt, Meta(description="prompts handed to the engine at once", extra=CALL)] = 1
    max_new_tokens: Annotated[PositiveInt, Meta(description="most tokens of an answer", extra=CALL)] = 32
    temperature: Annotated[float, Meta(ge=0, description="0: greedy", extra=CALL)] = 0.0
    top_p: Annotated[
        float, Meta(gt=0, le=1, description="nucleus sampling: share of the probability that is drawn from", extra=CALL)
    ] = 1.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="of sampling, where there is any", extra=CALL)] = 0
    ignore_eos: Annotated[
        bool, Meta(description="generate exactly max_new_tokens, for pure speed runs", extra=CALL)
    ] = False
    logprobs: Annotated[
        int, Meta(ge=0, le=MAX_LOGPROBS, description="likeliest tokens told for each position; 0: none", extra=CALL)
    ] = 0
    task: Annotated[
        Task, Meta(description="score: log-probabilities of each prompt's continuation, no new tokens", extra=CALL)
    ] = "generate"
    stop_token_ids: Annotated[
        tuple[int, ...], Meta(description="end-of-sequence ids, resolved once for all engines", extra=CALL)
    ] = ()

    @property
    def ranks(self) -> int:
        """How many devices one worker takes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def compile_mode(self) -> CompileMode | None:
        """torch.compile's mode for the decode step; None if the method compiles nothing."""
        return (self.torch_compile_mode or self.method.compile) if self.method.compile else None

    @property
    def compiles_here(self) -> bool:
        """Whether anything goes through a torch.compile that we set up: flex_attention of Transformers compiles its
        own kernels. vLLM and SGLang drive it by options of their own."""
        compiled = self.method.compile is not None or self.method.attention == "flex_attention"
        return self.method.engine == "hf" and compiled


class CallParams(Struct, frozen=True, kw_only=True):
    """The call-time fields of BackendConfig, as they travel with each batch."""

    batch_size: int
    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    logprobs: int = 0
    task: Task = "generate"

    @classmethod
    def of(cls, config: BackendConfig) -> CallParams:
        return cls(**{f.name: getattr(config, f.name) for f in fields(cls)})


class PromptInput(Struct, frozen=True):
    """One prompt as every engine gets it.

    token_ids   packed by `pack_ids`; to score, prompt and continuation together; with images,
                one placeholder id for each, which the engine widens
    score_from  to score: index of the first token whose log-probability is wanted, at least 1
    images      encoded files (PNG, JPEG, WebP), in the order of their placeholders
    widened     with images: token_ids with each placeholder widened as the model's own processor does
    """

    id: str
    token_ids: bytes
    score_from: int | None = None
    images: tuple[bytes, ...] = ()
    widened: bytes = b""

    @property
    def seen(self) -> bytes:
        """Packed ids as the model sees them."""
        return self.widened or self.token_ids


class PromptBatch(Struct, frozen=True):
    """Consecutive prompts of one point: the unit of dispatch, blame and journalling."""

    batch_id: str
    prompts: list[PromptInput]
    call: CallParams
    warmup: bool = False


def when(name: str) -> When:
    """Whether the BackendConfig field `name` acts at load time or at call time.

    Raises KeyError if there is no such field.
    """
    return _WHEN[name]


def load_fields() -> tuple[str, ...]:
    return tuple(n for n, w in _WHEN.items() if w == "load")


def call_fields() -> tuple[str, ...]:
    return tuple(n for n, w in _WHEN.items() if w == "call")


def _marks() -> dict[str, When]:
    from typing import get_type_hints

    hints = get_type_hints(BackendConfig, include_extras=True)
    return {
        f.name: next(m.extra["when"] for m in hints[f.name].__metadata__ if isinstance(m, Meta) and m.extra)
        for f in fields(BackendConfig)
    }


_WHEN: dict[str, When] = _marks()


def pack_floats(values: Iterable[float | None]) -> bytes:
    """Little-endian float32; NaN stands for a value that is not known."""
    return array("f", [float("nan") if one is None else one for one in values]).tobytes()


def unpack_floats(data: bytes) -> list[float | None]:
    """The inverse of `pack_floats`; None for what is not finite. Raises ValueError for a torn length."""
    values = array("f")
    values.frombytes(data)
    return [one if math.isfinite(one) else None for one in values]


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32: a fourteenth of the codec time of a list of ints.

    Raises ValueError for an id outside 0 … 2**32-1.
    """
    values = list(ids)
    try:
        return struct.pack(f"<{len(values)}I", *values)
    except struct.error as exc:
        raise ValueError(f"token id outside uint32: {exc}") from exc


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of `pack_ids`. Raises ValueError if the length is not a multiple of 4."""
    if len(data) % 4:
        raise ValueError(f"packed token ids of {len(data)} bytes are not a multiple of 4")
    return list(struct.unpack(f"<{len(data) // 4}I", data))
