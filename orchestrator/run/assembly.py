"""Everything that a run is supervised with, put together from what was prepared."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator import devices
from orchestrator.clusters.base import Cluster
from orchestrator.console import Console
from orchestrator.definition.sources import ModelRef
from orchestrator.launcher import Launcher
from orchestrator.nvml import NvmlReader
from orchestrator.reaper import Reaper
from orchestrator.record.replay import Replay
from orchestrator.remote.muster import check_brief, cluster_of, left_over, muster, slots_of
from orchestrator.remote.yard import Yard
from orchestrator.run.budget import Budget
from orchestrator.run.gate import Gate
from orchestrator.run.history import past
from orchestrator.run.ledger import Ledger
from orchestrator.run.outlook import Outlook
from orchestrator.run.prepare import Prepared
from orchestrator.run.room import Places
from orchestrator.run.roomwait import RoomWait
from orchestrator.run.signals import StopFlag
from orchestrator.run.slotting import Slotted, memory_of, slotted
from orchestrator.run.standby import Standby
from orchestrator.supervisor import Supervisor
from protocol.channel import RouterChannel


def cluster_for(prepared: Prepared, run_dir: Path) -> Cluster | None:
    """None for a run on this machine. Raises InputError where it can't be used."""
    built = prepared.plan
    if built.launcher == "local":
        return None
    ref, base = _model(prepared)
    check_brief(built, ref, base, prepared.prompts, prepared.ground.config.places)
    return cluster_of(built.launcher, built.cluster, Launcher(), run_dir)  # its thread must not meet ours in one


def _model(prepared: Prepared) -> tuple[ModelRef, Path]:
    """And what a relative path of it starts from."""
    return prepared.ground.config.model, Path(prepared.ground.config.source).parent


@dataclass(frozen=True)
class Assembly:
    """reader: of the devices, for what is measured; the gate has one of its own."""

    prepared: Prepared
    run_dir: Path
    ledger: Ledger
    earlier: Replay | None
    console: Console
    stop: StopFlag
    reaper: Reaper
    reader: NvmlReader | None
    cluster: Cluster | None

    def supervisor(self, listen: str) -> Supervisor:
        prepared, ledger, gate = self.prepared, self.ledger, self._gate()
        outlook = self._outlook(gate)
        ledger.listeners = [outlook.heed]
        return Supervisor(
            plan=prepared.plan,
            prompts=prepared.prompts,
            environments=prepared.environments,
            gate=gate,
            room=self._room(),
            standby=self._standby(gate),
            outlook=outlook,
            memory_bytes=(lambda _slot: None) if self.cluster else memory_of,
            cluster=self._muster(self.cluster) if self.cluster else None,
            launcher=prepared.ground.launcher,
            reaper=self.reaper,
            ledger=ledger,
            console=self.console,
            stop=self.stop,
            run_dir=self.run_dir,
            reader=self.reader,
            listen=listen,
            elsewhere=self.cluster is not None,
        )

    def _gate(self) -> Gate:
        machine, built = self.prepared.ground.machine, self.prepared.plan
        found = Slotted(slots_of(built.launcher, built.cluster)) if self.cluster else slotted(machine, built.devices)
        for note in found.notes:
            self.console.say(note)
        reader = devices.reader(machine)
        return Gate(found.slots, reader, built.limits, built.policies, self.ledger.emit, time.monotonic)

    def _room(self) -> RoomWait:
        built = self.prepared.plan
        return RoomWait(Places.of(self.run_dir), built.limits, built.policies, self.ledger.emit, time.monotonic)

    def _outlook(self, gate: Gate) -> Outlook:
        """With what earlier runs of the same model tell, and earlier lives of this one."""
        plan, ledger = self.prepared.plan, self.ledger
        over = {*ledger.ended, *ledger.skipped}
        done = {point: len(one.done) for point, one in ledger.earlier.items() if point not in over}
        found = Outlook(plan, gate.slots.most, done, over)
        found.recall(past(self.run_dir, plan.model.digest, socket.gethostname()))
        found.relive(self.earlier.events() if self.earlier else ())
        return found

    def _standby(self, gate: Gate) -> Standby:
        use, machine = self.prepared.plan.devices, self.prepared.ground.machine
        wish = "off" if self.cluster else use.standby
        return Standby(wish, machine.cpus, use.exclusive, gate.slots.all, devices.host_available_bytes)

    def _muster(self, cluster: Cluster) -> Callable[[RouterChannel, Gate, Budget], Yard]:
        prepared = self.prepared
        ref, base = _model(prepared)
        left = left_over(self.earlier.events() if self.earlier else (), prepared.plan.launcher)
        return muster(
            cluster, prepared.plan, ref, base, prepared.prompts, self.run_dir, self.ledger, left, self.console.say
        )
