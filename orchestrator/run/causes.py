"""From what a worker reported to the class of its failure. Pure."""

from __future__ import annotations

import re

from orchestrator.events import Cause, CauseClass
from protocol.records import ErrorInfo

#: What torch, vLLM and SGLang say when memory is short, in type names and messages.
_OOM = re.compile(
    r"out of memory|OutOfMemory|MemoryError|can't allocate memory|Cannot allocate memory"
    r"|No available memory for the cache blocks|not enough memory|Not enough memory",
    re.IGNORECASE,
)
_CONFIG_TYPES = frozenset({"TypeError", "ValueError", "ValidationError", "NotImplementedError", "AssertionError"})
_MODEL_TYPES = frozenset({"FileNotFoundError", "OSError", "SafetensorError", "EntryNotFoundError"})


def classify(phase: str, error: ErrorInfo) -> CauseClass:
    """The class of `error` that a worker reported while in `phase`."""
    if error.type in {"Malformed", "OutOfTurn"}:
        return "protocol"
    if phase == "importing":
        return "environment"
    if _OOM.search(f"{error.type}: {error.message}"):
        return "oom"
    if phase == "loading" and error.type in _CONFIG_TYPES:
        return "config"
    if phase == "loading" and error.type in _MODEL_TYPES:
        return "model"
    if error.type == "EngineDead":
        return "engine_crash"
    return "engine_error"


def from_error(phase: str, error: ErrorInfo, log_tail: str = "") -> Cause:
    lines = error.message.strip().splitlines()
    message = f"{error.type}: {lines[0] if lines else ''}".rstrip(": ")
    return Cause(cls=classify(phase, error), message=message, phase=phase, error=error, log_tail=log_tail)
