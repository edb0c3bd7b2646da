"""The blows that a real engine's processes are dealt: to which process, by which signal, at which moment."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
#: Of every sweep here; a load's and a batch's deadline are the setup's own.
LIMITS = {"terminate_s": 2, "drain_s": 30, "kill_s": 10, "release_s": 30}

MOMENTS = ("load", "batch")
PHASES = {"load": "loading", "batch": "busy"}
LIMITED = {"load": "load_s", "batch": "batch_s"}
COORDINATOR = "coordinator"
#: Names as the kernel has them, cut to 15 characters.
TITLES = {
    "rank": "airlock-rank",
    "engine_core": "VLLM::EngineCor",
    "vllm_worker": "VLLM::Worker",
    "scheduler": "sglang::schedul",
    "detokenizer": "sglang::detoken",
}


@dataclass(frozen=True)
class Setup:
    """A way to run an engine, and the processes that it then has.

    tokens          so many that a batch takes seconds
    load_s, batch_s deadlines of a load and a batch that are well on a busy machine too
    """

    engine: str
    base: str
    victims: tuple[str, ...]
    tokens: int
    load_s: float
    batch_s: float
    other: str
    env_vars: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, float]:
        return {**LIMITS, "load_s": self.load_s, "batch_s": self.batch_s}

    def method(self, number: int) -> dict[str, Any]:
        return {"name": f"struck_{number}", "base": self.base, "env_vars": dict(self.env_vars)}


MULTIPROCESSING = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
SETUPS = {
    "hf": Setup("hf", "hf_sdpa", ("worker",), 40, 20, 40, "hf_eager"),
    "vllm": Setup("vllm", "vllm_eager", ("worker",), 60, 60, 40, "hf_sdpa"),
    "vllm_mp": Setup(
        "vllm", "vllm_eager", ("worker", "engine_core", "vllm_worker"), 60, 100, 40, "hf_sdpa", MULTIPROCESSING
    ),
    "sglang": Setup("sglang", "sglang_torch_native", ("worker", "scheduler", "detokenizer"), 40, 120, 60, "hf_sdpa"),
}


@dataclass(frozen=True)
class Blow:
    setup: str
    victim: str
    signum: signal.Signals
    moment: str

    def __str__(self) -> str:
        return f"{self.setup}-{self.victim}-{self.signum.name}-{self.moment}"

    @property
    def survivable(self) -> bool:
        """SGLang gets token ids past its detokenizer, which it starts all the same."""
        return self.victim == "detokenizer" and self.signum == STOP


MATRIX = (
    *(
        Blow(name, victim, signum, moment)
        for name, setup in SETUPS.items()
        for victim, signum, moment in product(setup.victims, (KILL, STOP), MOMENTS)
    ),
    *(Blow(name, COORDINATOR, KILL, moment) for name, moment in product(("hf", "vllm_mp", "sglang"), MOMENTS)),
)
#: Each kind of victim once; both signals and both moments.
CHOSEN = (
    Blow("hf", "worker", STOP, "load"),
    Blow("hf", "worker", KILL, "batch"),
    Blow("hf_ranks", "rank", KILL, "load"),
    Blow("hf_ranks", "rank", STOP, "batch"),
    Blow("vllm_mp", "engine_core", KILL, "batch"),
    Blow("vllm_mp", "vllm_worker", KILL, "load"),
    Blow("sglang", "detokenizer", KILL, "load"),
    Blow("sglang", "scheduler", STOP, "batch"),
    Blow("vllm_mp", COORDINATOR, KILL, "load"),
    Blow("hf", COORDINATOR, KILL, "batch"),
)


def chains(blows: Sequence[Blow]) -> list[list[Blow]]:
    """Blows that one method takes, one after the other."""
    found: list[list[Blow]] = [[]]
    for blow in sorted(blows, key=lambda blow: blow.survivable):
        found[-1].append(blow)
        if blow.survivable:
            found.append([])
    return [chain for chain in found if chain]
