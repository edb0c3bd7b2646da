"""The record of one output: a line of generations.jsonl."""

from __future__ import annotations

from msgspec import Struct, field

from orchestrator.outcomes import Cause

#: Of a batch that was out while the coordinator was stopped, and its records. Whether the worker was stopped too nobody
#: knows, so its times are in no figure.
FLAG_SUSPENDED = "suspended"
#: Of what ran in a worker whose warm-up batch failed.
FLAG_NO_WARMUP = "no_warmup"


class RecordLogprobs(Struct, frozen=True, kw_only=True):
    """Natural log-probabilities, position by position; null where the engine gave no number.

    chosen        of the output's own tokens, or of the given ones where the task was to score
    top_ids, top  the likeliest tokens of each position and theirs, the likeliest first
    """

    chosen: list[float | None]
    top_ids: list[list[int]] = field(default_factory=list)
    top: list[list[float | None]] = field(default_factory=list)


class Record(Struct, frozen=True, kw_only=True):
    """One line of generations.jsonl: one prompt of one point. The key is (point, prompt_id). `itl_s` are the
    seconds between tokens, null where the engine does not tell."""

    point: str
    batch: str
    method: str
    prompt_id: str
    prompt_digest: str
    prompt_tokens: int
    text: str
    token_ids: list[int]
    generated_tokens: int
    finish_reason: str
    ttft_s: float | None
    latency_s: float | None
    batch_size: int
    repeat: int
    incarnation: str
    itl_s: list[float | None] | None = None
    logprobs: RecordLogprobs | None = None
    flags: list[str] = field(default_factory=list)
    error: Cause | None = None
