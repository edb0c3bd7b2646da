"""One worker start on an outpost: the same loop as on a machine of one's own, with a relay for a journal."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from orchestrator import devices
from orchestrator.config import DeviceUse
from orchestrator.console import Console
from orchestrator.definition.inputs import ModelInfo, PromptSet, scheme_of
from orchestrator.envs import EngineEnv, EnvStore
from orchestrator.errors import EnvironmentFailed
from orchestrator.exits import EXIT_STOPPED_EARLY
from orchestrator.launcher import Launcher
from orchestrator.methods import Kind
from orchestrator.outcomes import Cause
from orchestrator.plan import Plan, SweepPoint, WorkerStart
from orchestrator.reaper import Reaper
from orchestrator.remote.link import Link
from orchestrator.remote.messages import Assign, Brief
from orchestrator.remote.relay import Relay
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.outlook import Outlook
from orchestrator.run.room import Places
from orchestrator.run.roomwait import RoomWait
from orchestrator.run.signals import StopFlag
from orchestrator.run.slots import Slots
from orchestrator.run.slotting import memory_of, slotted
from orchestrator.run.standby import Standby
from orchestrator.run.tally import Earlier
from orchestrator.stores.home import airlock_home
from orchestrator.stores.models import ModelStore
from orchestrator.supervisor import Supervisor


class Refused(Exception):
    """This machine can't give what the run began with."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


def work_off(brief: Brief, assign: Assign, link: Link, stop: StopFlag, folder: Path, tag: str, console: Console) -> str:
    """Why there is no more to be had from this machine, "" if there is. Raises Refused, and what finding the
    environment and the model raises."""
    launcher = Launcher()
    machine = devices.discover()
    env = _environment(assign, launcher, console, machine.kind)
    model = _model(brief, launcher, console, env)
    plan = _plan(brief, assign, model)
    outlook = Outlook(plan, most=1)
    ledger = _ledger(Relay(link, folder / "logs"), console, plan, assign, outlook)
    reaper = Reaper(tag, launcher.owned)
    reaper.become_subreaper()
    slots = Slots(slotted(machine, DeviceUse(exclusive=True)).slots.all, 1)
    supervisor = Supervisor(
        plan=plan,
        prompts=PromptSet("", tuple(brief.prompts), templated=False),
        environments={env.engine: env.repaired(brief.repairs)},
        gate=Gate(slots, devices.reader(machine), plan.limits, plan.policies, ledger.emit, time.monotonic),
        room=RoomWait(Places.of(folder), plan.limits, plan.policies, ledger.emit, time.monotonic),
        launcher=launcher,
        reaper=reaper,
        ledger=ledger,
        console=console,
        stop=stop,
        run_dir=folder,
        reader=devices.reader(machine),
        standby=Standby("off", machine.cpus, True, slots.all, devices.host_available_bytes),
        outlook=outlook,
        memory_bytes=memory_of,
        elsewhere=True,
    )
    code = supervisor.run()
    return supervisor.reason if code == EXIT_STOPPED_EARLY and not supervisor.budget.over() else ""


def _environment(assign: Assign, launcher: Launcher, console: Console, kind: Kind) -> EngineEnv:
    """Built here if it is not there yet."""
    store = EnvStore(airlock_home(), launcher, console.say, kind=kind)
    found = store.ensure([assign.start.env])[assign.start.env]
    if isinstance(found, EnvironmentFailed):
        raise found
    if found.fingerprint.digest != assign.fingerprint:
        here = f"environment {found.name} is {found.fingerprint.digest} here, and {assign.fingerprint} in this run"
        raise Refused(Cause(cls="environment", message=here, phase="environment"))
    return found


def _model(brief: Brief, launcher: Launcher, console: Console, env: EngineEnv) -> ModelInfo:
    """As it lies here; the same files, or none."""
    found = ModelStore(airlock_home(), launcher, console.say).resolve(
        brief.model_ref, env, scheme_of(brief.model.digest)
    )
    if found.digest != brief.model.digest:
        here = f"model {found.name} is {found.digest} here, and {brief.model.digest} in this run"
        raise Refused(Cause(cls="model", message=here, phase="preparing"))
    return found


def _plan(brief: Brief, assign: Assign, model: ModelInfo) -> Plan:
    start = located(assign.start, model.path)
    return Plan(
        name=brief.run,
        digest="",
        model=model,
        prompts_digest="",
        prompt_ids=tuple(prompt.id for prompt in brief.prompts),
        starts=(start,),
        repeats=1 + max((point.repeat for point in start.points), default=0),
        warmup=brief.warmup,
        limits=brief.limits,
        policies=brief.policies,
        measurement=brief.measurement,
        repairs=brief.repairs,
        stop_after_s=assign.left_s,
    )


def located(start: WorkerStart, path: str) -> WorkerStart:
    """With the model where it lies on this machine; the ids of points have nothing to do with that."""

    def here(point: SweepPoint) -> SweepPoint:
        return replace(point, config=replace(point.config, model_path=path))

    return replace(
        start, config=replace(start.config, model_path=path), points=tuple(here(point) for point in start.points)
    )


def _ledger(relay: Relay, console: Console, plan: Plan, assign: Assign, outlook: Outlook) -> Ledger:
    ledger = Ledger(relay, console, None, plan, [outlook.heed])
    bad = assign.bad
    ledger.earlier = {p: Earlier(frozenset(ids), bad.get(p, {})) for p, ids in assign.done.items()}
    outlook.done = {point: len(ids) for point, ids in assign.done.items()}
    return ledger
