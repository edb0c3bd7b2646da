"""Where a sweep's workers run: on this machine, or on allocations of a distributed engine, and what each has.

    launcher: slurm
    cluster:
      slots: 4                 # allocations at once, a worker at a time on each
      gpus: 1
      time_limit: 8h
      options: [--partition=gpu]

Of all this only whether there are GPUs is asked of a method, so a resumed run may change the rest. What the engine
would not take is `run.machines`' to say. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from msgspec import Meta, Struct

from orchestrator.definition.deviceuse import DeviceUse
from orchestrator.definition.durations import duration_text, read_duration
from orchestrator.definition.endpoint import BadEndpoint, endpoint
from orchestrator.definition.fields import INVALID, convert, is_mapping, parts
from orchestrator.definition.spelling import likely, shown
from orchestrator.definition.sweepfile import Node, Problems
from orchestrator.view.wording import bytes_text, counted

LauncherKind = Literal["local", "slurm", "ray"]
LAUNCHERS: Final[tuple[LauncherKind, ...]] = get_args(LauncherKind)
#: As a message calls them.
TITLES: Final = {"local": "this machine", "slurm": "Slurm", "ray": "Ray"}
#: Larger numbers are slips of the pen.
MOST: Final = 1024
MOST_CPUS: Final = 8192
_LONGEST_NAME: Final = 60


class ClusterUse(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The allocations that workers run on, where the launcher is not local."""

    slots: Annotated[
        int, Meta(ge=1, le=MOST, description="allocations at once, at most; on each runs one worker at a time")
    ] = 1
    gpus: Annotated[int, Meta(ge=0, le=MOST, description="GPUs of each allocation; 0: the workers run on CPUs")] = 0
    cpus: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_CPUS)] | None,
        Meta(description="CPUs of each allocation; null: what the cluster gives by itself"),
    ] = None
    memory_mib: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 40)] | None,
        Meta(description="memory of each allocation; null: what the cluster gives by itself"),
    ] = None
    time_limit_s: Annotated[float | None, Meta(description="of each allocation; null: the cluster's own")] = None
    options: Annotated[
        tuple[str, ...],
        Meta(description="handed to the cluster as they are: Slurm's '--partition=gpu', Ray's resources 'name=1'"),
    ] = ()
    address: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="of Ray's cluster, as ray.init takes it; null: the one that this machine is a node of"),
    ] = None
    ray_python: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="on this machine, a Python that has Ray; null: the one that runs the sweep"),
    ] = None
    listen: Annotated[
        str | None,
        Meta(description="tcp://ADDRESS[:PORT] of this machine that the nodes dial; null: the one it has towards them"),
    ] = None
    python: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="on the nodes, a Python that has Airlock; null: the path of the one that runs the sweep"),
    ] = None
    silence_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="an allocation not heard of for so long is given up, and gives itself up"),
    ] = 60.0
    attempts: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST,
            description="how often each slot's allocation is asked for in all, after it ended or was lost",
        ),
    ] = 3


#: By the key in the file, where times stand with units.
_TYPES: Final[dict[str, Any]] = {
    "time_limit" if name == "time_limit_s" else name: kind
    for name, kind in get_type_hints(ClusterUse, include_extras=True).items()
}


def read_launcher(node: Node, problems: Problems) -> LauncherKind | None:
    """Where it is wrong, what was probably meant, by which the rest is checked; None where nothing comes to mind."""
    found = convert(node, "launcher", LauncherKind, problems)
    text = node.value if isinstance(node.value, str) and len(node.value) <= _LONGEST_NAME else ""
    meant = likely(text, LAUNCHERS) if found is INVALID else found
    return next((one for one in LAUNCHERS if one == meant), None)


def read_cluster(node: Node, problems: Problems) -> ClusterUse:
    """What is right of it; what is wrong stands in `problems`."""
    if not is_mapping(node, "cluster", _TYPES, problems):
        return ClusterUse()
    rest = {name: part for name, part in node.value.items() if name != "time_limit"}
    found = parts(Node(rest, node.where), "cluster", _TYPES, problems)
    if limit := node.value.get("time_limit"):
        found["time_limit_s"] = read_duration(limit, "cluster.time_limit", problems)
    if "gpus" in rest and "gpus" not in found:
        found["gpus"] = MOST  # no method shall be refused for a number that can't be read
    made = ClusterUse(**found)
    _check_listen(made.listen, node, problems)
    for name in ("python", "ray_python"):
        _check_python(name, getattr(made, name), node, problems)
    return made


def _check_listen(text: str | None, node: Node, problems: Problems) -> None:
    try:
        if text is not None:
            endpoint(text)
    except BadEndpoint as exc:
        where, hint = node.value["listen"].where, "write tcp://ADDRESS or tcp://ADDRESS:PORT, or leave it out"
        problems.add(where, "cluster.listen", f"{shown(text)} {exc}", hint)


def _check_python(name: str, path: str | None, node: Node, problems: Problems) -> None:
    """It is not started from the folder that we are in."""
    if path and "/" in path and not path.startswith("/"):
        where = "on the node" if name == "python" else "in PATH"
        message = f"must be a whole path, or a name to look up {where}, not {shown(path)}"
        problems.add(node.value[name].where, f"cluster.{name}", message, "write it from the root, /…")


# --- beside the rest of the file ---------------------------------------------------


def check_cluster(
    root: Node, launcher: LauncherKind, cluster: ClusterUse, devices: DeviceUse, problems: Problems
) -> None:
    """What of the sections cluster and devices has no meaning with this launcher."""
    given, used = root.value.get("cluster"), root.value.get("devices")
    if launcher == "local":
        if given is not None and given.value:
            message = "says what allocations of a cluster have, and launcher is local"
            problems.add(given.where, "cluster", message, "write launcher: slurm or ray, or leave cluster out")
        return
    for name, why in _RAYS.items() if launcher == "slurm" else ():
        if getattr(cluster, name) is not None:
            where = given.value[name].where if given else root.where
            problems.add(where, f"cluster.{name}", f"is for Ray; {why}", "leave it out")
    for name, why, suggestion in _idle_devices(devices):
        message = f"has no meaning with launcher {launcher}: {why}"
        problems.add(used.value[name].where if used else root.where, f"devices.{name}", message, suggestion)


def _idle_devices(use: DeviceUse) -> Iterator[tuple[str, str, str]]:
    """Keys of devices that say something, why that is nothing on a cluster, and what to write instead."""
    plain = DeviceUse()
    for name, (why, suggestion) in _IDLE.items():
        value = getattr(use, name)
        if value != getattr(plain, name):
            count = len(value) if isinstance(value, tuple) else value
            yield name, why, suggestion.format(count)


_RAYS: Final = {
    "address": "Slurm's commands know their cluster",
    "ray_python": "Slurm needs no library",
}
_ONE_WORKER: Final = "on an allocation runs one worker at a time"
_IDLE: Final = {
    "use": ("the cluster chooses the GPUs of an allocation", "write cluster: {{gpus: {0}}} instead"),
    "cpus": (
        "the cluster chooses the CPUs of an allocation",
        "write cluster: {{slots: {0}, cpus: …}} instead",
    ),
    "slots": ("workers at once are as many as allocations", "write cluster: {{slots: {0}}} instead"),
    "exclusive": (_ONE_WORKER, "leave it out; cluster: {{slots: 1}} is one worker in all"),
    "share_cpus": (_ONE_WORKER, "leave it out"),
    "standby": (_ONE_WORKER, "leave it out"),
}


def is_listed(steps: Sequence[str]) -> bool:
    """Whether this path of a sweep file holds a list."""
    return list(steps) == ["cluster", "options"]


def cluster_text(launcher: str, cluster: ClusterUse) -> str:
    """ "Slurm: 4 allocations at once, each with 1 GPU, 8 CPUs, 8h" """
    memory = f"{bytes_text(cluster.memory_mib << 20)} of memory" if cluster.memory_mib else ""
    limit = duration_text(cluster.time_limit_s) if cluster.time_limit_s else ""
    cpus = counted(cluster.cpus, "CPU") if cluster.cpus else ""
    parts = [counted(cluster.gpus, "GPU") if cluster.gpus else "no GPU", cpus, memory, limit, *cluster.options]
    many = counted(cluster.slots, "allocation") + (" at once, each" if cluster.slots > 1 else " at a time,")
    return f"{TITLES[launcher]}: {many} with {', '.join(filter(None, parts))}"
