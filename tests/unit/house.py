"""A machine of GPUs with a run on it whose workers do nothing, so that only who gets a slot is seen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.config import Limits, Policies
from orchestrator.console import Console
from orchestrator.definition.inputs import ModelInfo, Prompt
from orchestrator.definition.limits import Policy
from orchestrator.definition.memory import CacheLayers, ModelShape
from orchestrator.devices import Device
from orchestrator.envs import EngineEnv, Fingerprint
from orchestrator.events import Early, Event, PointEnded, PointSkipped, Waited
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.run.allotment import Allotment
from orchestrator.run.budget import Budget
from orchestrator.run.docket import Job
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.life import State
from orchestrator.run.room import Places
from orchestrator.run.roomwait import RoomWait
from orchestrator.run.slots import Slot, Slots, numbered
from orchestrator.run.standby import LEAST_CPUS, LEAST_MEMORY_BYTES, Standby
from protocol.specs import BackendConfig, MethodSpec, pack_ids

GIB = 1 << 30
PATIENCE_S = 10.0
#: In bfloat16 at least 12.2 GiB on a GPU.
VALUES = 8_030_261_248
SHAPE = ModelShape((CacheLayers("full", 32, 2048, 8),), 4096, 14336, 128256, {"BF16": 2 * VALUES}, VALUES, 32)
MODEL = ModelInfo("llama", "m", "d", 8192, (), 131072, "bfloat16", shape=SHAPE, vision=False)
SMALL, LARGE = 8 * GIB, 24 * GIB
PROMPTS = {"a": Prompt("a", pack_ids([1]), "da", {})}


def a_start(name: str, *, width: int = 1, engine: Any = "scripted", role: Any = "") -> WorkerStart:
    """Of the scripted engine, which fits everywhere, or of one that needs a LARGE device."""
    method = MethodSpec(name, engine)
    config = BackendConfig(method=method, model_path="m", device="cuda", tensor_parallel_size=width)
    more = {"role": role} if role else {}
    return WorkerStart(name, engine, config, (SweepPoint(f"{name}/0", name, config, 0, **more),))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Outlook:
    """`too_long`: the starts that can't measure anything in what is left."""

    too_long: set[str] = field(default_factory=set)

    def would_fit(self, start: WorkerStart, _left_s: float) -> bool:
        return start.key not in self.too_long


@dataclass(eq=False)
class Occupant:
    job: Job
    slot: Slot
    early: Early
    state: State = State.BUSY
    sent_away: str = ""

    def __post_init__(self) -> None:
        self.called = not self.early

    def call(self) -> None:
        self.called = True

    def send_away(self, reason: str) -> None:
        self.sent_away = reason

    @property
    def name(self) -> str:
        return self.job.start.key


class House:
    """A machine of GPUs, and a run on it whose workers do nothing."""

    def __init__(
        self, folder: Path, *starts: WorkerStart, sizes: Sequence[int] = (LARGE,), wish: Any = "off", most: int = 9
    ) -> None:
        self.clock, self.told, self.outlook = Clock(), list[Event](), Outlook()
        self.policies = Policies(disk=Policy(do="wait", wait_s=PATIENCE_S))
        self.stints: list[Occupant] = []
        self.launched: list[tuple[str, str]] = []
        plan = Plan("demo", "d", MODEL, "p", ("a",), starts, 1, 0, Limits(), self.policies)
        units = numbered([Device(n, f"GPU-{n}", "test", size) for n, size in enumerate(sizes)])
        self.memory = {unit.name: size for unit, size in zip(units, sizes, strict=True)}
        emit = self.told.append
        self.room = RoomWait(Places(folder, folder, folder), Limits(), self.policies, emit, self.clock)
        self.make_room()
        self.gate = Gate(Slots(units, most), None, Limits(), self.policies, emit, self.clock)
        self.ledger = Ledger(cast("Any", SimpleNamespace(emit=emit)), Console(io.StringIO(), "quiet"), None, plan)
        self.budget = Budget(3600.0, cast("Any", self.outlook), self.clock)
        env = EngineEnv("e", "scripted", "python", Fingerprint("3.11", {}, "", ""), "own")
        self.allotment = Allotment(
            plan=plan,
            environments={start.config.method.engine: env for start in starts},
            prompts=PROMPTS,
            ledger=self.ledger,
            gate=self.gate,
            room=self.room,
            standby=Standby(wish, LEAST_CPUS, False, units, lambda: LEAST_MEMORY_BYTES),
            budget=self.budget,
            memory=lambda slot: max(self.memory[unit] for unit in slot.units),
            launch=self._launch,
            stints=cast("Any", self.stints),
        )

    def _launch(self, job: Job, slot: Slot, early: Early) -> None:
        self.launched.append((job.start.key, slot.name))
        self.stints.append(Occupant(job, slot, early))

    def fill_disk(self) -> None:
        self.room.limits = Limits(run_dir_free_mib=1 << 40, tmp_free_mib=0, shm_free_mib=0)

    def make_room(self) -> None:
        self.room.limits = Limits(run_dir_free_mib=0, tmp_free_mib=0, shm_free_mib=0)

    def allot(self) -> list[tuple[str, str]]:
        """Who was started by it, and where."""
        before = len(self.launched)
        self.allotment.allot()
        return self.launched[before:]

    def __getitem__(self, name: str) -> Occupant:
        return next(one for one in self.stints if one.name == name)

    def called(self, name: str) -> bool:
        return self[name].called

    def skip(self, name: str) -> None:
        self.ledger.emit(PointSkipped(at=0.0, point=f"{name}/0", reason="not needed"))

    def end(self, name: str, *, done: bool = True) -> None:
        """Its worker's life; a job that is not done waits again."""
        one = self[name]
        if done:
            self.skip(name)
        self.stints.remove(one)
        self.allotment.part(cast("Any", one))

    def causes(self) -> dict[str, Cause | None]:
        return {event.point: event.cause for event in self.told if isinstance(event, PointEnded)}

    def waits(self) -> list[bool]:
        """Those that ended: whether there was room at last."""
        return [event.over for event in self.told if isinstance(event, Waited)]


def a_house(folder: Path, names: str, **changes: Any) -> House:
    return House(folder, *map(a_start, names), **changes)
