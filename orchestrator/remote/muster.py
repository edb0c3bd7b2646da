"""Makes a cluster's slots for a run, and finds what an earlier life of the run left in the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from orchestrator.clusters.allocations import Node, SlotAsked, SlotLeft
from orchestrator.clusters.base import Cluster
from orchestrator.clusters.ray_cluster import RayCluster
from orchestrator.clusters.slurm import Slurm
from orchestrator.definition.clusteruse import ClusterUse
from orchestrator.definition.inputs import PromptSet
from orchestrator.definition.sources import ModelRef
from orchestrator.errors import ClusterError, InputError, Problem
from orchestrator.events import Event
from orchestrator.launcher import Launcher
from orchestrator.plan import Plan
from orchestrator.remote.berth import Berth
from orchestrator.remote.leases import Leases
from orchestrator.remote.messages import Brief
from orchestrator.remote.orders import Writer
from orchestrator.remote.yard import Yard
from orchestrator.run.budget import Budget
from orchestrator.run.gate import Gate
from orchestrator.run.ledger import Ledger
from orchestrator.run.slots import Slot, Slots
from orchestrator.stores.home import airlock_home, tag_of
from orchestrator.view.wording import counted
from protocol.channel import RouterChannel

Say = Callable[[str], None]


def slots_of(launcher: str, use: ClusterUse) -> Slots:
    """Named for their launcher: "slurm0"."""
    return Slots(tuple(Slot(f"{launcher}{n}") for n in range(use.slots)), use.slots)


def cluster_of(kind: str, use: ClusterUse, launcher: Launcher, run_dir: Path) -> Cluster:
    """Raises InputError where the back end can't be used from here, or has no such allocation."""
    cluster = _made(kind, use, launcher, run_dir)
    found = [Problem("", "launcher", problem) for problem in cluster.check()]
    if not found:
        try:
            objections = cluster.objections(Writer(run_dir, use, "").sample())
        except ClusterError as exc:
            objections = [str(exc)]
        found = [Problem("", "cluster", objection) for objection in objections]
    if found:
        cluster.close()
        raise InputError(found)
    return cluster


def _made(kind: str, use: ClusterUse, launcher: Launcher, run_dir: Path) -> Cluster:
    if kind == "slurm":
        return Slurm()
    # Under a tag of its own: it is no survivor of the run whose coordinator it serves.
    tag, logs = tag_of(run_dir / "driver"), airlock_home() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    python = use.ray_python or sys.executable
    return RayCluster(launcher, tag, logs / f"ray-{tag}.log", use.address or "auto", python)


def left_over(earlier: Iterable[Event]) -> list[SlotAsked]:
    """Allocations of which no life of the run says that they are gone."""
    left: dict[str, SlotAsked] = {}
    for event in earlier:
        if isinstance(event, SlotAsked):
            left[event.job] = event
        elif isinstance(event, SlotLeft):
            left.pop(event.job, None)
    return list(left.values())


def muster(
    cluster: Cluster,
    plan: Plan,
    ref: ModelRef,
    base: Path,
    prompts: PromptSet,
    run_dir: Path,
    ledger: Ledger,
    left: Sequence[SlotAsked],
    say: Say,
) -> Callable[[RouterChannel, Gate, Budget], Yard]:
    """What makes the yard once there is a wire. `base`: what a relative path of the model starts from."""

    def make(channel: RouterChannel, gate: Gate, budget: Budget) -> Yard:
        writer = Writer(run_dir, plan.cluster, channel.endpoint)
        writer.withdraw_all()
        leases = Leases(
            cluster=cluster,
            channel=channel,
            gate=gate,
            errand=writer.errand,
            withdraw=writer.withdraw,
            last_words=writer.last_words,
            emit=ledger.emit,
            say=say,
            attempts=plan.cluster.attempts,
            left=left,
        )
        return Yard(
            leases=leases,
            berths=[Berth(slot) for slot in gate.slots.all],
            channel=channel,
            gate=gate,
            brief=_brief(plan, ref, base, prompts),
            ledger=ledger,
            keep_log=writer.keep_log,
            left_s=budget.left_s,
            silence_s=plan.cluster.silence_s,
            lacking=partial(lacking, plan),
        )

    return make


def lacking(plan: Plan, node: Node) -> str:
    """What a node has not of what it was asked for. The scripted engine uses no GPU, and does without."""
    idle = all(start.config.method.engine == "scripted" for start in plan.starts)
    if idle or len(node.devices) >= plan.cluster.gpus:
        return ""
    asked, seen = counted(plan.cluster.gpus, "GPU"), len(node.devices) or "none"
    return f"{asked} asked for, and NVML sees {seen} on {node.host}"


def _brief(plan: Plan, ref: ModelRef, base: Path, prompts: PromptSet) -> Brief:
    return Brief(
        run=plan.name,
        model_ref=_absolute(ref, base),
        model=plan.model,
        prompts=list(prompts.prompts),
        limits=plan.limits,
        policies=plan.policies,
        repairs=plan.repairs,
        warmup=plan.warmup,
        measurement=plan.measurement,
    )


def _absolute(ref: ModelRef, base: Path) -> ModelRef:
    if ref.kind != "path":
        return ref
    path = base / Path(ref.value).expanduser()
    return ModelRef(ref.kind, str(path.absolute()), ref.revision, ref.trust_remote_code)
