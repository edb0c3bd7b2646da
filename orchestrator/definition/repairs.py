"""Which broken packages of an environment a sweep lets Airlock block, in the worker's own process. Pure.

repairs: auto                   # all that are broken
repairs: off                    # none
repairs: {keep: [torchvision]}  # all but these
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from msgspec import Struct

from orchestrator.definition.fields import INVALID, convert
from orchestrator.definition.hints import list_hint
from orchestrator.definition.spelling import nearest, shown
from orchestrator.definition.sweepfile import Node, Problems

#: Modules that engines use where they are there and do without where they are not, and that the loading of a
#: model which needs none of them fails on where they are there but broken, built for another torch most often.
#: Quantisation, attention and kernels, the media libraries of processors, and what a decoding strategy takes.
# fmt: off
OPTIONAL: Final = (
    "accelerate", "apex", "bitsandbytes", "compressed_tensors", "deepspeed", "fbgemm_gpu", "gptqmodel", "hqq",
    "optimum", "peft", "quark", "torchao",
    "causal_conv1d", "fla", "flash_attn", "flash_attn_interface", "flashinfer", "kernels", "liger_kernel", "mamba_ssm",
    "natten", "xformers",
    "PIL", "av", "cv2", "librosa", "soundfile", "timm", "torchaudio", "torchcodec", "torchvision",
    "mistral_common", "scipy", "sentencepiece", "sklearn",
)
# fmt: on


class Repairs(Struct, frozen=True, forbid_unknown_fields=True):
    """do: off leaves every package as it is. keep: those that are left as they are though they are broken."""

    do: Literal["auto", "off"] = "auto"
    keep: tuple[str, ...] = ()

    def of(self, modules: Iterable[str]) -> tuple[str, ...]:
        """Those of `modules` that may be blocked."""
        return tuple(name for name in modules if self.do == "auto" and name not in self.keep)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides with which packages an engine runs; empty for the default."""
        given = {"do": self.do, "keep": sorted(self.keep)}
        return {} if self == Repairs() else {"repairs": given}


def read_repairs(node: Node, problems: Problems) -> Repairs:
    if isinstance(node.value, dict):
        return _keeping(node, problems)
    if node.value not in ("auto", "off"):
        hint = "auto, off, or {keep: [torchvision]} to leave some as they are"
        problems.add(node.where, "repairs", f"can't be {shown(node.plain())}", hint)
        return Repairs()
    return Repairs(node.value)


def _keeping(node: Node, problems: Problems) -> Repairs:
    for name, value in node.value.items():
        if name != "keep":
            problems.add(value.where, f"repairs.{name}", "repairs has no such key", nearest(name, ("keep",)))
    keep = node.value.get("keep", Node([], node.where))
    given = convert(keep, "repairs.keep", str | tuple[str, ...], problems)
    named = () if given is INVALID else (given,) if isinstance(given, str) else given
    for n, name in enumerate(named):
        if name not in OPTIONAL:
            at, key = (keep.value[n], f"repairs.keep[{n}]") if isinstance(keep.value, list) else (keep, "repairs.keep")
            hint = list_hint(str, name) if "," in name else nearest(name, OPTIONAL)
            problems.add(at.where, key, f"{name} is never blocked", hint)
    return Repairs(keep=named)


def schema() -> dict[str, Any]:
    """For editors."""
    module = {"enum": list(OPTIONAL)}
    keep = {"anyOf": [module, {"type": "array", "items": module}], "description": "modules that stay as they are"}
    mapping = {"type": "object", "additionalProperties": False, "properties": {"keep": keep}}
    return {
        "description": "auto: broken optional packages of an environment look as if they were not installed, "
        "inside the worker's process only; off: they stay as they are",
        "anyOf": [{"enum": ["auto", "off"]}, mapping, {"type": "null"}],
        "default": Repairs().do,
    }
