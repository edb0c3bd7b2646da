"""Makes a cluster's slots for a run, and finds what an earlier life of the run left in the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from orchestrator.clusters.allocations import Node, SlotAsked, SlotLeft
from orchestrator.clusters.base import Cluster
from orchestrator.clusters.ray_cluster import RayCluster
from orchestrator.clusters.slurm import Slurm
from orchestrator.definition.clusteruse import ClusterUse
from orchestrator.definition.inputs import PromptSet
from orchestrator.definition.places import Places
from orchestrator.definition.sources import ModelRef
from orchestrator.errors import ClusterError, InputError, Problem
from orchestrator.events import Event
from orchestrator.launcher import Launcher
from orchestrator.plan import Plan
from orchestrator.remote import messages
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
from orchestrator.view.wording import bytes_text, counted, listed
from protocol.channel import RouterChannel
from protocol.errors import Oversized

Say = Callable[[str], None]
_LISTED: Final = 8


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


def check_brief(plan: Plan, ref: ModelRef, base: Path, prompts: PromptSet, places: Places) -> None:
    """Raises InputError where the prompts are more than an outpost can be told: no allocation need be waited for."""
    try:
        messages.encode(_brief(plan, ref, base, prompts))
    except Oversized as exc:
        most = bytes_text(exc.limit_bytes)
        size = f"with their images and other fields come to {bytes_text(exc.size_bytes)}"
        message = f"{size}, and at most {most} of them travel to an allocation"
        raise InputError([places.problem("prompts", message, "take a sample of them, or several sweeps")]) from None


def left_over(earlier: Iterable[Event], launcher: str = "") -> list[SlotAsked]:
    """Allocations, by this launcher if one is named, of which no life of the run says that they are gone."""
    left: dict[str, SlotAsked] = {}
    for event in earlier:
        if isinstance(event, SlotAsked):
            left[event.job] = event
        elif isinstance(event, SlotLeft):
            left.pop(event.job, None)
    return [one for one in left.values() if one.slot.startswith(launcher)]


def abandoned(earlier: Iterable[Event], launcher: str, run_dir: Path) -> list[str]:
    """What is to be said of allocations that a life with another launcher left: this one can't end them. Their orders
    are taken away, which are there as long as nobody has seen to them."""
    writer = Writer(run_dir, ClusterUse(), "")
    if not writer.folder.exists():
        return []
    jobs = [one.job for one in left_over(earlier) if not one.slot.startswith(launcher)]
    if not jobs:
        return []
    writer.withdraw_all()
    what = f"an earlier start of this run asked for {counted(len(jobs), 'job')} elsewhere"
    return [f"{what}, which may be there still: {listed(jobs, _LISTED)}; one that waits ends once it begins"]


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
