"""Compiled artefacts on loan: which methods have any, under which key, and what becomes of them at a worker's end.

A worker gets a private copy; only a clean end brings it back. A warm worker that
fails before it has answered anything is suspected of having choked on what it was
lent: the entry is dropped and the load repeated cold, once, and charged to nobody.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from orchestrator.definition.inputs import ModelInfo
from orchestrator.definition.sizes import MIB
from orchestrator.devices import usable_cpus
from orchestrator.outcomes import Cause
from orchestrator.run.slots import Slot
from orchestrator.stores.artefacts import ArtefactStore, Kept, Lent, Origin, State
from orchestrator.stores.envstate import EngineEnv
from protocol.records import ErrorInfo
from protocol.specs import BackendConfig

#: Part of every key: raised when the folders of a worker come to be laid out in another way.
LAYOUT: Final = 1
#: Inside a worker's cache folder: what a run must not learn from another, as it changes what is run and not how fast
#: it starts: torch's memory of which sizes vary, vLLM's of how much room there was.
NOT_KEPT: Final = frozenset({"inductor/dynamo", "vllm/startup_plan"})
#: Variables of the caller that engines and compilers heed.
HEEDED: Final = (
    *("TORCH", "PYTORCH_", "TRITON_", "INDUCTOR", "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_", "DG_", "CUDA_", "NVCC"),
    *("TVM_", "CUTE_DSL_", "CUTLASS_", "QUACK_", "TILELANG_", "NUMBA_", "LD_"),
    *("OMP_", "KMP_", "MKL_", "GOMP_", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH"),
)
_CPU_LINES = frozenset(
    {"vendor_id", "cpu family", "model", "model name", "flags", "Features"}
    | {"CPU implementer", "CPU architecture", "CPU variant", "CPU part"}
)
#: No file in a cache brings these about.
_OTHER_CAUSES = frozenset({"interrupted", "busy_device", "device_lost", "oom", "disk"})
_CACHE_SHAPED = re.compile(
    r"Unpickling|pickle data|EOFError|Ran out of input|JSONDecodeError|BadZipFile|\bzlib\.error|[Cc]hecksum"
    r"|ELF|file too short|undefined symbol|cannot open shared object|failed to map segment|marshal data|bad magic"
    r"|InductorError|BackendCompilerFailed|CompilationError|finalize_loading"
)
#: How a process ends in machine code that is not what it should be.
_BAD_CODE = frozenset({"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS"})


def compiles(config: BackendConfig) -> bool:
    """Whether what this worker compiles is worth keeping."""
    method, args = config.method, config.method.engine_args
    if method.engine == "scripted":
        return bool(args.get("cache"))
    if config.device == "cuda":  # uncompiled methods, too, make their kernels when they are first needed
        return True
    if method.engine == "hf":
        return bool(method.compile or method.rocket_bucket or method.attention == "flex_attention")
    if method.engine == "vllm":
        return not (method.eager or args.get("enforce_eager"))
    return method.attention == "flex_attention" or bool(args.get("enable_torch_compile"))


def about(config: BackendConfig, env: EngineEnv, slot: Slot, environment: Mapping[str, str]) -> dict[str, str]:
    """All beside the model that may make compiled code another, in words or as a digest.

    environment  what the worker will see of the caller's, and of its environment's own
    """
    heeded = {name: value for name, value in environment.items() if name.startswith(HEEDED)}
    return {
        "layout": str(LAYOUT),
        "method": config.method.name,
        "settings": _settings(config),
        "batch": f"{config.batch_size} prompts, {config.max_new_tokens} new tokens",
        "environment": f"{env.name} {env.fingerprint.digest}",
        "devices": ", ".join(f"{device.name} {device.total_bytes}" for device in slot.devices),
        "driver": _driver() if slot.devices else "",
        "cpu": _cpu(),
        "libc": " ".join(platform.libc_ver()).strip(),  # a home may be shared by machines
        "variables": _digest(heeded),  # not their values, which may be secrets
    }


def _settings(config: BackendConfig) -> str:
    """Of method and load, and what the largest batch will be; not where the model lies or what a method says."""
    bare = replace(config, model_path="", method=replace(config.method, summary=""))
    return _digest(msgspec.json.encode(bare).decode())


def _digest(value: Mapping[str, str] | str) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        return ""


def _cpu() -> str:
    """Model and instructions of the first one, and how many we may use: compiled loops are cut for so many threads."""
    first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    lines = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    known = {name: value for name, value in lines.items() if name in _CPU_LINES}
    return f"{usable_cpus()} × {lines.get('model name', 'CPU')} {_digest(known)}"


NOTHING: Final = Lent(False)


@dataclass
class Loan:
    """What one incarnation has of the store. `state` is "" where its method has none."""

    key: str = ""
    origin: Origin | None = None
    state: State = ""
    lent: Lent = NOTHING
    proved: bool = False  # its worker has answered something

    def suspected_of(self, cause: Cause) -> bool:
        """May what it was lent have ended its worker? Before it is ready anything points there, for want of a
        better guess; in its first batch, where some compile, only what looks like it."""
        if self.state != "warm" or self.proved or cause.cls in _OTHER_CAUSES:
            return False
        if cause.phase in ("ready", "busy"):
            return cause.signal in _BAD_CODE or (cause.error is not None and self.betrayed_by(cause.error))
        return True

    def betrayed_by(self, error: ErrorInfo) -> bool:
        """Whether this is how an engine fails at what it finds in its caches, before it has answered anything."""
        if self.state != "warm" or self.proved:
            return False
        told = f"{error.type}: {error.message}"
        return bool(_CACHE_SHAPED.search(told)) or (self.origin is not None and str(self.origin.folder) in told)


@dataclass
class Lending:
    """The store as one run uses it. most_mib: 0 for no store at all."""

    store: ArtefactStore
    model: ModelInfo
    run: str
    most_mib: int
    _distrusted: set[str] = field(default_factory=set)

    def lend(self, what: Mapping[str, str], incarnation: str, cache: Path) -> Loan:
        """what: all that the artefacts depend on, beside the model."""
        if not self.most_mib:
            return Loan()
        key = _digest({**what, "model": self.model.digest})
        told = {**what, "model": f"{self.model.name} {self.model.digest}"}
        origin = Origin(cache, told, self.run, incarnation, NOT_KEPT)
        lent = NOTHING if key in self._distrusted else self.store.lend(key, cache)
        return Loan(key, origin, "warm" if lent.warm else "cold", lent)

    def take_back(self, loan: Loan) -> Kept:
        """After a clean end, of all processes of the worker."""
        assert loan.origin is not None
        return self.store.keep(loan.key, loan.origin, self.most_mib * MIB)

    def drop(self, loan: Loan) -> None:
        """In this run nobody is lent this entry again, nor what may be kept in its place."""
        self._distrusted.add(loan.key)
        self.store.drop(loan.key)
