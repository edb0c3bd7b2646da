"""The machine that a sweep's workers run on: this one, as far as the sweep uses it, or an allocation of a cluster.

No node of a cluster is asked: the kind of its GPUs and its memory are known once a worker has started there.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from orchestrator import devices
from orchestrator.clusters import raywords, slurmwords
from orchestrator.config import ClusterUse, Draft, LauncherKind
from orchestrator.definition import devicefits, fits
from orchestrator.definition.clusteruse import TITLES
from orchestrator.definition.durations import duration_text
from orchestrator.definition.slowing import slowing
from orchestrator.devices import NO_GPU, Machine
from orchestrator.errors import Problem
from orchestrator.launcher import of_a_job
from orchestrator.methods import Kind
from orchestrator.view.wording import bytes_text, counted, listed

Say = Callable[[str], None]
_LISTED: Final = 8
CPU_HINT: Final = "see nvidia-smi; for a sweep on the CPU set CUDA_VISIBLE_DEVICES= in the environment"


def machine_for(draft: Draft, problems: list[Problem], say: Say) -> Machine:
    """What the sweep is planned for; what that has not, or would not take, goes to `problems`."""
    if draft.launcher == "local":
        problems += worker_problems(draft)
        if kept := of_a_job(os.environ):
            say(f"warning: not handed on to workers, as they are of a job of torchrun or MPI: {listed(kept, _LISTED)}")
        machine = used(draft, devices.discover(), problems, say)
        if slow := slowing(os.environ, draft.methods, machine.kind):
            say(f"warning: for debugging, and workers that have them are slow: {listed(slow, _LISTED)}; unset them")
        return machine
    found = cluster_problems(draft)
    problems += found
    for remark in () if found or draft.problems else cluster_remarks(draft.launcher, draft.cluster, draft.cells):
        say(f"warning: {remark}")
    return elsewhere(draft.launcher, draft.cluster)


def used(draft: Draft, machine: Machine, problems: list[Problem], say: Say) -> Machine:
    """`machine` with those of its devices that the sweep is to use; with all where it names others, which goes to
    `problems`, as does a driver that gives no GPU: a sweep for the CPU is not what was asked for then."""
    if machine.fault:
        problems.append(draft.places.problem("devices", f"{NO_GPU}: {machine.fault}", CPU_HINT))
        return machine
    for note in machine.notes if machine.driver else ():
        say(f"warning: {note}")
    found = devicefits.problems(draft.devices, machine.kind, machine.devices, machine.cpu_ids, draft.places)
    problems += found
    for remark in () if found else devicefits.remarks(draft.devices, machine.kind, machine.devices, draft.cells):
        say(f"warning: {remark}")
    return machine if found else replace(machine, devices=devicefits.chosen(draft.devices, machine.devices))


def place_lines(machine: Machine) -> list[str]:
    """What the workers run on; [] for what is not known here."""
    if machine.kind == "cpu" and machine.cpu_ids:
        return [f"workers on the CPU: {counted(machine.cpus, 'CPU')}, {bytes_text(machine.memory_bytes or 0)}"]
    gpus = [(str(one), one.name, bytes_text(one.total_bytes) if one.total_bytes else "") for one in machine.devices]
    return [f"workers on {', '.join(filter(None, gpu))}" for gpu in gpus]


def worker_problems(draft: Draft) -> Iterator[Problem]:
    """Programs that stand for Airlock's worker and can't be started here."""
    for method in (one for one in draft.methods if one.worker):
        program = method.worker[0]
        if shutil.which(program, path=method.env_vars.get("PATH")):
            continue
        there = program.startswith("/") and os.path.lexists(program)
        wrong = "is not a program that we may run" if there else "is not there"
        key = f"{draft.places.methods.get(method.name, 'methods')}.worker"
        yield draft.places.problem(key, f"{program} {wrong}", "a program's whole path, or a name that is in PATH")


# --- elsewhere -------------------------------------------------------------------


def elsewhere(launcher: LauncherKind, cluster: ClusterUse) -> Machine:
    """What a worker finds on an allocation, as far as that was asked for."""
    kind: Kind = "cuda" if cluster.gpus else "cpu"
    memory_bytes = None if cluster.memory_mib is None else cluster.memory_mib << 20
    note = f"workers run on allocations of {TITLES[launcher]}; what the nodes have is not known here"
    return Machine(kind, (), cluster.cpus or 1, memory_bytes, (note,))


def cluster_problems(draft: Draft) -> list[Problem]:
    """Words for the cluster that it must not get, and workers that an allocation has too few GPUs for."""
    cluster = draft.cluster
    found = list(_options(draft))
    if cluster.gpus:
        have = "of each allocation are asked for (cluster.gpus)"
        found += fits.too_many_devices(draft.cells, cluster.gpus, draft.places, have)
    return found


def _options(draft: Draft) -> Iterator[Problem]:
    slurm, gpus = draft.launcher == "slurm", draft.cluster.gpus
    for n, option in enumerate(draft.cluster.options):
        for why in slurmwords.refusals([option], gpus) if slurm else raywords.refusals([option]):
            yield draft.places.problem(f"cluster.options[{n}]", why)


def cluster_remarks(launcher: LauncherKind, cluster: ClusterUse, cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What follows that nobody may expect, a sentence each. Only where there are no `problems`."""
    width = max((c.get("tensor_parallel_size", 1) * c.get("pipeline_parallel_size", 1) for c in cells), default=1)
    if cluster.gpus > width:
        each = f"a worker of this sweep uses {width} at most"
        yield f"cluster.gpus is {cluster.gpus}, but {each}: {counted(cluster.gpus - width, 'GPU')} would be idle"
    if launcher == "slurm" and cluster.time_limit_s:
        yield from _limit_remarks(cluster.time_limit_s)


def _limit_remarks(limit_s: float) -> Iterator[str]:
    minutes_s = math.ceil(limit_s / 60) * 60
    given, notice = duration_text(minutes_s), duration_text(slurmwords.NOTICE_S)
    if limit_s % 60:
        yield f"cluster.time_limit is {duration_text(limit_s)}; Slurm counts in minutes, and gets {given}"
    if minutes_s <= slurmwords.NOTICE_S:
        what = f"Slurm asks a job to leave as much as {notice} before its end, so {given} leaves no time for work"
        yield f"{what}; a number without a unit is seconds, half an hour is 30m"
