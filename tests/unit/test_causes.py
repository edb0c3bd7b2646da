"""Failures are classed by what the engines really say."""

from __future__ import annotations

import pytest

from orchestrator.run.causes import classify, from_error
from protocol.records import ErrorInfo


@pytest.mark.parametrize(
    ("phase", "kind", "message", "expected"),
    [
        ("importing", "ImportError", "libcuda.so.1: cannot open shared object file", "environment"),
        ("importing", "AttributeError", "module 'torch.utils._pytree' has no attribute …", "environment"),
        ("loading", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "oom"),
        ("loading", "RuntimeError", "Not enough memory. Please try to increase --mem-fraction-static.", "oom"),
        ("loading", "ValueError", "No available memory for the cache blocks.", "oom"),
        ("loading", "TypeError", "unexpected keyword argument 'blok_size'", "config"),
        ("loading", "OSError", "no file named model.safetensors found", "model"),
        ("busy", "MemoryError", "", "oom"),
        ("busy", "RuntimeError", "CUDA error: an illegal memory access was encountered", "engine_error"),
        ("busy", "EngineDead", "EngineCore is gone", "engine_crash"),
        ("standby", "OutOfTurn", "Run before Init", "protocol"),
    ],
)
def test_class(phase: str, kind: str, message: str, expected: str) -> None:
    assert classify(phase, ErrorInfo(type=kind, message=message)) == expected


def test_the_message_is_one_line_and_the_error_is_kept() -> None:
    error = ErrorInfo(type="RuntimeError", message="first line\nsecond line", traceback="Traceback …")
    cause = from_error("busy", error)
    assert cause.message == "RuntimeError: first line"
    assert cause.error == error
