"""How long and how much: the deadlines of a worker's states, the room a run needs, and what follows a failure.

    policies:
      hang: {do: halve, times: 4}
      oom: give_up                  # short for {do: give_up}
      busy_device: {wait_s: 3600}   # what is left out stays as it is

None of it changes what is measured, so a resumed run may change it. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from orchestrator.definition.fields import convert, is_mapping, parts
from orchestrator.definition.spelling import nearest
from orchestrator.definition.sweepfile import Node, Problems
from orchestrator.view.wording import counted

Seconds = Annotated[float, Meta(gt=0)]
MiB = Annotated[int, Meta(ge=0)]
Times = Annotated[int, Meta(ge=0, le=1000)]
Action = Literal["give_up", "retry", "halve", "wait", "record"]


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a worker may stay in each state, seconds; what may be held or must be free when one starts, MiB."""

    launch_s: Annotated[Seconds, Meta(description="from exec to the worker's first word")] = 60.0
    import_s: Annotated[Seconds, Meta(description="importing the engine")] = 300.0
    standby_s: Annotated[Seconds, Meta(description="imported, waiting for its slot")] = 3600.0
    load_s: Annotated[Seconds, Meta(description="loading the model, compilation included")] = 1800.0
    ready_s: Annotated[Seconds, Meta(description="loaded, waiting for work")] = 120.0
    batch_s: Annotated[Seconds, Meta(description="one batch")] = 900.0
    drain_s: Annotated[Seconds, Meta(description="leaving by itself after being asked to")] = 60.0
    terminate_s: Annotated[Seconds, Meta(description="leaving after SIGTERM")] = 10.0
    kill_s: Annotated[Seconds, Meta(description="until nothing is left after SIGKILL")] = 20.0
    release_s: Annotated[Seconds, Meta(description="until the slot's memory is back")] = 120.0
    strangers_mib: Annotated[
        MiB, Meta(description="device memory of others, per GPU, that a slot is used in spite of")
    ] = 512
    run_dir_free_mib: Annotated[MiB, Meta(description="room in the run directory; 0: not checked")] = 256
    tmp_free_mib: Annotated[MiB, Meta(description="room in TMPDIR; 0: not checked")] = 256
    shm_free_mib: Annotated[MiB, Meta(description="room in /dev/shm; 0: not checked")] = 16
    artefacts_mib: Annotated[
        MiB, Meta(description="compiled artefacts kept for later workers and runs; 0: none, each load is cold")
    ] = 20480


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What follows a failure of one class."""

    do: Annotated[Action, Meta(description="what becomes of the batch, or of the wait")]
    times: Annotated[Times, Meta(description="fresh workers for one point before it is given up")] = 2
    loads: Annotated[Times, Meta(description="further tries where a worker ends before it is ready")] = 0
    wait_s: Annotated[float, Meta(ge=0, description="how long to wait")] = 600.0

    def __str__(self) -> str:
        if self.do == "wait":
            return f"wait, at most {self.wait_s:g} s"
        return f"{self.do}, {counted(self.times, 'time')}" if self.do in COUNTED else self.do

    @property
    def of_loads(self) -> str:
        """What it says of a worker that ended before it was ready."""
        return f"load again, {counted(self.loads, 'time')}" if self.loads else "give_up"


#: Actions that `times` means something for.
COUNTED: Final = ("retry", "halve")
_BATCH: Final = ("halve", "retry", "give_up")
#: What each class may be answered with. Absent: `interrupted`, which is resumed and nothing else.
ALLOWED: Final[dict[str, tuple[Action, ...]]] = {
    "environment": ("give_up",),
    "config": ("give_up",),
    "model": ("give_up",),
    "oom": _BATCH,
    "device_lost": ("retry", "give_up"),
    "busy_device": ("wait", "give_up"),
    "engine_crash": _BATCH,
    "engine_error": _BATCH,
    "hang": _BATCH,
    "protocol": _BATCH,
    "bad_prompt": ("record", "give_up"),
    "disk": ("wait", "give_up"),
}


#: What each class is.
CLASSES: Final = {
    "environment": "the engine can't be built or imported",
    "config": "the engine refused its settings",
    "model": "the model can't be loaded",
    "oom": "memory of the device or the host ran out",
    "device_lost": "a GPU fell off the bus",
    "busy_device": "somebody else holds the slot's memory, or it did not come back",
    "engine_crash": "the worker or its engine ended without a farewell",
    "engine_error": "the engine raised an error at a batch",
    "hang": "a deadline of limits passed",
    "protocol": "the worker spoke nonsense or out of turn",
    "bad_prompt": "this prompt alone makes the engine fail",
    "disk": "no room on a disk",
}


class Policies(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By class of cause. Loads that a second try can't mend are not tried twice."""

    environment: Policy = Policy(do="give_up")
    config: Policy = Policy(do="give_up")
    model: Policy = Policy(do="give_up")
    oom: Policy = Policy(do="halve")
    device_lost: Policy = Policy(do="retry", times=1, loads=1)
    busy_device: Policy = Policy(do="wait", loads=1)
    engine_crash: Policy = Policy(do="halve", loads=1)
    engine_error: Policy = Policy(do="halve")
    hang: Policy = Policy(do="halve", loads=1)
    protocol: Policy = Policy(do="halve", loads=1)
    bad_prompt: Policy = Policy(do="record")
    disk: Policy = Policy(do="wait", wait_s=60.0, loads=1)

    def of(self, cls: str) -> Policy:
        """Of any class; that of `interrupted` means nothing, as nobody is blamed for it."""
        return getattr(self, cls, None) or Policy(do="give_up")


def with_patience(limits: Limits, policies: Policies) -> Limits:
    """A slot is waited for as long as the policy says, whatever a worker may otherwise stay in standby."""
    wait_s = policies.busy_device.wait_s if policies.busy_device.do == "wait" else 0.0
    return msgspec.structs.replace(limits, standby_s=limits.standby_s + wait_s)


def read_limits(node: Node, problems: Problems) -> Limits:
    if isinstance(node.value, dict) and "restarts" in node.value:
        where = node.value["restarts"].where
        problems.add(where, "limits.restarts", "limits has no such key", "put times under policies, for each class")
        node = Node({k: v for k, v in node.value.items() if k != "restarts"}, node.where)
    return Limits(**parts(node, "limits", get_type_hints(Limits, include_extras=True), problems))


def read_policies(node: Node, problems: Problems) -> Policies:
    if not is_mapping(node, "policies", ALLOWED, problems):
        return Policies()
    found: dict[str, Policy] = {}
    for cls, part in node.value.items():
        if cls not in ALLOWED:
            problems.add(part.where, f"policies.{cls}", "there is no such class", nearest(cls, ALLOWED))
        elif (policy := _policy(cls, part, problems)) is not None:
            found[cls] = policy
    return Policies(**found)


def _policy(cls: str, node: Node, problems: Problems) -> Policy | None:
    key = f"policies.{cls}"
    before = problems.said
    actions: Any = Literal[ALLOWED[cls]]
    if isinstance(node.value, dict):
        fields = parts(node, key, {**_TYPES, "do": actions}, problems)
    else:
        fields = {"do": convert(node, key, actions, problems)}
    if problems.said > before:
        return None
    base: Policy = getattr(Policies(), cls)
    do = fields.get("do", base.do)
    if do == "give_up":
        fields.setdefault("loads", 0)
    for name in sorted(fields.keys() & MEANINGLESS[do]):
        problems.add(node.value[name].where, f"{key}.{name}", f"means nothing where do is {do}", "leave it out")
    return msgspec.structs.replace(base, **fields)


_TYPES: Final[dict[str, Any]] = get_type_hints(Policy, include_extras=True)
#: Parts of a policy that its action leaves without a meaning.
MEANINGLESS: Final[dict[str, set[str]]] = {
    "give_up": {"times", "wait_s"},
    "record": {"times", "loads", "wait_s"},
    "wait": {"times"},
    "retry": {"wait_s"},
    "halve": {"wait_s"},
}
