"""What a worker gives back: Generation, BatchStats, RuntimeMetadata, ErrorInfo."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional

from msgspec import Meta, Struct, field

FinishReason = Literal["stop", "length", "error", "unknown", "scored"]
#: Numbers that any journal can hold: JSON has no NaN and no infinity, and its readers no integers past 2**53.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Amount = Annotated[float, Meta(ge=-1e300, le=1e300)]
Count = Annotated[int, Meta(ge=0, le=2**53)]

#: Flags a Generation may carry. A flag never drops or alters the count of anything.
FLAG_UNCLEAN_TEXT = "unclean_text"  # lone surrogates or NUL in the text, replaced by U+FFFD
FLAG_UNDECODABLE = "undecodable"  # ids that the tokenizer can't turn into text
FLAG_TEXT_DIFFERS = "text_differs"  # the engine's own text is not what its ids spell
FLAG_NO_TOKEN_IDS = "no_token_ids"  # the engine gave text only
FLAG_BAD_LOGPROBS = "bad_logprobs"  # log-probabilities that are NaN, positive or missing, left out
FLAG_NO_LOGPROBS = "no_logprobs"  # of a record: they were asked for, and the engine gave none
FLAG_RECOMPILE_LIMIT = "recompile_limit"  # torch gave up compiling: from here on it ran uncompiled
FLAG_BAD_TIMES = "bad_times"  # NaN, infinite or negative times, or not one for each token: these are left out
FLAG_IMPOSSIBLE_TIMES = "impossible_times"  # kept, though they can't all be true: a last token before the first, say
FLAG_DEGENERATE = "degenerate"  # nothing, or one id over and over up to the limit (see DEGENERATE_TOKENS)
FLAG_SURPLUS_RESULTS = "surplus_results"  # of a batch: the engine answered what nobody asked
FLAG_NO_TIMING = "no_timing"  # of a batch: the worker's figures were no numbers
FLAG_SPLIT_BATCH = "split_batch"  # ran in a smaller batch than asked, to isolate a bad prompt

#: An output is degenerate that has so many tokens or more, ran to its limit, and is one id for more than this share.
#: The worker says so once, by the flag; nobody judges a second time.
DEGENERATE_TOKENS, DEGENERATE_SHARE = 16, 0.95


class Logprobs(Struct, frozen=True, kw_only=True):
    """Natural log-probabilities of n positions, of the model's own distribution: before temperature, top-p and
    the like. Packed by `specs.pack_floats` and `specs.pack_ids`, position by position.

    chosen   n float32: of the tokens of the output, or of the given ones to score
    top_ids  n × k uint32: the k likeliest tokens, the likeliest first; empty with k = 0
    top      n × k float32: of these
    """

    k: Count
    chosen: bytes
    top_ids: bytes = b""
    top: bytes = b""


class Generation(Struct, frozen=True, kw_only=True):
    """One output. `token_ids` are the engine's own, packed by `specs.pack_ids`,
    end-of-sequence id included where one was produced; `generated_tokens` is
    their count. Text is never re-tokenised to count.

    ttft_s     seconds from hand-over of the batch to this prompt's first token
    latency_s  seconds from hand-over of the batch to this prompt's last token
    itl_s      seconds between each token and the next, generated_tokens - 1 of them, packed by `specs.pack_floats`
    logprobs   where the call asks for them, or is to score (then token_ids is empty)
    error      why this result can't be used; the others of its batch can
    Each time is None where the engine does not tell.
    """

    prompt_id: str
    text: str
    token_ids: bytes
    generated_tokens: Count
    finish_reason: FinishReason
    prompt_tokens: Count
    prompt_digest: str
    ttft_s: Optional[Seconds] = None
    latency_s: Optional[Seconds] = None
    itl_s: bytes | None = None
    logprobs: Logprobs | None = None
    flags: list[str] = field(default_factory=list)
    error: str = ""


class BatchStats(Struct, frozen=True, kw_only=True):
    """Measured inside the worker, round the engine's own call and nothing else.

    wall_s           seconds of that call, device synchronised
    generated_tokens sum over the batch
    peak_memory_bytes highest device memory (GPU) or resident set (CPU) seen so far
    extra            engine counters by the names below; "degenerate" outputs, where there are any

    Of extra: steps (forward passes), drafts, draft_tokens and accepted_tokens (speculation), cached_tokens and
    num_preemptions, unique_graphs and recompiles (torch.compile), bucket_batch, bucket_length and bucket_fill
    (prompt tokens / padded cells), expert_<layer>_<expert> (tokens routed to it).
    """

    wall_s: Seconds
    generated_tokens: Count
    peak_memory_bytes: int | None = None
    extra: dict[str, Amount] = field(default_factory=dict)


class LoadTimes(Struct, frozen=True, kw_only=True):
    """Seconds. `import_s` is the engine's import, `total_s` all from Init to
    Ready; a part that the engine does not tell is None and is inside total_s."""

    import_s: Seconds = 0.0
    tokenizer_s: Optional[Seconds] = None
    weights_s: Optional[Seconds] = None
    kv_cache_s: Optional[Seconds] = None
    compile_s: Optional[Seconds] = None
    warmup_s: Optional[Seconds] = None
    total_s: Seconds = 0.0


class MemoryUse(Struct, frozen=True, kw_only=True):
    """Bytes, as seen from inside the worker. Host figures cover the worker and
    its children; device figures come from torch's allocator, None on CPUs.

    device_peak_bytes is the most that was reserved. Fragmentation is what is reserved and not allocated, as a
    share of what is reserved (torch.cuda's caching allocator).
    """

    host_rss_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_peak_allocated_bytes: int | None = None
    weights_bytes: int | None = None
    graphs_bytes: int | None = None

    @property
    def fragmentation(self) -> float | None:
        """From 0 to 1; None where nothing is reserved."""
        if not self.device_reserved_bytes or self.device_allocated_bytes is None:
            return None
        return 1 - self.device_allocated_bytes / self.device_reserved_bytes


class EngineSettings(Struct, frozen=True, kw_only=True):
    """What an engine really runs with, by names that mean the same for all engines, so that they can be compared.
    None: the engine has no such thing, or does not tell; which one stands in the notes.

    cuda_graphs   "none" or the engine's word for what it captures
    compile_mode  "none" or the engine's word
    batching      "static": a batch ends with its longest row; "continuous": rows come and go
    speculation   "none" or the method, e.g. "ngram"
    scheduler     the order in which waiting requests are taken, with "async" where a step is made ready while the one
                  before runs; None where a batch goes through as a whole
    sampler       what draws a token out of its probabilities, e.g. "torch", "flashinfer"
    memory_share  of the device, for weights and KV cache, as the engine counts it
    eos           of the last batch. "stop": the engine held ids that end an output; "ignore": none
    image_processor  the class that makes pixels of images; None where prompts have none
    """

    batching: Literal["static", "continuous"] | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    cuda_graphs: str | None = None
    compile_mode: str | None = None
    speculation: str | None = None
    ngram_min: int | None = None
    ngram_max: int | None = None
    draft_tokens: int | None = None
    kv_cache_dtype: str | None = None
    scheduler: str | None = None
    sampler: str | None = None
    quantization: str | None = None
    memory_share: float | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    eos: Literal["stop", "ignore"] | None = None
    image_processor: str | None = None


class RuntimeMetadata(Struct, frozen=True, kw_only=True):
    """What really ran, read back from the engine and never from the request.

    A value that the engine does not tell is None, with the reason in `notes`.

    devices         by name where the engine tells, else as they were handed to the worker
    stop_token_ids  at which the engine ended outputs in the last batch that was to end at any, by what it held for
                    its requests; None before there was one
    """

    engine: str
    engine_version: str
    python_version: str
    torch_version: str | None = None
    transformers_version: str | None = None
    device: str = "cpu"
    devices: list[str] = field(default_factory=list)
    dtype: str | None = None
    attention_backend: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    compiled: bool | None = None
    threads: int | None = None
    stop_token_ids: list[int] | None = None
    settings: EngineSettings = field(default_factory=EngineSettings)
    options: dict[str, Any] = field(default_factory=dict)
    patches: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load: LoadTimes = field(default_factory=LoadTimes)
    memory: MemoryUse = field(default_factory=MemoryUse)


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """An exception as it crosses the wire. `fatal` says that the engine cannot go on."""

    type: str
    message: str
    traceback: str = ""
    fatal: bool = False
