"""What happened in a run: the typed events of the journal.

The supervisor emits each event once; the journal writes it and the console
shows it. Reports are a pure read of the same events. Times: `at` is wall time
(Unix seconds, display only); every duration comes from a monotonic clock.
"""

from __future__ import annotations

from typing import Literal, Union

from msgspec import Struct, field

from orchestrator.clusters.allocations import SlotAsked, SlotJoined, SlotLeft
from orchestrator.outcomes import Cause, OutcomeKind
from orchestrator.provenance import DeviceUse, HostUse, Provenance
from orchestrator.reclaim import Reclaim
from protocol.records import BatchStats, RuntimeMetadata


class RunStarted(Struct, frozen=True, kw_only=True, tag="run_started"):
    """`life` counts the coordinators of this run: 1, then one more per resume."""

    at: float
    life: int
    pid: int
    airlock: str
    host: str
    plan_digest: str
    points: int
    file: str = ""  # the sweep file, as it was named
    overrides: list[str] = field(default_factory=list)  # of --set
    environments: dict[str, str] = field(default_factory=dict)  # env name → fingerprint digest


class SurvivorsReaped(Struct, frozen=True, kw_only=True, tag="survivors_reaped"):
    at: float
    processes: list[str]


Early = Literal["", "standby", "teardown"]


class WorkerLaunched(Struct, frozen=True, kw_only=True, tag="worker_launched"):
    """artefacts: whether what earlier workers compiled was at hand ("warm") or not ("cold"), by which load times
    must be told apart; "" where its method compiles nothing or none are kept. cpus: "0-3", those it was held to;
    "" for all. early: its slot was still held by the worker before it, which was at work ("standby") or on its way
    out ("teardown"). start: the key of its worker start in the plan; "" in older journals."""

    at: float
    incarnation: str
    method: str
    engine: str
    env: str
    fingerprint: str
    slot: str
    pid: int
    log: str
    artefacts: Literal["", "cold", "warm"] = ""
    cpus: str = ""
    early: Early = ""
    start: str = ""


ArtefactFate = Literal["kept", "not_kept", "not_used", "dropped"]


class Artefacts(Struct, frozen=True, kw_only=True, tag="artefacts"):
    """What became of compiled artefacts: of the entry that a worker was to be lent, or of what it leaves.

    kept      the store has what it had not before
    not_kept  it has not, and why
    not_used  there is an entry that could not be lent
    dropped   the entry is damaged, or suspected of having made its worker fail: it is gone
    """

    at: float
    incarnation: str
    key: str
    what: ArtefactFate
    reason: str = ""
    bytes: int = 0


class StateChanged(Struct, frozen=True, kw_only=True, tag="state_changed"):
    at: float
    incarnation: str
    state: str
    after_s: float  # spent in the state it left


class WorkerReady(Struct, frozen=True, kw_only=True, tag="worker_ready"):
    at: float
    incarnation: str
    metadata: RuntimeMetadata
    fingerprint: str


class PointStarted(Struct, frozen=True, kw_only=True, tag="point_started"):
    at: float
    point: str
    incarnation: str
    prompts: int


class WarmupDone(Struct, frozen=True, kw_only=True, tag="warmup_done"):
    at: float
    point: str
    batch: str
    stats: BatchStats


#: What neighbours are called that import their engine and wait for a slot.
STANDBY = "standby: "


def is_standby(neighbour: str) -> bool:
    return neighbour.startswith(STANDBY)


class BatchCommitted(Struct, frozen=True, kw_only=True, tag="batch_committed"):
    """`offset` and `length` (bytes) place its records in generations.jsonl;
    `errors` of them are error records. `host`: of a batch that ran, what else ran beside it; `neighbours`: which
    other workers of this run there were meanwhile, "slot1: vllm_default"."""

    at: float
    point: str
    batch: str
    incarnation: str
    prompts: list[str]
    offset: int
    length: int
    crc: int
    stats: BatchStats | None
    errors: int = 0
    flags: list[str] = field(default_factory=list)
    host: HostUse | None = None
    neighbours: list[str] = field(default_factory=list)

    @property
    def crowded(self) -> bool:
        """Other workers were at work beside it; one that only stood by, at low priority, is none of them."""
        return any(not is_standby(one) for one in self.neighbours)


class DevicesUsed(Struct, frozen=True, kw_only=True, tag="devices_used"):
    """What the slot's GPUs did while a measured batch ran."""

    at: float
    batch: str
    incarnation: str
    devices: list[DeviceUse]


class BatchLost(Struct, frozen=True, kw_only=True, tag="batch_lost"):
    """A batch that gave nothing; its prompts run again, in halves, or end in an error record."""

    at: float
    point: str
    batch: str
    incarnation: str
    prompts: list[str]
    cause: Cause


class Probed(Struct, frozen=True, kw_only=True, tag="probed"):
    """After a failed batch that left its worker alive: whether the engine still answers another
    prompt. If not, the failure is the process's and not the batch's alone. Never measured."""

    at: float
    point: str
    batch: str
    incarnation: str
    ok: bool


class PointEnded(Struct, frozen=True, kw_only=True, tag="point_ended"):
    at: float
    point: str
    outcome: OutcomeKind
    cause: Cause | None = None


class PointSkipped(Struct, frozen=True, kw_only=True, tag="point_skipped"):
    """A point that is not measured, and neither failed nor missing: a repeat, as those before it were enough; or one
    that needs at least as much memory as point `over`, which ran out of it."""

    at: float
    point: str
    reason: str
    over: str = ""


class WorkerReleased(Struct, frozen=True, kw_only=True, tag="worker_released"):
    """`dropped` counts messages under this worker's identity that did not count, by kind; `slow_paths`
    are lines of its log that tell of a slower way that the engine took."""

    at: float
    incarnation: str
    exit_status: int | None
    signal: str | None
    cause: Cause | None
    reclaim: Reclaim
    metadata: RuntimeMetadata | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    slow_paths: list[str] = field(default_factory=list)


class SlotQuarantined(Struct, frozen=True, kw_only=True, tag="slot_quarantined"):
    """Nothing more runs there in this life. `incarnation` is empty where a stranger holds the slot."""

    at: float
    slot: str
    incarnation: str
    reason: str
    holders: list[str] = field(default_factory=list)


class Waiting(Struct, frozen=True, kw_only=True, tag="waiting"):
    """A wait begins, for `most_s` seconds at most; `waited` ends it."""

    at: float
    what: Literal["slot", "room"]
    reason: str
    most_s: float
    slot: str = ""


class Waited(Struct, frozen=True, kw_only=True, tag="waited"):
    """Time that is charged to no method: for a slot that somebody holds, for room on a disk, or
    while this coordinator itself was stopped. Written when it is over; `over` is false where it did not help."""

    at: float
    what: Literal["slot", "room", "suspended"]
    reason: str
    wait_s: float
    over: bool = True
    slot: str = ""


class Notified(Struct, frozen=True, kw_only=True, tag="notified"):
    """Somebody was told of the run, or could not be: `said` is why. May come after the run's end."""

    at: float
    occasion: str
    to: str
    ok: bool
    said: str = ""


class RunEnded(Struct, frozen=True, kw_only=True, tag="run_ended"):
    """`measured_s` is the time inside engines' generate calls, warm-up excluded; `dropped` counts
    what came over the wire from nobody of ours, by kind."""

    at: float
    exit_code: int
    wall_s: float
    measured_s: float
    reason: str = ""
    dropped: dict[str, int] = field(default_factory=dict)


Event = Union[
    RunStarted,
    Provenance,
    SurvivorsReaped,
    WorkerLaunched,
    Artefacts,
    StateChanged,
    WorkerReady,
    PointStarted,
    WarmupDone,
    BatchCommitted,
    DevicesUsed,
    BatchLost,
    Probed,
    PointEnded,
    PointSkipped,
    WorkerReleased,
    SlotQuarantined,
    SlotAsked,
    SlotJoined,
    SlotLeft,
    Waiting,
    Waited,
    Notified,
    RunEnded,
]
