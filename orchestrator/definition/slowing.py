"""Variables that somebody sets to find a fault, and that slow engines down as long as they are set. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.definition.variables import recorded
from protocol.specs import MethodSpec

_ON: Final = re.compile(r"(?!(?:0|false|no|off)$).+", re.IGNORECASE | re.DOTALL)
_TRACE: Final = re.compile(r"TRACE", re.IGNORECASE)
_DETAIL: Final = re.compile(r"DETAIL", re.IGNORECASE)
_DEBUG: Final = re.compile(r"DEBUG", re.IGNORECASE)
#: Which values of them do.
_ANYWHERE: Final[Mapping[str, re.Pattern[str]]] = {
    "TORCHDYNAMO_DISABLE": _ON,
    "TORCH_COMPILE_DEBUG": _ON,
    "TORCH_COMPILE_DISABLE": _ON,
    "TORCH_DISTRIBUTED_DEBUG": _DETAIL,
    "TORCH_LOGS": _ON,
    "TORCH_TRACE": _ON,
    "TRITON_DEBUG": _ON,
    "TRITON_INTERPRET": _ON,
}
_ON_GPUS: Final[Mapping[str, re.Pattern[str]]] = {
    "CUDA_LAUNCH_BLOCKING": _ON,
    "NCCL_DEBUG": _TRACE,
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _ON,
    "TORCH_USE_CUDA_DSA": _ON,
}
_OF_ENGINES: Final[Mapping[str, Mapping[str, re.Pattern[str]]]] = {
    "vllm": {"VLLM_LOGGING_LEVEL": _DEBUG, "VLLM_TORCH_PROFILER_DIR": _ON, "VLLM_TRACE_FUNCTION": _ON},
}


def slowing(environ: Mapping[str, str], methods: Iterable[MethodSpec], kind: str) -> list[str]:
    """NAME=value of those that workers on such devices inherit; not where each method sets its own."""
    found: dict[str, str] = {}
    for method in methods:
        heeded = {**_ANYWHERE, **_OF_ENGINES.get(method.engine, {}), **(_ON_GPUS if kind == "cuda" else {})}
        for name, slow in heeded.items():
            if name not in method.env_vars and slow.fullmatch(environ.get(name, "")):
                found[name] = environ[name]
    return [f"{name}={value}" for name, value in sorted(recorded(found).items())]
