"""A small model to plan sweeps on, as values."""

from __future__ import annotations

from orchestrator.definition.inputs import ModelInfo

MODEL = ModelInfo(
    name="small",
    path="/models/small",
    digest="m" * 16,
    context_length=1000,
    stop_token_ids=(2,),
    kv_bytes_per_token=1000,
    dtype="bfloat16",
)
