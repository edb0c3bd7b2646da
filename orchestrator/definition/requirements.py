"""What a method needs of the machine and of its engine's environment, and what is lacking. Pure.

The compute capabilities are those that the engines' own sources check, at the versions of the recipes;
they check them minutes later, and some silently take another attention instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.specs import MethodSpec

Kind = Literal["cpu", "cuda"]
Capability = tuple[int, int]


@dataclass(frozen=True)
class Package:
    """A distribution, the module that it brings, and how its version must begin."""

    name: str
    module: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}*" if self.version else self.name

    def missing(self, installed: Mapping[str, str], broken: Mapping[str, str]) -> str:
        """Why it can't be used, "" if it can."""
        version = installed.get(self.name)
        if version is None:
            return "not installed"
        if self.module in broken:
            return f"installed, but broken: {broken[self.module]}"
        return "" if version.startswith(self.version) else f"installed as {version}"


@dataclass(frozen=True)
class Needs:
    """A GPU's compute capability within bounds, and one of `packages`. what: that which asks for it."""

    least: Capability = (0, 0)
    most: Capability = (99, 9)
    packages: tuple[Package, ...] = ()
    what: str = ""


_FLASHINFER: Final = (Package("flashinfer-python", "flashinfer"),)
#: With it Transformers takes the kernel from the hub's cache.
_KERNELS: Final = Package("kernels", "kernels", "0.17.")

_ATTENTION: Final[dict[tuple[str, str], Needs]] = {
    ("hf", "flash_attention_2"): Needs((8, 0), packages=(Package("flash-attn", "flash_attn"), _KERNELS)),
    ("hf", "flash_attention_3"): Needs(
        (8, 0), (9, 0), packages=(Package("flash-attn-3", "flash_attn_interface"), _KERNELS)
    ),
    ("hf", "flash_attention_4"): Needs((9, 0), packages=(Package("flash-attn-4", "flash_attn"), _KERNELS)),
    ("hf", "flex_attention"): Needs((7, 0)),  # Triton
    ("vllm", "FLASH_ATTN"): Needs((8, 0)),
    ("vllm", "FLASHINFER"): Needs((8, 0), (12, 1), packages=_FLASHINFER),
    ("sglang", "fa3"): Needs((8, 0), (9, 0)),
    ("sglang", "flashinfer"): Needs(packages=_FLASHINFER),
}
#: Below it Triton, and so torch.compile, runs on no GPU.
_TRITON: Final[Capability] = (7, 0)
_ENGINE_LEAST: Final[dict[str, Capability]] = {"sglang": (7, 5)}
_CPU_ONLY: Final = {
    ("vllm", "CPU_ATTN"): "CPU_ATTN is vLLM's attention for CPUs",
    ("sglang", "intel_amx"): "intel_amx is SGLang's attention for Intel CPUs",
}
_SGLANG_ON_CPU: Final = ("torch_native", "flex_attention", "intel_amx")
#: SGLang's attention implementations that CUDA graphs are not captured with.
SGLANG_UNCAPTURED: Final = ("torch_native", "flex_attention")


def needs_of(method: MethodSpec) -> Needs:
    """Of its attention, its compilation and its engine together; the highest lower bound is the one that counts."""
    found = _ATTENTION.get((method.engine, method.attention or ""), Needs())
    compiled = _TRITON if method.engine == "hf" and method.compile else (0, 0)
    bounds = [
        (found.least, method.attention or method.engine),
        (compiled, "torch.compile"),
        (_ENGINE_LEAST.get(method.engine, (0, 0)), method.engine),
    ]
    least, what = max(bounds, key=lambda bound: bound[0])
    return Needs(least, found.most, found.packages, what)


def wrong_kind(method: MethodSpec, kind: Kind) -> str | None:
    """Why `method` can't run on a machine of this kind; None if it can."""
    attention = method.attention
    if kind == "cuda":
        return _CPU_ONLY.get((method.engine, attention or ""))
    if method.engine == "hf" and attention and "flash" in attention:
        return f"{attention} needs a GPU; use hf_sdpa"
    if method.engine == "vllm" and attention not in (None, "CPU_ATTN"):
        return f"on a CPU vLLM has no {attention} and would silently use CPU_ATTN; use vllm_default or vllm_eager"
    if method.engine == "sglang" and method.engine_args.get("speculative_algorithm") == "NGRAM":
        return "SGLang's n-gram speculation needs CUDA kernels; use sglang_torch_native"
    if method.engine == "sglang" and attention not in _SGLANG_ON_CPU:
        return _sglang_on_cpu(attention)
    return None


def _sglang_on_cpu(attention: str | None) -> str:
    if attention is None:
        return "SGLang's own choice on a CPU needs AMX instructions; use sglang_torch_native"
    return f"SGLang's {attention} needs a GPU; use sglang_torch_native"


def unfit_gpu(method: MethodSpec, gpus: Iterable[tuple[str, Capability | None]]) -> str | None:
    """Why `method` can't run on one of these GPUs, each with its compute capability, None if that is not known.
    One that it can't run on is enough: a worker may get any of them."""
    needs = needs_of(method)
    for name, capability in gpus:
        if capability is not None and not needs.least <= capability <= needs.most:
            return f"{needs.what} needs compute capability {_bounds(needs)}, and {name} has {_dotted(capability)}"
    return None


def lacking(method: MethodSpec, installed: Mapping[str, str], broken: Mapping[str, str]) -> str | None:
    """Which package `method` misses among the installed ones; None if it has what it needs.
    `broken`: why, by module."""
    wanted = needs_of(method).packages
    missing = {str(package): package.missing(installed, broken) for package in wanted}
    if not wanted or not all(missing.values()):
        return None
    which = " or ".join(missing)
    states = ", ".join(f"{name}: {state}" for name, state in missing.items())
    return f"{method.attention} needs {which} ({states})"


def _bounds(needs: Needs) -> str:
    most = "or more" if needs.most == Needs.most else f"to {_dotted(needs.most)}"
    return f"{_dotted(needs.least)} {most}"


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))
